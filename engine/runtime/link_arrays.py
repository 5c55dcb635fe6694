"""The arrays of a part with links to shards: parameters that arrive, gradients that leave."""

from __future__ import annotations

from typing import Any, Protocol

from partita.engine.files.access import NotesPushes
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Span
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.parameter_links import ClearGradient, SavePushRecord
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.part_body import Arrays
from partita.engine.runtime.updates import GradientAccumulation
from partita.engine.transport.payload import Payload, PayloadLike, Steady


class GradientUpdates(Protocol):
    """Updates that collect gradients for the shards."""

    @property
    def in_flight(self) -> Vector:
        """The gradient that is being sent, `[n]`."""

    def swap_buffers(self, span: slice) -> None:
        """Makes the collected gradient the one in flight."""


class LinkArrays(Arrays):
    """Carries out the effects of links."""

    def __init__(self, vectors: Vectors, updates: GradientUpdates, log: NotesPushes | None = None) -> None:
        """Stages nothing yet.

        Args:
            vectors: of the part.
            updates: collect its gradients.
            log: of acknowledged pushes; None where no link notes them.
        """
        self._vectors, self._updates, self._log = vectors, updates, log
        self._staged: dict[int, Payload] = {}

    def carry_out(self, effect: Any) -> None:
        """Carries out one effect of the part's machine."""
        match effect:
            case Stage(span=span, payload=payload):
                assert isinstance(payload, Payload)
                if span.start in self._staged:
                    self._staged[span.start].release()
                self._staged[span.start] = payload
            case Install(span=span):
                self._install(effect)
            case SwapBuffers(span=span):
                self._updates.swap_buffers(slice(span.start, span.stop))
            case ClearGradient(span=span):
                assert isinstance(self._updates, GradientAccumulation), effect
                self._updates.clear(slice(span.start, span.stop))
            case SavePushRecord(shard=shard, record=record):
                assert self._log is not None, effect
                self._log.note(shard, record)
            case _:
                raise AssertionError(effect)

    def _install(self, effect: Install) -> None:
        own = slice(effect.span.start, effect.span.stop)
        payload = self._staged.pop(own.start)
        payload.copy_into(self._vectors.arriving(own))
        payload.release()
        self._vectors.changed(own)
        if isinstance(self._updates, GradientAccumulation):
            self._updates.install(own, effect.unheld, effect.updates)

    def payload(self, span: Span) -> PayloadLike:
        """Returns the numbers of a gradient in flight."""
        found = self._vectors.device.given(self._updates.in_flight[span.start : span.stop])
        # Nothing writes to an accumulated gradient in flight before the shard has acknowledged it; to
        # that of an evaluation, something may as soon as the evaluation is over.
        return Steady(found) if isinstance(self._updates, GradientAccumulation) else found

    def close(self) -> None:
        """Closes the file of acknowledged pushes."""
        if self._log is not None:
            self._log.close()
