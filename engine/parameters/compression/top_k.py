"""Top-k sparsification: the numbers of a gradient that are largest, and their places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.compression.compressor import (
    BadMessage,
    Compressor,
    GatherEncoder,
    Shape,
    bounds,
    bytes_of,
)
from partita.engine.parameters.optimizers.settings import Range
from partita.engine.parameters.optimizers.update_loop import sum_of_squares
from partita.engine.parameters.vector import Vector
from partita.layers.checks import check_fields, check_whole

VELOCITY: Final = "velocity"
_QUARTER: Final = 0.25
_INDEX_BYTES: Final = 4
_UP_TO_ONE: Final[Range] = {"below": math.nextafter(1.0, 2.0), "rule": "; give one above 0 and up to 1"}


@dataclass(frozen=True)
class TopK(Compressor):
    """Sends the largest numbers of each tensor, by their absolute value: deep gradient compression.

    With g the replica's gradient: u <- momentum * u + g, v <- v + u; the k largest numbers of v are sent, and
    become zero in v and (*momentum factor masking*) in u. So the velocity is that of the sum that was not
    sent, as if no number had been late (*momentum correction*): use it with `SGD`, not with `Momentum`. A
    tensor of n numbers sends k = max(1, ceil(share * n)). Source: Lin, Han, Mao, Wang and Dally, "Deep
    gradient compression", ICLR 2018, section 3 and algorithm 4.

    A message has 4 + `item_bytes` bytes for each of its numbers.

    Args:
        share: of the numbers that is sent, above 0 and up to 1.
        momentum: from 0 to below 1, of the velocity that each replica keeps.
        clip_norm: above 0. Before it is added, the part's gradient is scaled down to the norm clip_norm /
            sqrt(replicas) where it is larger (*local clipping*); None: no clipping.
        warm_up: steps in which the share falls by quarters: 1/4, 1/16, ... down to `share`, each for equally
            many steps. None: there is none.
        feedback: see `Compressor`; without it there is no momentum either.

    Raises:
        ValueError: a setting is out of range.
    """

    share: float
    momentum: float = 0.0
    clip_norm: float | None = field(default=None, kw_only=True)
    warm_up: int | None = field(default=None, kw_only=True)

    _ranges: ClassVar[Mapping[str, Range]] = {**Compressor._ranges, "share": _UP_TO_ONE}
    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **dict.fromkeys(("k", "ratio", "density"), ("share",)),
        "sparsity": "give the share that is sent, 1 less the sparsity",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_up is not None:
            check_fields(self, check_whole, "warm_up")
        if self.momentum and not self.feedback:
            raise ValueError(
                f"TopK: momentum is {self.momentum} without feedback, and a velocity needs what was not "
                "sent; leave one of the two out"
            )

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return (*super().state_names, *((VELOCITY,) if self.momentum else ()))

    def share_at(self, step: int) -> float:
        """Returns the share that is sent in a step of the run, counted from 0."""
        if self.warm_up is None or step >= self.warm_up or self.share >= _QUARTER:
            return self.share
        stages = math.ceil(math.log(self.share, _QUARTER))
        return float(max(self.share, _QUARTER ** (1 + step * stages // self.warm_up)))

    @override
    def stage(self, step: int) -> float:
        return self.share_at(step)

    def counts(self, shapes: Sequence[Shape], step: int) -> list[int]:
        """Returns the numbers that each tensor sends in a step."""
        share = self.share_at(step)
        sizes = [math.prod(shape) for shape in shapes]
        return [min(n, max(1, math.ceil(share * n))) for n in sizes]

    @override
    def n_bytes(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        return sum(self.counts(shapes, step)) * (item_bytes + _INDEX_BYTES)

    @override
    def encoder(self, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> TopKEncoder:
        return TopKEncoder(self, shapes, dtype)


class TopKEncoder(GatherEncoder):
    """State of one range: what was not sent, and the velocity."""

    def __init__(self, settings: TopK, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> None:
        super().__init__(settings.state_names, shapes, dtype)
        self._settings = settings
        self._bounds = bounds(self.shapes)

    @override
    def _encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        gradient = self._clipped(gradient, replicas)
        if VELOCITY not in self.state:
            super()._encode(gradient, message, step=step, turn=turn, replicas=replicas)
            return
        velocity = self.state[VELOCITY] * self.dtype.type(self._settings.momentum) + gradient
        super()._encode(velocity, message, step=step, turn=turn, replicas=replicas)
        _, places = self._numbers(message, step)
        velocity[places] = 0
        self._next[VELOCITY] = velocity

    def _clipped(self, gradient: Vector, replicas: int) -> Vector:
        most = self._settings.clip_norm
        if most is None:
            return gradient
        norm = math.sqrt(sum_of_squares(gradient))
        allowed = most / math.sqrt(replicas)
        return gradient * self.dtype.type(allowed / norm) if norm > allowed else gradient

    @override
    def write(self, vector: Vector, message: Vector, *, step: int) -> None:
        values, places = self._numbers(message, step)
        at = 0
        for (start, stop), k in zip(self._bounds, self._settings.counts(self.shapes, step), strict=True):
            if not k:
                continue
            sizes = np.abs(vector[start:stop])
            largest = np.argpartition(sizes, stop - start - k)[stop - start - k :]
            places[at : at + k] = np.sort(largest) + start
            at += k
        values[:] = vector[places]

    @override
    def add(self, message: Vector, vector: Vector, *, step: int) -> None:
        values, places = self._numbers(message, step)
        if places.size and (int(places[-1]) >= self.size or np.any(places[1:] <= places[:-1])):
            raise BadMessage(f"its places are not ascending numbers below {self.size:,}")
        vector[places] += values

    def _numbers(self, message: Vector, step: int) -> tuple[Vector, npt.NDArray[np.uint32]]:
        """The values and the places of a message."""
        k = sum(self._settings.counts(self.shapes, step))
        return message[:k], bytes_of(message, k * self.dtype.itemsize, k, np.uint32)
