"""Collection of what compressed pushes lacked, for a shard's file: that of just the pushes in the file.

A file has a shard's numbers as they are when it is asked for. Each part is then asked for what it has kept
after its last push in them. Until it has answered, its next push is not acknowledged: so it makes no further
one, and still has what was asked for. Nobody waits for a part that does not answer. The book must not know
what compressors keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from partita.engine.protocol.checkpoint_messages import AskUnsent, Unsent
from partita.engine.protocol.events import Persist, Received, Refuse, Send, payload_bytes, stream_of
from partita.engine.protocol.names import host_and_fragment
from partita.engine.protocol.shard_effects import KeepUnsent, ShardEffect, ShardRanges, WriteFile

ASK_S: Final = 1.0
"""Seconds after which a part is asked again."""

GIVE_UP_S: Final = 10.0
"""Seconds after which a file is written without what a part has kept, which may be dead."""


class UnsentBook:
    """Collects what parts have kept, for one file at a time."""

    def __init__(self, own: ShardRanges) -> None:
        """Collects nothing yet; `own` has the forms of messages."""
        self._own: Final = own
        self._checkpoint: int | None = None  # whose file is not complete
        self._waits: Final[dict[str, AskUnsent]] = {}  # by stream
        self._held: Final[dict[str, Send]] = {}  # acknowledgements, by stream
        self._since = self._asked_at = 0.0

    def begin(self, order: Persist, seen: Mapping[str, tuple[int, int]], now: float) -> list[ShardEffect]:
        """Begins a file, with the last push of each stream in it: (incarnation, sequence)."""
        self._checkpoint, self._since, self._asked_at = order.checkpoint, now, now
        me = self._own.incarnation, order.checkpoint
        for stream, (incarnation, sequence) in seen.items():
            if incarnation >= 0:
                fragment = host_and_fragment(stream)[1]
                self._waits[stream] = AskUnsent(*me, incarnation, sequence + 1, fragment)
        return [*self._asks(), *self._complete()]

    def hold(self, stream: str, acknowledgement: Send) -> list[ShardEffect]:
        """Returns an acknowledgement, unless its part has to answer first."""
        if stream not in self._waits:
            return [acknowledgement]
        self._held[stream] = acknowledgement
        return []

    def take(self, event: Received, answer: Unsent) -> list[ShardEffect]:
        """Returns the effects of an answer, or the refusal of one that is malformed."""
        stream = stream_of(event)
        asked = self._waits.get(stream)
        if asked is None or asked.checkpoint != answer.checkpoint:
            return []  # a duplicate
        number, found = self._own.number_of(stream), payload_bytes(event.payload)
        form = self._own.messages.get(number)
        wanted = found if form is None else form.state_bytes
        if (answer.incarnation, answer.pushes) != (asked.incarnation, asked.pushes) or found != wanted:
            return [Refuse(event.sender, f"what it has kept has {wanted} bytes after {asked.pushes} pushes")]
        kept = KeepUnsent(stream, self._own.span("unsent", number), event.payload)
        return [kept, *self._release(stream)]

    def tick(self, now: float) -> list[ShardEffect]:
        """Asks again, and gives up parts that have not answered for too long."""
        if not self._waits:
            return []
        if now - self._since >= GIVE_UP_S:
            return [effect for stream in [*self._waits] for effect in self._release(stream)]
        if now - self._asked_at < ASK_S:
            return []
        self._asked_at = now
        return self._asks()

    def _asks(self) -> list[ShardEffect]:
        return [Send(host_and_fragment(stream)[0], asked) for stream, asked in self._waits.items()]

    def _release(self, stream: str) -> list[ShardEffect]:
        """Waits for a stream no more."""
        del self._waits[stream]
        held = self._held.pop(stream, None)
        return [*self._complete(), *([] if held is None else [held])]

    def _complete(self) -> list[ShardEffect]:
        if self._waits or self._checkpoint is None:
            return []
        written, self._checkpoint = self._checkpoint, None
        return [WriteFile(written)]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self._held.keys() <= self._waits.keys(), (self._held, self._waits)
        assert not self._waits or self._checkpoint is not None, self._waits
