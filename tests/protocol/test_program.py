"""A driver's program on the machines of parts and coordinator: steps, views, deaths, checkpoints."""

from __future__ import annotations

from partita.engine.protocol.actions import AllReduce, Apply, Compute, Program, SafePoint
from partita.engine.protocol.coordinator_effects import EndRun
from partita.engine.protocol.exchange import Ring
from partita.engine.protocol.views import Member
from tests.protocol.fleet import Fleet, parts, reference


def all_reduce(me: Member) -> Program:
    for step in me.steps():
        yield Compute(step)
        yield AllReduce(by=Ring())
        yield Apply("optimizer")
        yield SafePoint()


def test_replicas_do_what_one_process_does_on_joined_batches() -> None:
    fleet = Fleet(all_reduce, replicas=3).run()
    assert isinstance(fleet.end, EndRun) and fleet.end.complete, fleet.end
    steps = fleet.steps()
    assert [example for step in steps for example in step] == list(range(fleet.total))
    assert list(fleet.parameters().values()) == [reference(steps)] * 3


def check(fleet: Fleet, replicas: int, machines: int) -> None:
    """One process on the same joined batches has the same numbers, and no example was left out."""
    assert isinstance(fleet.end, EndRun) and fleet.end.complete, (fleet.end, fleet.warnings)
    steps = fleet.steps()
    assert [example for step in steps for example in step] == list(range(fleet.total))
    found = fleet.parameters()
    assert set(found) <= set(parts(replicas, machines))
    assert found == dict.fromkeys(found, reference(steps)), steps
