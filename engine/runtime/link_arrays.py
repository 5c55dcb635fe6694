"""The arrays of a part with links to shards: parameters that arrive, gradients that leave."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from partita.engine.files.access import NotesPushes
from partita.engine.parameters.row_payload import RowPiece, decode
from partita.engine.parameters.slots import clipped
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Span
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.parameter_links import (
    UNSENT,
    UNSENT_BEFORE,
    ClearGradient,
    SavePushRecord,
)
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.changes import PushedChanges
from partita.engine.runtime.part_body import Arrays
from partita.engine.runtime.updates import GradientAccumulation
from partita.engine.transport.payload import Payload, PayloadLike, Steady


class GradientUpdates(Protocol):
    """Updates that collect gradients for the shards."""

    @property
    def in_flight(self) -> Vector:
        """The gradient that is being sent, `[n]`."""

    def swap_buffers(self, span: slice, step: int = 0) -> None:
        """Makes the collected gradient, up to a step, the one in flight."""


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
        self._staged: dict[int, tuple[Payload, bool]] = {}  # and whether it has changed rows alone

    def carry_out(self, effect: Any) -> None:
        """Carries out one effect of the part's machine."""
        match effect:
            case Stage(span=span, payload=payload, has_rows=has_rows):
                assert isinstance(payload, Payload)
                if span.start in self._staged:
                    self._staged[span.start][0].release()
                self._staged[span.start] = payload, has_rows
            case Install(span=span):
                self._install(effect)
            case SwapBuffers(span=span, step=step):
                self._updates.swap_buffers(slice(span.start, span.stop), step)
            case ClearGradient(span=span):
                assert isinstance(self._updates, GradientAccumulation | PushedChanges), effect
                self._updates.clear(slice(span.start, span.stop))
            case SavePushRecord(stream=stream, record=record):
                assert self._log is not None, effect
                self._log.note(stream, record)
            case _:
                raise AssertionError(effect)

    def _install(self, effect: Install) -> None:
        own = slice(effect.span.start, effect.span.stop)
        payload, has_rows = self._staged.pop(own.start)
        if has_rows:
            self._install_rows(own, payload)
        else:
            if isinstance(self._updates, PushedChanges):
                self._updates.keep(own)
            payload.copy_into(self._vectors.arriving(own))
            self._vectors.changed(own)
        payload.release()
        if isinstance(self._updates, GradientAccumulation):
            self._updates.install(own, effect.unheld, effect.updates, effect.scales)
        elif isinstance(self._updates, PushedChanges):
            self._updates.install(own, effect.unheld)

    def _install_rows(self, own: slice, payload: Payload) -> None:
        """Writes the rows that have changed since the last values came, over those."""
        updates, vectors = self._updates, self._vectors
        assert isinstance(updates, GradientAccumulation), own
        updates.restore(own)
        tables = clipped(vectors.tables, own.start, own.stop)
        for piece in decode(payload.numbers(np.uint8), own.start, own.stop, tables, vectors.dtype):
            if isinstance(piece, RowPiece):
                span = slice(piece.table.start, piece.table.stop)
                ((table, first, _),) = updates.rows_in(span)
                table.write(piece.rows + first, piece.values)
                continue
            start, numbers = piece
            span = slice(start, start + numbers.size)
            vectors.arriving(span)[:] = numbers
            vectors.changed(span)

    def payload(self, span: Span) -> PayloadLike:
        """Returns the numbers of a gradient in flight, or what messages have lacked."""
        if span.vector in (UNSENT, UNSENT_BEFORE):
            assert isinstance(self._updates, GradientAccumulation | PushedChanges), span
            assert self._updates.messages is not None, span
            part, before = slice(span.start, span.stop), span.vector == UNSENT_BEFORE
            return [*self._updates.messages.unsent(part, before=before)]
        if isinstance(self._updates, GradientAccumulation):
            pushed = self._updates.pushed(slice(span.start, span.stop))
            return pushed if isinstance(pushed, list) else Steady(pushed)
        part = slice(span.start, span.stop)
        # Nothing writes to what has accumulated, in flight, before the shard has acknowledged it; to the
        # gradient of an evaluation, something may as soon as the evaluation is over.
        if isinstance(self._updates, PushedChanges):
            return Steady(self._updates.pushed(part))
        return self._vectors.device.given(self._updates.in_flight[part])

    def close(self) -> None:
        """Closes the file of acknowledged pushes."""
        if self._log is not None:
            self._log.close()
