"""Random numbers of a transform: functions of the seed, the epoch and the example."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.counted import bits_of

_UNIT: Final = 2.0**-53


class Draws:
    """Counted random numbers for the examples of a minibatch.

    They are the same whichever worker makes the minibatch, and for any number of replicas. Each call names
    a `stream`: calls with different streams have numbers that do not depend on each other.

    Attributes:
        epoch: how often the examples were seen before.
        examples: the number of each example in the data, `[count]`.
    """

    def __init__(self, seed: int, epoch: int, examples: npt.NDArray[np.int64]) -> None:
        self.epoch: Final = epoch
        self.examples: Final = examples
        self._seed: Final = seed

    def bits(self, stream: int | str = 0) -> npt.NDArray[np.uint64]:
        """Returns 64 random bits for each example, `[count]`."""
        number = int.from_bytes(stream.encode()[-8:], "little") if isinstance(stream, str) else stream
        return bits_of(self._seed, number, self.epoch, self.examples)

    def uniform(self, stream: int | str = 0) -> npt.NDArray[np.float64]:
        """Returns a number for each example, evenly distributed from 0 to less than 1: `[count]`."""
        return np.asarray((self.bits(stream) >> np.uint64(11)) * _UNIT, np.float64)

    def integers(self, high: int, stream: int | str = 0) -> npt.NDArray[np.int64]:
        """Returns a whole number for each example, from 0 to less than `high`: `[count]`."""
        return np.asarray(self.uniform(stream) * high, np.int64)

    def generator(self, place: int, stream: int | str = 0) -> np.random.Generator:
        """Returns a generator of NumPy for the example at this place of the minibatch."""
        return np.random.Generator(np.random.Philox(key=[int(self.bits(stream)[place]), 0]))


Batch = dict[str, npt.NDArray[Any]]
"""A minibatch: `[count, *shape]` by field."""
