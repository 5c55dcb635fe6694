"""Faults of stops, and of changes of the learning rate: of validations, of decisions there, and of ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from partita.engine.drivers.paced import Pacing, _Iterations, _Steps
from partita.engine.protocol import LeasedMode, ParameterLinks
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.part_validation import PartValidation
from partita.engine.protocol.validation import Validation
from partita.engine.testing import Fault
from tests.simulation.outcomes import Planted, PlantedFaults

# E1: each minibatch of the validation data once, by all parts of a replica.


def one_part_is_enough(method: Any, validation: Any, host: Any, result: Any, now: float) -> bool:
    method(validation, host, result, now)
    answers = validation._open.get(result.unit)
    if answers:
        validation._done[result.unit] = tuple(validation._open.pop(result.unit).values())
    return not validation._open


def taken_for_the_first_open_one(method: Any, validation: Any, host: Any, result: Any, now: float) -> bool:
    unit = min(validation._open, default=result.unit)
    return bool(method(validation, host, msgspec.structs.replace(result, unit=unit), now))


def without_the_last_one(method: Any, validation: Any, action: Any, *arguments: Any, **named: Any) -> Any:
    fewer = replace(action, minibatches=max(action.minibatches - 1, 0))
    if validation.action == fewer:
        fewer = validation.action
    effects = method(validation, fewer, *arguments, **named)
    return [replace(one, action=action) if hasattr(one, "sums") else one for one in effects]


# E2: with the parameters that all agree on.


def with_what_is_there(method: Any, part: Any, work: Any, now: float) -> Iterator[Any]:
    yield from method(part, work, now)
    part._is_fresh = True


def whatever_they_follow_from(method: Any, validation: Any, *arguments: Any, **named: Any) -> Any:
    return method(validation, *arguments, **{**named, "basis": None})


# E3: what is before a stop is done, and nothing behind it; it comes once.


def while_others_compute(method: Any, mode: Any) -> bool:
    return mode._shards.known and not mode._work.free


def asks_again(method: Any, coordinator: Any, decision: Any, now: float) -> Any:
    if not coordinator._validation.awaits_decision:
        return []
    coordinator._validation.end()
    return coordinator.validate_now(now)


# E4: a run that callbacks or a limit end ends there.


def goes_on_anyway(method: Any, coordinator: Any, decision: Any, now: float) -> Any:
    return method(coordinator, replace(decision, stop=""), now)


def a_step_later(method: Any, pace: Any, pacing: Pacing, *arguments: Any) -> None:
    """The last argument, if any, is the number of replicas that do each step."""
    joined = max(arguments[1:], default=1)
    method(pace, replace(pacing, most=pacing.most and pacing.most + joined), *arguments)


# L1: a step, and its push, has a learning rate that callbacks have set, and none from before the last stop.


class PushesStepsOfTwoRatesAtOnce(ParameterLinks):
    def _in_the_way(self, unit: int, scale: float) -> Iterator[Any]:
        return (link for link in super()._in_the_way(unit, scale) if unit in link.has)


class SendsNoNewRate(LeasedMode):
    def set_scale(self, scale: float, now: float) -> Any:
        return []


def not_noted(method: Any, mode: Any, scale: float, now: float) -> list[Any]:
    return []


def at_the_first_rate(method: Any, part: Any, now: float) -> Iterator[Any]:
    yield from method(part, now)
    part._scale = 1.0


STOP_FAULTS = [
    Planted(PushesStepsOfTwoRatesAtOnce, "L1 I14", 300, at=124),
    Planted(SendsNoNewRate, "L1", 100, at=5),
]
"""Found as those of shards and parts."""


PLACES = (
    ("a minibatch of one part", "E1", Validation, "receive", one_part_is_enough, (20, 3, 5)),
    ("taken for another minibatch", "E1", Validation, "receive", taken_for_the_first_open_one, (5, 34, 5)),
    ("the last minibatch is left out", "E1", Validation, "go_on", without_the_last_one, (5, 34, 12)),
    ("evaluated with what is there", "E2", PartValidation, "_order", with_what_is_there, (5, 34)),
    ("kept when a shard is another", "E2", Validation, "go_on", whatever_they_follow_from, (142,)),
    ("a stop while others compute", "E2 E3", LeasedMode, "is_complete", while_others_compute, (5,)),
    ("a stop comes again", "E3", Coordinator, "_decided", asks_again, (12, 12, 11)),
    ("goes on after its end", "E4", Coordinator, "_decided", goes_on_anyway, (41, 16, 79)),
    ("ends a step later", "E4 W1", _Steps, "__init__", a_step_later, (52, None, 30)),
    ("ends an iteration later", "E4", _Iterations, "__init__", a_step_later, (None, 49)),
    ("a new rate is not noted", "L1", JoinedMode, "set_scale", not_noted, (None, None, 20)),
    ("steps have the first rate", "R2", JoinedWork, "advance", at_the_first_rate, (None, None, 20)),
)
"""Name of a fault, what it breaks, where it is, what it does, and seeds that find it: of Downpour, of
Sandblaster and of AllReduce.
"""

FAULTS = [
    PlantedFaults(f"{name} ({driver})", breaks, (Fault(owner, method, instead),), driver, at, 300)
    for name, breaks, owner, method, instead, seeds in PLACES
    for driver, at in zip(("downpour", "sandblaster", "all_reduce"), seeds, strict=False)
    if at is not None
]
