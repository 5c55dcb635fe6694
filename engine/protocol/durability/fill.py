"""A copy of a shard's numbers, filled from another one in chunks while records go on changing it.

The side that is filled asks for one chunk after another, and asks again when no answer comes. A chunk is as
new as the version at which it was read: records up to there are in it, and later ones are applied to it. So
nobody stops, no snapshot is needed, and every number has every record once. Filling a backup from its shard
and a new process of the shard from the backup are the same. This module must not know the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol.copy_messages import CopyChunk, CopyRequest, ShardCounts
from partita.engine.protocol.events import Send, Span, payload_bytes
from partita.engine.protocol.retry import PendingRequest

CHUNK: Final = 1 << 20
"""Numbers of each vector in a chunk: a few megabytes, which take a few milliseconds."""

ALL_VECTORS: Final = "*"
"""Name in the span of a chunk's payload, which holds this range of every vector."""

Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Effect: write the payload to the numbers `[start, stop)` of every vector.

    `vectors` names them, and the first chunk replaces all others; without, the shard always has the same.
    """

    start: int
    stop: int
    payload: object
    vectors: tuple[str, ...] = ()


@dataclass(slots=True)
class _Chunk:
    """Numbers that have arrived, which hold the records up to `version`."""

    start: int
    stop: int
    version: int


class Fill:
    """The numbers of a shard that have arrived, and the request for those that come next.

    Attributes:
        source: the host that is asked.
        size: how many numbers there are.
        position: the numbers below have arrived.
        counts: those of the first chunk; None before it.
        number: of the last record that all numbers hold, or lack nothing but.
        is_confirmed: whether the source knows that all numbers are here.
    """

    def __init__(self, source: str, size: int, *, number_bytes: int, retry_s: float = 1.0) -> None:
        """Creates a copy without any numbers.

        Args:
            source: the host that is asked.
            size: how many numbers each vector has.
            number_bytes: of one number in all vectors; in one vector, where the source names them.
            retry_s: seconds before a request is repeated.
        """
        self.source: Final = source
        self.size: Final = size
        self.position = 0
        self.counts: ShardCounts | None = None
        self.number = 0
        self.is_confirmed = False
        self._number_bytes: Final = number_bytes
        self._retry_s: Final = retry_s
        self._chunks: list[_Chunk] = []
        self._request: PendingRequest[CopyRequest] | None = None

    @property
    def has_all(self) -> bool:
        """Returns whether all numbers are here, some perhaps with records that others lack."""
        return self.counts is not None and self.position == self.size

    @property
    def is_whole(self) -> bool:
        """Returns whether all numbers are here, at the version of the last record."""
        newest = max((chunk.version for chunk in self._chunks), default=self.number)
        return self.has_all and newest <= self.number

    def ask(self, now: float) -> Send:
        """Asks for the numbers that come next."""
        request = CopyRequest(self.position)
        self._request = PendingRequest(request, now)
        return Send(self.source, request)

    def tick(self, now: float) -> list[Send]:
        """Asks again where no answer has come for long."""
        request = self._request
        if request is None or not request.retry(now, self._retry_s):
            return []
        return [Send(self.source, request.message)]

    def rejection_reason(self, chunk: CopyChunk, payload: object) -> str | None:
        """Returns why a chunk is malformed."""
        vectors = max(1, len(_vectors(chunk.counts or self.counts)))
        expected = (chunk.stop - chunk.start) * vectors * self._number_bytes
        if not 0 <= chunk.start <= chunk.stop <= self.size:
            return f"numbers {chunk.start} to {chunk.stop} of {self.size}"
        if max(payload_bytes(payload), 0) != expected:
            return f"numbers {chunk.start} to {chunk.stop} in {payload_bytes(payload)} bytes, not {expected}"
        return None

    def take(self, chunk: CopyChunk, payload: object, now: float) -> list[WriteChunk | Send]:
        """Takes the chunk that was asked for; any other one, and one that lacks a record, changes nothing."""
        is_next = self._request is not None and chunk.start == self.position
        if not is_next or chunk.version < self.number or (self.counts is None and chunk.counts is None):
            return []
        if self.counts is None and chunk.counts is not None:
            self.counts, self.number = chunk.counts, chunk.counts.version
        self._request = None
        if chunk.start == self.size:
            self.is_confirmed, names = True, _vectors(self.counts)
            return [WriteChunk(0, 0, payload, names)] if names and not self.size else []
        self._chunks.append(_Chunk(chunk.start, chunk.stop, chunk.version))
        self.position = chunk.stop
        return [WriteChunk(chunk.start, chunk.stop, payload, _vectors(self.counts)), self.ask(now)]

    def record(self, number: int) -> tuple[Range, ...]:
        """Counts the next record. Returns the ranges of numbers that have arrived and do not hold it."""
        assert number == self.number + 1, (number, self.number)
        self.number = number
        lacking: list[Range] = []
        merged: list[_Chunk] = []
        for chunk in self._chunks:
            if chunk.version < number:
                chunk.version = number
                if lacking and lacking[-1][1] == chunk.start:
                    lacking[-1] = (lacking[-1][0], chunk.stop)
                else:
                    lacking.append((chunk.start, chunk.stop))
            if merged and merged[-1].version == chunk.version:
                merged[-1].stop = chunk.stop
            else:
                merged.append(chunk)
        self._chunks = merged
        return tuple(lacking)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        at = 0
        for chunk in self._chunks:
            assert at == chunk.start < chunk.stop, self._chunks
            at = chunk.stop
        assert at == self.position <= self.size, (at, self.position, self.size)
        assert self.counts is None or self.counts.version <= self.number, (self.counts, self.number)
        assert not self.is_confirmed or self.position == self.size, self.position


def _vectors(counts: ShardCounts | None) -> tuple[str, ...]:
    """Returns the vectors that a source names."""
    return () if counts is None or counts.command is None else counts.command.vectors


def chunk_from(to: str, request: CopyRequest, size: int, version: int, counts: ShardCounts) -> Send:
    """Answers a request with the next numbers as they are now, at this version, of `size` in all."""
    start = min(request.start, size)
    stop = min(start + CHUNK, size)
    span = Span(ALL_VECTORS, start, stop) if stop > start else None
    return Send(to, CopyChunk(start, stop, version, None if start else counts), span)
