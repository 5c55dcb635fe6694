"""Compressed pushes: a part writes the message of a gradient in flight, and a shard reads it.

What a message lacks stays in the part's encoder, and goes into its next message for the same shard. A
gradient in flight becomes what its message means, so a part applies over fetched values what the shard will
apply, to the bit. Rows of sparse tables are sent as they are. The module must not know when anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.compression import Compressor, Encoder, encoder_of
from partita.engine.parameters.layout import Layout, SharedRange
from partita.engine.parameters.row_payload import Piece, RowPiece, decode
from partita.engine.parameters.slots import Table, clipped, outside
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.message_form import MessageForm
from partita.engine.runtime.devices import Device
from partita.engine.transport.payload import Payload


def form_of(compress: Compressor, layout: Layout, shared: SharedRange, item_bytes: int) -> MessageForm:
    """Returns the form of the pushes of a machine to a shard."""
    shapes = layout.tensors(shared.machine, shared.machine_start, shared.machine_stop)
    return MessageForm(compress.alone, shapes, item_bytes)


class PushMessages:
    """The messages of one part's pushes, and what they lacked."""

    def __init__(
        self,
        forms: Mapping[int, MessageForm],
        tables: Sequence[Table],
        device: Device,
        held: Mapping[int, Mapping[str, Vector]] | None = None,
    ) -> None:
        """Nothing is in flight.

        Args:
            forms: of the range of each shard, by its start in the machine's vector.
            tables: sparse ones of the machine, of which rows are sent beside the messages.
            device: of the gradients.
            held: what earlier messages have lacked: for each range, by its start, the encoder's state
                vectors of all its numbers; None: nothing.
        """
        self._held: Final = held or {}
        self._before: dict[int, dict[str, Vector]] = {}  # the states before the last messages
        self._forms, self._tables, self._device = forms, tuple(tables), device
        self._encoders: dict[int, Encoder] = {}
        self._sent: dict[int, Vector] = {}

    def compress(self, span: slice, step: int, gradient: Vector) -> None:
        """Writes the message of a range of a gradient, which becomes what the message means.

        Args:
            span: the range of a shard in the machine's vector.
            step: the part's last one in the gradient.
            gradient: `[n]`, of the machine; changed in the range, but for its tables.
        """
        parts = list(outside(self._tables, span.start, span.stop))
        numbers = [self._device.given(gradient[part]) for part in parts]
        wanted = np.concatenate(numbers) if numbers else np.zeros(0)
        form, encoder = self._forms[span.start], self._encoder(span)
        self._before[span.start] = dict(encoder.state)
        message = np.empty(form.items(step), wanted.dtype)
        with np.errstate(all="ignore"):  # the shard's update looks whether a gradient is finite
            encoder.encode(wanted, message, step=step, turn=0, replicas=1)
            encoder.commit(step)
            encoder.decode(message[None], wanted, step=step, turn=0)
        self._sent[span.start], at = message, 0
        for part in parts:
            stop = at + part.stop - part.start
            self._device.copy(gradient[part], self._device.taken(wanted[at:stop]))
            at = stop

    def _encoder(self, span: slice) -> Encoder:
        if span.start not in self._encoders:
            form = self._forms[span.start]
            encoder = encoder_of(form.compress, form.shapes, np.dtype(f"f{form.item_bytes}"))
            parts = [
                slice(part.start - span.start, part.stop - span.start)
                for part in outside(self._tables, span.start, span.stop)
            ]
            held = self._held.get(span.start, {}).items()
            encoder.restore({name: np.concatenate([whole[part] for part in parts]) for name, whole in held})
            self._encoders[span.start] = encoder
        return self._encoders[span.start]

    def unsent(self, span: slice, *, before: bool) -> list[Vector]:
        """Returns the state vectors of a range's encoder, outside of tables; nobody writes to them.

        `before`: as they were before the last message.
        """
        encoder, form = self._encoder(span), self._forms[span.start]
        state = self._before.get(span.start, encoder.state) if before else encoder.state
        return [state[name] for name in form.compress.state_names]

    def message(self, span: slice) -> Vector:
        """Returns the last message of a range; nobody writes to it."""
        return self._sent[span.start]


class PushReader:
    """Reads the pushes to one shard, compressed or not. Used by one thread."""

    def __init__(
        self, forms: Mapping[int, MessageForm], tables: Sequence[Table], dtype: npt.DTypeLike
    ) -> None:
        """Has read nothing.

        Args:
            forms: of the messages to the range of each machine, by its start in the shard's vector; none
                where pushes are whole gradients.
            tables: sparse ones of the shard.
            dtype: of the numbers.
        """
        self._forms, self._tables = forms, tuple(tables)
        self._dtype: Final[np.dtype[Any]] = np.dtype(dtype)
        self._decoders: dict[int, Encoder] = {}

    def pieces(self, payload: Payload, start: int, stop: int, *, step: int) -> Iterator[Piece]:
        """Yields the numbers of a push to a range of the shard's vector, and rows of its tables.

        Args:
            payload: of the push.
            start: of the range.
            stop: of the range.
            step: as which the push is compressed.

        Raises:
            ValueError: the payload is none of this range; nothing was yielded before.
        """
        form, tables = self._forms.get(start), clipped(self._tables, start, stop)
        if not tables and form is None:
            at = start
            for numbers in payload.numbers(self._dtype):
                yield at, numbers
                at += numbers.size
            return
        items = None if form is None else form.items(step)
        if not tables:
            message = np.empty(items or 0, self._dtype)
            payload.copy_into(message)
            yield from self._read(start, stop, message, step=step)
            return
        found = decode(payload.numbers(np.uint8), start, stop, tables, self._dtype, message=items)
        if form is not None:
            first = next(found)
            assert not isinstance(first, RowPiece), first
            yield from self._read(start, stop, first[1], step=step)
        yield from found

    def is_finite(self, payload: Payload, start: int, stop: int, *, step: int) -> bool:
        """Returns whether all numbers of a push are finite. Raises ValueError, see `pieces`."""
        found = self.pieces(payload, start, stop, step=step)
        return all(bool(np.isfinite(piece[-1]).all()) for piece in found)

    def _read(self, start: int, stop: int, message: Vector, *, step: int) -> Iterator[tuple[int, Vector]]:
        """Yields what a message means. Raises BadMessage before that, where it means nothing."""
        form = self._forms[start]
        decoder = self._decoders.get(start)
        if decoder is None:
            decoder = self._decoders[start] = encoder_of(form.compress, form.shapes, self._dtype)
        numbers = np.empty(decoder.size, self._dtype)
        with np.errstate(all="ignore"):
            decoder.decode(message[None], numbers, step=step, turn=0)
        for part in outside(self._tables, start, stop):
            yield part.start, numbers[: part.stop - part.start]
            numbers = numbers[part.stop - part.start :]
