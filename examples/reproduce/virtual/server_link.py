"""The link of one server in virtual time: streams of chunks take turns, one chunk each.

A message of one chunk has the link to itself until it has passed. Messages of many chunks pass at once, each
with its share of the link. Which messages there are is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from partita.engine.protocol.exchange.algorithm import Link


@dataclass
class _Stream:
    """A message that passes: the chunks that are left, and what happens when it has arrived."""

    chunks: int
    arrived: Callable[[], None]


class ServerLink:
    """A link through which the messages of all replicas pass.

    Args:
        link: its latency, which each message has once, and its bandwidth.
        chunk_bytes: of a chunk; the last one of a message counts as a whole one.
        now: returns virtual seconds.
        after: calls a function after so many seconds.
    """

    def __init__(
        self,
        link: Link,
        chunk_bytes: int,
        *,
        now: Callable[[], float],
        after: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._link, self._chunk_bytes, self._now, self._after = link, chunk_bytes, now, after
        self._chunk_s = chunk_bytes * link.s_per_byte
        self._streams: deque[_Stream] = deque()  # in the order of their turns
        self._turn_at = 0.0  # when the turn of the first one began
        self._changes = 0

    def send(self, n_bytes: float, arrived: Callable[[], None]) -> None:
        """Sends a message; calls `arrived` when its last chunk is there."""
        self._advance()
        if not self._streams:
            self._turn_at = self._now()
        self._streams.append(_Stream(max(1, -int(-n_bytes // self._chunk_bytes)), arrived))
        self._expect()

    def _advance(self) -> None:
        """Takes the turns that are over; no stream ends in them."""
        if not self._streams:
            return
        turns = int((self._now() - self._turn_at) / self._chunk_s + 1e-6)
        self._turn_at += turns * self._chunk_s
        rounds, turns = divmod(turns, len(self._streams))
        for n, stream in enumerate(self._streams):
            stream.chunks -= rounds + (n < turns)
        self._streams.rotate(-turns)

    def _expect(self) -> None:
        """Expects the end of the stream that ends next, unless another one begins before."""
        self._changes += 1
        change, streams = self._changes, [*self._streams]
        fewest = min(stream.chunks for stream in streams)
        first = next(n for n, stream in enumerate(streams) if stream.chunks == fewest)
        ends_at = self._turn_at + ((fewest - 1) * len(streams) + first + 1) * self._chunk_s

        def ended() -> None:
            if change == self._changes:
                self._end(streams[first])

        self._after(max(ends_at - self._now(), 0.0), ended)

    def _end(self, stream: _Stream) -> None:
        self._advance()
        assert stream.chunks == 0, stream
        self._streams.remove(stream)
        self._after(self._link.latency_s, stream.arrived)
        if self._streams:
            self._expect()
