"""Messages in which some tensors are sent as they are, behind what a compressor makes of the others.

Running averages are such tensors: one of which numbers are late, or multiplied by a velocity, is no average.
The compressor, also one of a user's own, sees the other tensors alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.compression.compressor import Compressor, Encoder, Exact, Shape, bounds
from partita.engine.parameters.vector import Vector


def encoder_of(compress: Compressor, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> Encoder:
    """Returns the state of a range in its initial values, whether some of its tensors are `Exact` or none."""
    if any(isinstance(shape, Exact) for shape in shapes):
        return PartlyExact(compress, shapes, dtype)
    return compress.encoder(shapes, dtype)


class PartlyExact(Encoder):
    """State of a range of which some tensors are `Exact`: that of the others, and zeros in their places."""

    def __init__(self, compress: Compressor, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> None:
        super().__init__((), shapes, dtype)
        self._encoder = compress.encoder(compress.encoded(shapes), dtype)
        self._exact = np.zeros(self.size, np.bool_)
        for shape, (start, stop) in zip(shapes, bounds(shapes), strict=True):
            self._exact[start:stop] = isinstance(shape, Exact)
        self._n_exact = int(self._exact.sum())
        self._meant = np.zeros(self._encoder.size, self.dtype)  # an encoder writes it over several rounds
        self._spread()

    def _spread(self) -> None:
        """Makes the state vectors that of the encoder, each number at its place."""
        for name, vector in self._encoder.state.items():
            self.state[name] = np.zeros(self.size, self.dtype)
            self.state[name][~self._exact] = vector

    @override
    def begin(self, view: int) -> None:
        self._encoder.begin(view)
        self._spread()

    @override
    def _encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        encoded, exact = self._split(message, turn)
        self._encoder.encode(gradient[~self._exact], encoded, step=step, turn=turn, replicas=replicas)
        if turn == 0:
            exact[:] = gradient[self._exact]

    @override
    def decode(self, messages: Vector, gradient: Vector, *, step: int, turn: int) -> None:
        encoded, exact = self._split(messages, turn)
        self._encoder.decode(encoded, self._meant, step=step, turn=turn)
        gradient[~self._exact] = self._meant
        if turn == 0:
            total = np.zeros(self._n_exact, self.dtype)
            for one in exact:
                total += one
            gradient[self._exact] = total

    def _split(self, messages: Vector, turn: int) -> tuple[Vector, Vector]:
        """Splits messages into the encoder's and the exact numbers, which go with the first round."""
        n = messages.shape[-1] - (0 if turn else self._n_exact)
        return messages[..., :n], messages[..., n:]

    @override
    def restore(self, state: Mapping[str, Vector]) -> None:
        self._encoder.restore({name: vector[~self._exact] for name, vector in state.items()})
        self._spread()

    @override
    def commit(self, step: int) -> None:
        super().commit(step)
        self._encoder.commit(step)
        self._spread()
