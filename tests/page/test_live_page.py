"""A run starts its page, shows the address, and waits until the page is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from partita.engine import Downpour, cli, train
from partita.engine.cli import watch as command
from partita.engine.page.follow import Follower
from partita.engine.run import live_page
from partita.engine.run.live_page import LivePage
from partita.engine.watch.records import RunEnded, encode
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

KEEPS = "import sys; print('ADDRESS'); open(sys.argv[3], 'w').write(' '.join(sys.argv[4:]))"


def test_the_server_is_waited_for_and_what_it_prints_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "_NEEDS", ())
    shown: list[str] = []
    page = LivePage(
        tmp_path / "records-1.jsonl", save=None, say=shown.append, command=(sys.executable, "-c", KEEPS)
    )
    page.close()
    kept = tmp_path / "records-1.html"
    assert page.kept == kept and kept.read_text().startswith("--until-pid ")
    assert shown == ["page of this run: ADDRESS", f"page kept: {kept}"]


def test_a_server_that_fails_is_told_and_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "_NEEDS", ())
    shown: list[str] = []
    command = (sys.executable, "-c", "raise SystemExit(3)")
    LivePage(tmp_path / "r.jsonl", save=tmp_path / "p.html", say=shown.append, command=command).close()
    assert shown == ["the live page has ended with code 3"]
    monkeypatch.setattr(live_page, "_NEEDS", ("no_such_library",))
    with pytest.raises(ImportError, match=r"needs no_such_library; run: pip install 'partita\[page\]'"):
        live_page.check_page()


@pytest.mark.parametrize("installed", [True, False])
def test_the_command_opens_the_page_where_its_libraries_are_installed(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "records-1.jsonl"
    records.write_bytes(encode(RunEnded(at_s=1.0, outcome="complete", text="complete: 7 steps")))
    monkeypatch.setattr(live_page, "_NEEDS", ("json",) if installed else ("no_such_library",))
    served: list[Path] = []
    monkeypatch.setattr(command, "_serve", lambda stream, save, port: served.append(stream))
    for options, opens in (([], installed), (["--text"], False), (["--once"], False), (["--page"], True)):
        monkeypatch.setattr(sys, "argv", ["partita", "watch", str(tmp_path), *options])
        with pytest.raises(SystemExit):
            cli.main()
        assert served == [records] * opens, options
        assert ("complete: 7 steps" in capsys.readouterr().out) != opens
        served.clear()


@pytest.mark.slow
def test_a_run_keeps_its_page(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra page)")
    net = Network("small")
    net.loss = SoftmaxCrossEntropy()(Dense(3)(net.input("x", shape=4)), net.target("y"))
    plan = partition(net, Cluster.local(2), batch=8, strategy="balanced")
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(64, 4)).astype("float32"), "y": rng.integers(0, 3, 64)}
    target = tmp_path / "kept.html"
    run = train(
        plan,
        data,
        driver=Downpour(),
        epochs=3,
        checkpoints=tmp_path / "run",
        save_page=target,
        show="nothing",
    )
    page = target.read_text(encoding="utf-8")
    assert "small" in page and "complete" in page and f"{sum(run.steps)} / {sum(run.steps)}" in page
    follower = Follower(tmp_path / "run" / "records-1.jsonl")
    follower.read()
    assert follower.state.is_over
    follower.close()
