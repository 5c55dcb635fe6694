"""A start says what it is doing: a live line in a terminal, lines elsewhere, nothing where none is wanted."""

from __future__ import annotations

import io
import linecache
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from partita.engine import Downpour, Session, evaluate, predict, train
from partita.engine.launch import ProcessLauncher
from partita.engine.protocol.coordinator_effects import Starting
from partita.engine.protocol.host import DEFAULT_TIMERS
from partita.engine.run import display, phases
from partita.engine.run.phases import Phases, Show, starting
from partita.layers import Network, OneToOne, SoftmaxCrossEntropy, node
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy
from tests.faults.helpers import Command

FILE = str(Path(toy.__file__))


def plan_of_toy(machines: int = 2) -> Plan:
    return partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every phase is shown at once, and each line is printed; hosts report each function."""
    usual = DEFAULT_TIMERS.progress_s
    object.__setattr__(DEFAULT_TIMERS, "progress_s", 0.0)
    monkeypatch.setattr(phases.Phases.__init__, "__kwdefaults__", {"after_s": 0.0, "stream": None})
    monkeypatch.setattr(phases, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(display, "LINE_EVERY_S", 0.0)
    yield
    object.__setattr__(DEFAULT_TIMERS, "progress_s", usual)


def fresh_node(number: int) -> Network:
    """A network with a node that has never been compiled."""
    source = f"def fresh(incoming):\n    return incoming[0] * {number}.0 + 0.25\n"
    names: dict[str, object] = {}
    file = f"<fresh {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    net = Network("fresh")
    layer = node(OneToOne())(names["fresh"])  # type: ignore[call-overload]
    scores = layer(name="scores")(net.input("picture", shape=(3,)))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    return net


@pytest.mark.slow
def test_a_training_says_what_it_starts_before_it_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "LINE_EVERY_S", 0.0)
    train(plan_of_toy(), toy.data(), driver=Downpour(replicas=2), epochs=2, show="lines")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "starting 5 processes", "the first line says what runs"
    begun = next(n for n, line in enumerate(lines) if line.startswith("step "))
    assert all(line.startswith("starting 5 processes: ") for line in lines[2:begun])
    assert not any(line.startswith("starting") for line in lines[begun:])
    for show in ("nothing",):
        train(plan_of_toy(), toy.data(), driver=Downpour(), epochs=1, show=show)
    assert capsys.readouterr().err == ""


def test_functions_that_hosts_compile_are_counted(
    on_threads: list[WatchedThreads], at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    phases: list[str] = []
    plan = partition(fresh_node(np.random.default_rng().integers(1 << 30)), Cluster.local(), batch=2)
    with Session(plan, 0, hosts="threads", show=phases.append):
        pass
    assert phases[0] == "starting 1 thread" and "starting 1 thread: 1 ready" in phases[-1]
    counts = [int(found[1]) for text in phases if (found := re.search(r"(\d+) functions? compiled", text))]
    assert counts == sorted(counts) and counts[-1] > 0
    inline: list[str] = []
    plan = partition(fresh_node(np.random.default_rng().integers(1 << 30)), Cluster.local(), batch=2)
    with Session(plan, 0, hosts="inline", show=inline.append):
        pass
    assert inline and all(re.fullmatch(r"compiling: \d+ functions? so far", text) for text in inline)


@pytest.mark.parametrize("show", ["lines", "nothing"])
def test_evaluations_say_how_far_they_are_when_they_last(
    show: Show, at_once: None, capsys: pytest.CaptureFixture[str], on_threads: list[WatchedThreads]
) -> None:
    run = train(plan_of_toy(), toy.data(64), driver=Downpour(), epochs=1, show="nothing")
    capsys.readouterr()
    evaluate(run, toy.data(2000), show=show)
    predict(run, toy.data(2000), show=show)
    said = capsys.readouterr().err
    if show == "nothing":
        assert said == ""
    else:
        assert "starting 2 threads" in said and "of 2000 examples" in said
        assert "evaluating: " in said and "predicting: " in said


def test_a_phase_that_is_over_in_a_moment_is_not_shown() -> None:
    stream, shown = io.StringIO(), threading.Event()

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            shown.set()
            return stream.write(text)

    with Phases("lines", after_s=3600.0, stream=Watched()) as on_phase:
        on_phase("planning")
    assert stream.getvalue() == ""
    with Phases("lines", after_s=0.0, stream=Watched()) as on_phase:
        on_phase("planning")
        assert shown.wait(60.0)
    assert stream.getvalue() == "planning\n"


def test_what_shows_phases_is_checked() -> None:
    with pytest.raises(ValueError, match="show is"):
        Session(plan_of_toy(), 0, show="often")  # type: ignore[arg-type]
    found = starting(Starting(hosts=6, running=3, ready=2, compiled=1), ProcessLauncher.kind)
    assert found == "starting 6 processes: 2 ready, 1 function compiled"


@pytest.mark.slow
def test_the_time_to_start_is_a_setting_and_who_needs_longer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="start_timeout_s is"):
        train(plan_of_toy(), toy.data(), driver=Downpour(), epochs=1, start_timeout_s=0.0)
    with Command("train", FILE, "--batch", "8", "--start-timeout", "0.001", folder=tmp_path) as command:
        code, _ = command.end()
    assert code == 1 and re.fullmatch(
        r"partita: (part|shard) \S+ \(incarnation 0\) gave no sign of life for 0 s while importing; look at "
        r"what it printed, or allow more than 0.001 s by start_timeout_s \(--start-timeout\)",
        command.said[-1],
    ), command.said


@pytest.mark.slow
def test_a_profile_says_its_phases_in_a_log(tmp_path: Path) -> None:
    few = ("--machines", "1", "--batch", "8", "--steps", "2", "--uncalibrated")
    with Command("profile", FILE, *few, folder=tmp_path) as command:
        command.wait_for(
            "ing 1 "
        )  # "planning 1 of 1 machine" or "starting 1 process": what lasts until a look
        assert command.end()[0] == 0


class Terminal(io.StringIO):
    """Notes when a text is written for the first time."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.shown, self._awaited = threading.Event(), awaited

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._awaited in self.getvalue():
            self.shown.set()
        return written


def test_a_terminal_has_a_live_line_that_vanishes() -> None:
    terminal = Terminal("planning something")
    with Phases("auto", after_s=0.0, stream=terminal) as on_phase:
        on_phase("planning something")
        assert terminal.shown.wait(60.0)
    assert "\x1b[2K" in terminal.getvalue(), "the line is erased"
