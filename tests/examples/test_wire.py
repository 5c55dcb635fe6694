"""Counts on the wire: what mailboxes have counted in a run is what the formulas say, messages and bytes."""

from __future__ import annotations

from functools import partial

import pytest

from examples.reproduce import wire
from partita.engine import ADMM, SGD, Downpour
from partita.engine.drivers import Driver
from partita.engine.protocol.coordinator_effects import WatchPolicy
from partita.engine.run import supervisor, training
from tests.drivers.conftest import WatchedThreads, run_on_threads

TWO = {"replicas": 2, "optimizer": SGD(0.1)}


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> list[WatchedThreads]:
    """Two replicas, as threads of this process, with few pictures, which are asked at every tick."""
    for name, value in {"REPLICAS": 2, "EXAMPLES": 160, "EPOCHS": 10}.items():
        monkeypatch.setattr(wire, name, value)
    monkeypatch.setattr(training, "WatchPolicy", partial(WatchPolicy, ask_s=0.02, record_s=0.02))
    monkeypatch.setattr(supervisor, "TICK_S", 0.01)
    return run_on_threads(monkeypatch)


@pytest.mark.parametrize(
    "driver",
    [
        ADMM(every=2, absolute=0.0, relative=0.0, **TWO),
        Downpour(shards=2, push_every=2, fetch_every=4, run_ahead=1, **TWO),
    ],
    ids=["admm", "downpour"],
)
def test_every_part_sends_what_its_formula_says(driver: Driver, threads: list[WatchedThreads]) -> None:
    parts = wire.counted_again(driver)
    assert wire.equal(parts), parts
    boxes = threads[-1].boxes
    for replica, one in enumerate(parts):
        counters, kinds = boxes[f"part {replica}.0"].counters, ("PartialChunk", "FinalChunk")
        counts = [counters.sent_of(kind) for kind in kinds]
        if driver.shards:
            counts = [counters.sent_of("Push"), counters.received_of("Parameters")]
        assert sum(count.messages for count in counts) == one.measured.messages > 0
        assert sum(count.payload_bytes for count in counts) == one.measured.n_bytes > 0


@pytest.mark.slow
def test_the_command_prints_what_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        wire, "NEVER_WAITS", wire.DRIVERS["ADMM, rounds of 4"]
    )  # waits, and sends the formula
    with pytest.raises(SystemExit, match="does not hold"):
        wire.main()
    assert capsys.readouterr().out.count(": yes") == 3
