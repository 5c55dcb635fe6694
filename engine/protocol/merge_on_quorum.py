"""Policy of a syncing server: pushes wait until a quorum is here and a grace time is over, and are merged.

A merge is one update by the mean of its pushes, weighted by the examples whose changes they have. It counts,
and acknowledges, each of its pushes as `apply_on_arrival` does: so a push is in the values and acknowledged,
or it waits, and a shard's next process gets it again. A replica goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.events import Received, stream_of
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.merging import Merging, UnitSizes
from partita.engine.protocol.shard_effects import ApplyGradient, ShardEffect, ShardRanges

FIRST_INTERVAL_S: Final = 1.0
"""Seconds between two pushes of a replica, before they are measured."""

_MOST_MISSED: Final = 2
"""A part that was missing in so many merges is waited for no more."""


@dataclass(slots=True)
class _Range:
    """The pushes to one range that wait, by stream, and what is known of earlier merges."""

    waiting: dict[str, tuple[Received, m.Push]] = field(default_factory=dict)
    since: float = 0.0  # when the first of them came
    quorum_at: float | None = None  # when they became a quorum
    missed: dict[str, int] = field(default_factory=dict)  # merges since the last one that had a stream
    came: dict[str, tuple[int, float]] = field(default_factory=dict)  # the last push: process, and when
    interval_s: float = FIRST_INTERVAL_S


class MergeOnQuorum(ApplyOnArrival):
    """Merges the pushes of replicas, range by range."""

    def __init__(
        self,
        own: ShardRanges,
        *,
        merging: Merging,
        sizes: UnitSizes,
        restored: RestoredState | None = None,
        acknowledged: Mapping[str, Sequence[PushRecord]] | None = None,
        keeps_unsent: bool = False,
    ) -> None:
        """Creates the policy of a shard that starts, or starts again.

        Args:
            own: the shard's name, incarnation and ranges.
            merging: how long pushes wait for one another.
            sizes: the examples of units of work.
            restored: see `ApplyOnArrival`.
            acknowledged: see `ApplyOnArrival`.
            keeps_unsent: see `ApplyOnArrival`.
        """
        super().__init__(own, restored=restored, acknowledged=acknowledged, keeps_unsent=keeps_unsent)
        self._merging, self._sizes = merging, sizes
        self._merges: Final = {number: _Range() for number in own.ranges}

    @override
    def receive(self, event: Received) -> list[ShardEffect]:
        effects = super().receive(event)
        has_merged = any(isinstance(one, ApplyGradient) for one in effects)
        return effects if has_merged else effects + self._merge_due()

    @override
    def tick(self, *, leased: bool) -> list[ShardEffect]:
        return [*super().tick(leased=leased), *(self._merge_due() if leased else ())]

    @override
    def _take(self, event: Received, push: m.Push) -> list[ShardEffect]:
        """Lets a new push wait; a repeated one waits already."""
        stream = stream_of(event)
        own = self._merges[self._own.number_of(stream)]
        if stream not in own.waiting:
            own.since = own.since if own.waiting else self.now
            own.waiting[stream] = event, push
            process, at = own.came.get(stream, (-1, 0.0))
            if process == event.incarnation:  # the time between processes says nothing of their steps
                own.interval_s += (self.now - at - own.interval_s) / 2
            own.came[stream] = event.incarnation, self.now
        return []

    @override
    def _fetch(self, event: Received, fetch: m.Fetch) -> list[ShardEffect]:
        """Answers a fetch; that of a part's new process says what is done with the push of the one before.

        The answer says which steps are done again. So the push is merged before, or, without a quorum, left
        out.
        """
        own = self._merges.get(self._own.number_of(stream_of(event)))
        settled = [] if own is None else self._settle(own, event)
        return [*settled, *super()._fetch(event, fetch)]

    def _settle(self, own: _Range, event: Received) -> list[ShardEffect]:
        stream = stream_of(event)
        own.missed.setdefault(stream, 0)
        if stream not in own.waiting or event.incarnation <= own.waiting[stream][0].incarnation:
            return []
        if self._has_quorum(own):
            return self._merge(own)
        del own.waiting[stream]
        return []

    def _merge_due(self) -> list[ShardEffect]:
        """Merges the range that has waited longest, of those that are due; the others follow with the next
        events. Many updates in a row might take longer than the lease under which they begin.
        """
        due = [own for own in self._merges.values() if self._is_due(own)]
        return self._merge(min(due, key=lambda own: own.since)) if due else []

    def _is_due(self, own: _Range) -> bool:
        if not own.waiting:
            return False
        if not self._has_quorum(own):
            return self.now - own.since >= max(self._merging.patience_s, 2 * own.interval_s)
        if own.quorum_at is None:
            own.quorum_at = self.now
        is_complete = all(stream in own.waiting for stream in self._waited_for(own))
        return is_complete or self.now - own.quorum_at >= self._merging.grace * own.interval_s

    def _has_quorum(self, own: _Range) -> bool:
        quorum = min(self._merging.quorum, len(own.waiting.keys() | self._waited_for(own)))
        return len(own.waiting) >= quorum or any(push.is_last for _, push in own.waiting.values())

    @staticmethod
    def _waited_for(own: _Range) -> set[str]:
        return {stream for stream, missed in own.missed.items() if missed < _MOST_MISSED}

    def _merge(self, own: _Range) -> list[ShardEffect]:
        """Applies what waits, in the order of the parts: the same pushes give the same bits."""
        merged = [own.waiting[stream] for stream in sorted(own.waiting)]
        sizes = [max(1, self._sizes.of(push.units)) for _, push in merged]
        updates, answers = list[ShardEffect](), list[ShardEffect]()
        for number, ((event, push), size) in enumerate(zip(merged, sizes, strict=True), 1):
            for effect in super()._take(event, push):
                if isinstance(effect, ApplyGradient):
                    one = replace(effect, weight=size / sum(sizes), more=number < len(merged))
                    updates.append(one)
                else:
                    answers.append(effect)
        for stream in own.missed:
            own.missed[stream] = 0 if stream in own.waiting else own.missed[stream] + 1
        for stream, (_, push) in own.waiting.items():
            if push.is_last:
                own.missed[stream] = _MOST_MISSED
        own.quorum_at = None
        own.waiting.clear()
        return [*updates, *map(self._at_present, answers)]

    @override
    def validate(self) -> None:
        super().validate()
        for number, own in self._merges.items():
            assert all(self._own.number_of(stream) == number for stream in own.waiting), (number, own)
            assert own.quorum_at is None or own.waiting, own
