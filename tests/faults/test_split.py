"""A split between two hosts that both reach the coordinator: said after 5 s, with both names; soon healed."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from benchmarks._namespaces import GBIT, network, why_not
from partita.engine import SGD, Downpour, Interrupted, train
from partita.engine.launch import Placement
from partita.engine.protocol.coordinator_effects import Warn
from partita.engine.protocol.events import Refuse
from partita.engine.protocol.messages import WaitReport
from partita.engine.protocol.stall_detector import AFTER_S, MOST_NAMED, StallDetector
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness
from tests.protocol.coordinating import Run, of

MISSING = [("part 0.1", "hidden in step 7")]


def test_a_long_wait_is_reported_and_again_when_it_has_doubled() -> None:
    stuck = StallDetector()
    reports = {now: found for now in range(100) if (found := stuck.look(7, MISSING, float(now)))}
    assert list(reports) == [5, 10, 20, 40, 80]
    assert reports[5] == [WaitReport("part 0.1", "hidden in step 7", AFTER_S)]


def test_waits_that_end_are_reported_later_and_progress_begins_anew() -> None:
    stuck = StallDetector()
    for step in range(3):  # every step takes 4 s of somebody else
        assert not any(stuck.look(step, MISSING, 4.0 * step + s) for s in range(4))
    assert not stuck.look(9, (), 100.0)
    slow = StallDetector()
    times = itertools.product(range(5), range(9))
    reported = [step for step, s in times if slow.look(step, MISSING, 9.0 * step + s)]
    assert reported == [0], "steps of 9 s are what is usual there"
    assert not slow.look(5, (), 45.0)
    many = [(f"part 0.{n}", "x") for n in range(20)]
    assert [len(slow.look(100, many, now)) for now in (1000.0, 1100.0)] == [0, MOST_NAMED]


def test_the_coordinator_names_both() -> None:
    run = Run().start()
    (warned,) = of(Warn, run.receive("part 0.0", WaitReport("part 0.1", "hidden in step 7", 5.04)))
    assert warned.text == "part 0.0 waits for hidden in step 7 of part 0.1 since 5 s"
    assert of(Refuse, run.receive("part 0.0", WaitReport("nobody", "x", 5.0)))


def block(here: Placement, there: Placement, change: str) -> None:
    """Adds or deletes the route that throws away what goes from one host to another."""
    subprocess.run([*here.command, "ip", "route", change, "blackhole", f"{there.address}/32"], check=True)


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "one way"])
def test_a_split_between_two_parts_is_reported_and_heals(witness: Witness, one_way: bool) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(3, bits_per_s=GBIT) as net:
        places: dict[str, Any] = dict(zip(("part 0.0", "part 0.1", "shard 0"), net.places, strict=True))
        pairs = [(places["part 0.0"], places["part 0.1"]), (places["part 0.1"], places["part 0.0"])]
        pairs = pairs[:1] if one_way else pairs
        healed: list[tuple[float, int]] = []

        def split() -> None:
            for here, there in pairs:
                block(here, there, "add")

        def heal() -> None:
            for here, there in pairs:
                block(here, there, "delete")
            healed.append((time.monotonic(), len(witness.seen)))

        witness.when(lambda progress: progress.step > 20, split)
        witness.when_said(" waits for ", heal)
        witness.when(lambda progress: True, lambda: None)
        witness.when(lambda progress: True, lambda: signal.raise_signal(signal.SIGINT))
        plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
        with pytest.raises(Interrupted):
            train(
                plan,
                toy.data(),
                driver=Downpour(optimizer=SGD(0.05)),
                epochs=100_000,
                listen=net.listen,
                places=places,
            )
    waits = [text for text in witness.texts if " waits for " in text]
    assert waits and all(" of part 0." in text or " of shard 0" in text for text in waits), waits
    assert not any("begins again" in text or "dead" in text for text in witness.texts), witness.texts
    print(f"on after {time.monotonic() - healed[0][0]:.1f} s", file=sys.stderr)
