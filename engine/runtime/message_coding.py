"""The compressors of a part: their state for each range of its gradient, which this replica alone has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.compression import BadMessage, Compressor, Encoder, Shape, encoder_of
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Span
from partita.engine.protocol.program_effects import DecodeMessages, EncodeMessage
from partita.engine.runtime.task import CannotGoOn

Numbers: TypeAlias = Callable[[Span], Vector]
"""Returns the array of a range of a vector, `[n]`."""


class NoMessage(CannotGoOn):
    """A replica has sent what is no message of the compressor."""


class MessageCoding:
    """Encoders by range. What a step changes in them counts from `commit` on."""

    def __init__(self, dtype: npt.DTypeLike, *, held: Mapping[str, Vector] | None = None) -> None:
        """Creates no encoder: they come with the first messages.

        Args:
            dtype: of the numbers.
            held: the state vectors to begin with, `[n]` each of the part, where all replicas keep theirs;
                None: a replica may come into a view without, and what all share begins with the view.
        """
        self._dtype: Final = np.dtype(dtype)
        self._held: Final = held
        self._encoders: dict[tuple[Compressor, Span], Encoder] = {}

    def encode(self, effect: EncodeMessage, numbers: Numbers) -> None:
        """Writes the message of a step, which counts from its `commit` on."""
        encoder = self._encoder(effect.compress, effect.source, effect.shapes)
        encoder.begin(effect.view if self._held is None else 0)
        numbers(effect.whole)  # has room for all of them before one arrives
        gradient, message = numbers(effect.source), numbers(effect.target)
        with np.errstate(all="ignore"):  # an update looks whether its gradient is finite
            encoder.encode(gradient, message, step=effect.step, turn=effect.turn, replicas=effect.members)

    def decode(self, effect: DecodeMessages, numbers: Numbers) -> None:
        """Reads the messages of all replicas.

        Raises:
            NoMessage: one of them is none.
        """
        encoder = self._encoder(effect.compress, effect.target, effect.shapes)
        items = effect.compress.items(effect.shapes, self._dtype.itemsize, step=effect.step, turn=effect.turn)
        messages = numbers(effect.source).reshape(-1, items) if items else np.zeros((1, 0), self._dtype)
        try:
            with np.errstate(all="ignore"):
                encoder.decode(messages, numbers(effect.target), step=effect.step, turn=effect.turn)
        except BadMessage as error:
            raise NoMessage(
                f"step {effect.step} cannot be completed: {error}, as {effect.compress} makes it; look at "
                "the host of that replica"
            ) from error

    def commit(self, step: int) -> None:
        """Makes the state of all encoders that after a step, see `Encoder.commit`."""
        for encoder in self._encoders.values():
            encoder.commit(step)

    def _encoder(self, compress: Compressor, span: Span, shapes: tuple[Shape, ...]) -> Encoder:
        key = compress, span
        if key not in self._encoders:
            encoder = self._encoders[key] = encoder_of(compress, shapes, self._dtype)
            part = slice(span.start, span.stop)
            encoder.restore({name: vector[part] for name, vector in (self._held or {}).items()})
        return self._encoders[key]

    def state(self, names: Sequence[str], size: int) -> dict[str, Vector]:
        """Returns copies of the state vectors of these names, `[size]` each of the part, as they are now."""
        held = self._held or {}
        found = {name: np.zeros(size, self._dtype) for name in names}
        for name in found.keys() & held.keys():
            found[name][:] = held[name]
        for (_, span), encoder in self._encoders.items():
            for name in found.keys() & encoder.state.keys():
                found[name][span.start : span.stop] = encoder.state[name]
        return found
