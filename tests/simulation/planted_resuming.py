"""Faults of runs under Downpour that go on after their coordinator: units that count twice, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from partita.engine.protocol import ApplyOnArrival, LeasedMode, ParameterLinks
from partita.engine.protocol.checkpoint_messages import UnitsHeld
from partita.engine.protocol.events import Persist
from partita.engine.protocol.held_units import UnitsOfShards
from partita.engine.protocol.messages import Push
from partita.engine.protocol.ranges import Ranges
from tests.simulation.outcomes import Planted


class LeavesNothingOut(ParameterLinks):
    def computed(self, step: int, unit: int, now: float, **more: Any) -> Iterator[Any]:
        for link in self._links.values():
            link.has = Ranges()
        yield from super().computed(step, unit, now, **more)


class NamesAUnitTooFew(ParameterLinks):
    def _push(self, link: Any, now: float) -> Iterator[Any]:
        link.units.take(1)
        yield from super()._push(link, now)


class RemembersNoUnits(ApplyOnArrival):
    def _push(self, event: Any, push: Push) -> Any:
        return super()._push(event, msgspec.structs.replace(push, units=()))


class RestoreForgetsTheUnits(ApplyOnArrival):
    def __init__(self, own: Any, **kwargs: Any) -> None:
        super().__init__(own, **(kwargs | {"restored": replace(kwargs["restored"], units={})}))


class WritesAUnitTooMany(ApplyOnArrival):
    def persist(self, checkpoint: int) -> Persist:
        order = super().persist(checkpoint)
        more = {span: tuple((a, b + 1) for a, b in units) for span, units in order.units.items()}
        return replace(order, units=more)


class HoldsWhatSomeOfItHolds(ApplyOnArrival):
    def _units_held(self) -> UnitsHeld:
        held = super()._units_held()
        return UnitsHeld(held.some or held.all, held.some)


class AsksNobody(LeasedMode):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**(kwargs | {"resumes": False}))


class TakesAnyAnswerForAll(LeasedMode):
    def attach(self, run: Any) -> None:
        super().attach(run)
        self._shards.__class__ = _AnyAnswer


class _AnyAnswer(UnitsOfShards):
    def take(self, shard: str, answer: UnitsHeld) -> bool:
        is_new = super().take(shard, answer)
        for one in answer.all:
            self.all.cover(*one)
        return is_new


RESUMING_FAULTS = [
    Planted(LeavesNothingOut, "I1", at=313),
    Planted(NamesAUnitTooFew, "I15", 20),
    Planted(RemembersNoUnits, "I15 I1", 1000, at=4),
    Planted(RestoreForgetsTheUnits, "I15 I1", 1000, at=4),
    Planted(WritesAUnitTooMany, "I2 I15 I1", 1000, at=4),
    Planted(HoldsWhatSomeOfItHolds, "I15", at=1882),
    Planted(AsksNobody, "I15", 1000, at=4),
    Planted(TakesAnyAnswerForAll, "I15", at=622),
]
