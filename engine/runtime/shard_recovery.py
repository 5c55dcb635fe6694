"""Recovery of a shard: the newest checkpoint, and over it the records of its log, by the same policy.

A log may go on from those of earlier runs in the same folder: their pushes are in the values, and the parts
of this run count theirs from zero.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np

from partita.engine.parameters.log import LogContent, LogWriter, read_log
from partita.engine.parameters.log_format import LoggedRequest, SegmentHeader
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.apply_on_arrival import RestoredState
from partita.engine.protocol.durability import Record
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import MalformedMessage, Push, decode
from partita.engine.protocol.shard_effects import OperationsDone, Policy, ShardEffect, ShardRanges
from partita.engine.protocol.sum_then_continue import without_replies
from partita.engine.runtime.task import CannotGoOn
from partita.engine.transport.payload import Payload

IsFinite: TypeAlias = Callable[[Received, Push], bool]
"""Returns whether the numbers of a push are finite."""


@dataclass(frozen=True)
class LogPlace:
    """Place in which a run keeps the logs of its shards.

    Args:
        name: of its folder, in that of the checkpoints.
        since: the first of the folders of logs whose records count; those before are of a replaced run.
    """

    name: str
    since: str


@dataclass(frozen=True)
class Base:
    """The state that a shard has loaded before its log is read.

    Args:
        run: id of the run that wrote the checkpoint; None: there is none.
        state: the counts in it.
        values: the parameters.
    """

    run: str | None
    state: RestoredState
    values: Vector

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the parameters."""
        return zlib.crc32(np.ascontiguousarray(self.values).view(np.uint8).data)


class Recovery:
    """The records that a shard has to carry out again.

    Attributes:
        content: of the log.
        notes: sentences for the user.
        replayed: records that were carried out again.
    """

    def __init__(
        self,
        folder: Path,
        place: LogPlace,
        base: Base,
        header: SegmentHeader,
        is_finite: IsFinite,
    ) -> None:
        """Reads the log.

        Args:
            folder: of the checkpoints, or one on this machine in its place.
            place: of the run's logs.
            base: what the records follow.
            header: of a segment of this process that begins without records.
            is_finite: looks at the numbers of a push.

        Raises:
            CannotGoOn: the log is of another layout, or begins with other parameters.
            OSError: it cannot be read.
        """
        self._base, self._run, self.replayed = base, header.run, 0
        self._is_finite: Final = is_finite
        found = read_log(folder, header.shard, after=base.state.version, since=place.since)
        self.content: Final[LogContent] = found
        self.notes: Final = list(found.notes)
        headers = {id(one): one for one, _ in found.records}
        for one in headers.values():
            _check(one, header, base, folder)
        self._header: Final = header
        self._base_checksum: Final = base.checksum if base.run is None else None

    def before(
        self,
        machine: Callable[[RestoredState], Policy],
        carry_out: Callable[[ShardEffect], OperationsDone | None],
    ) -> RestoredState:
        """Carries out the records of earlier runs, and returns the counts with which this run goes on.

        Args:
            machine: makes a policy of any run.
            carry_out: carries out one effect.
        """
        state, run = self._base.state, self._base.run
        for (other, units), group in groupby(self.content.records, key=_run_of):
            if other == self._run:
                break
            policy = machine(state if other == run else state.in_another_run())
            self.replay((record for _, record in group), policy, carry_out)
            state, run = RestoredState.after(policy.persist(0)), other
            if units != self._header.units_per_epoch:  # their numbers mean other steps, which are done again
                state = replace(state, units={})
        return state if run == self._run else state.in_another_run()

    def replay(
        self,
        records: Iterable[LoggedRequest],
        policy: Policy,
        carry_out: Callable[[ShardEffect], OperationsDone | None],
    ) -> None:
        """Carries out records by a policy, up to one that is not finite, which nobody acknowledged.

        Raises:
            CannotGoOn: a record is not of this protocol.
        """
        for one in records:
            try:
                message = decode(one.message)
            except MalformedMessage as error:
                raise CannotGoOn(f"record {one.number} of {self._header.shard}: {error}") from error
            payload = None if one.payload is None else Payload(one.payload)
            request = Received(one.sender, one.incarnation, message, payload)
            if isinstance(message, Push) and not self._is_finite(request, message):
                self.notes.append(
                    f"record {one.number} of {self._header.shard} is not finite and does not count"
                )
                return
            effects = deque(policy.replay(Record(one.number, request)))
            while effects:
                done = carry_out(effects.popleft())
                if done is not None:
                    effects += without_replies(policy.operations_done(done.scalars, leased=True))
            self.replayed += 1

    def writer(self, folder: Path, version: int, *, synced: bool, reserve: int) -> Callable[[], LogWriter]:
        """Returns what makes the writer of this process's segments.

        Args:
            folder: of the run's logs.
            version: number of the last record that is carried out.
            synced: see `LogWriter`.
            reserve: see `LogWriter`.
        """
        base = self._base_checksum if version == 0 else None
        header = msgspec.structs.replace(self._header, first=version + 1, base=base)
        return partial(LogWriter, folder, header, older=self.content.segments, synced=synced, reserve=reserve)

    @property
    def own(self) -> Iterator[LoggedRequest]:
        """The records of this run."""
        return (record for header, record in self.content.records if header.run == self._run)


def goes_on(folder: Path, place: LogPlace, shard: str, version: int) -> bool:
    """Returns whether the log has the records above a version, and all of them. Raises OSError."""
    found = read_log(folder, shard, after=version, since=place.since)
    return bool(found.records) and not found.unused


def _run_of(found: tuple[SegmentHeader, LoggedRequest]) -> tuple[str, int]:
    return found[0].run, found[0].units_per_epoch


def header_of(
    own: ShardRanges, *, run: str, shards: int, precision: str, units_per_epoch: int, compress: str = ""
) -> SegmentHeader:
    """Returns the header of segments of a process of a shard, before its first record is known."""
    return SegmentHeader(
        run=run,
        shard=own.name,
        shards=shards,
        incarnation=own.incarnation,
        first=1,
        base=None,
        ranges=dict(own.ranges),
        precision=precision,
        units_per_epoch=units_per_epoch,
        compress=compress,
    )


def _check(found: SegmentHeader, expected: SegmentHeader, base: Base, folder: Path) -> None:
    had, has = ((one.shards, one.ranges, one.precision) for one in (found, expected))
    if had != has:
        raise CannotGoOn(
            f"the log of {found.shard} in {folder} has pushes for {found.shards} shards, other ranges of "
            "parameters or another precision; resume with the plan and the shards of that run, and stop with "
            "Ctrl-C to have all of it in a checkpoint"
        )
    if found.compress != expected.compress:
        raise CannotGoOn(
            f"the log of {found.shard} in {folder} has pushes with compress={found.compress or None}, which "
            f"compress={expected.compress or None} cannot read; resume with the compressor of that run, and "
            "stop with Ctrl-C to have all of it in a checkpoint"
        )
    if base.run is None and found.base is not None and found.base != base.checksum:
        raise CannotGoOn(
            f"the log of {found.shard} in {folder} begins with other parameters than this run; resume with "
            "the same initial parameters and seed"
        )
