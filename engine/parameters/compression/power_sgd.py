"""Low-rank gradients by one step of a power iteration, whose two factors are added up over all replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.compression.compressor import (
    RESIDUAL,
    Compressor,
    Encoder,
    GatherEncoder,
    Kind,
    Shape,
    bounds,
)
from partita.engine.parameters.vector import Vector

Matrix: TypeAlias = npt.NDArray[Any]

WARM_START: Final = "warm_start"
"""The state vector that has the last Q."""

_SEED: Final = 20191
_SMALLEST: Final = 1e-12
"""Norm, in float64, below which a column adds nothing to those before it."""


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Sends each matrix M as P Q' of low rank, with one step of a power iteration from the last Q.

    P = M Q is added up over all replicas and made orthonormal; then Q = M' P is added up, and P Q' is the
    gradient. A tensor of more than two axes is a matrix of its first axis; one that two factors do not make
    shorter is sent as it is, with P. Since sums of messages mean the sums of gradients, any algorithm
    exchanges them, at a cost that does not grow with the replicas. A replica keeps M less its own P Q'.
    Source: Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019, algorithms 1 and 2.

    The messages of an n x m matrix have n * rank and m * rank numbers.

    Args:
        rank: of the factors, 1 or more.
        feedback: see `Compressor`.

    Raises:
        ValueError: a setting is out of range.
    """

    rank: int

    rounds: ClassVar[tuple[Kind, ...]] = ("sum", "sum")
    shared_state: ClassVar[tuple[str, ...]] = (WARM_START,)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return (*super().state_names, WARM_START)

    @property
    @override
    def alone(self) -> Compressor:
        return Factors(self.rank, feedback=self.feedback)

    @override
    def n_bytes(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        sizes = (piece.columns if turn else piece.first for piece in pieces_of(shapes, self.rank))
        return item_bytes * sum(sizes)

    @override
    def encoder(self, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> PowerEncoder:
        return PowerEncoder(self, shapes, dtype)


@dataclass(frozen=True)
class Factors(Compressor):
    """`PowerSGD` of one replica alone, which sends both factors of its own gradient in one message.

    Args:
        rank: of the factors.
        feedback: see `Compressor`.
    """

    rank: int

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return (*super().state_names, WARM_START)

    @override
    def n_bytes(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        return item_bytes * sum(piece.first + piece.columns for piece in pieces_of(shapes, self.rank))

    @override
    def encoder(self, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> FactorsEncoder:
        return FactorsEncoder(self, shapes, dtype)


class Piece(NamedTuple):
    """Numbers `[start, stop)` of a range, a tensor, as a matrix, and the rank of its factors (0: none)."""

    start: int
    stop: int
    n: int
    m: int
    rank: int

    @property
    def first(self) -> int:
        """Numbers in the first message."""
        return self.n * self.rank if self.rank else self.stop - self.start

    @property
    def columns(self) -> int:
        """Numbers in the second message."""
        return self.m * self.rank


def first_factors(pieces: Sequence[Piece], size: int, dtype: npt.DTypeLike) -> Vector:
    """Returns the first Q of each matrix, in the first places of its tensor: `[size]`, else zeros."""
    found, random = np.zeros(size, dtype), np.random.default_rng(_SEED)
    for one in pieces:
        found[one.start : one.start + one.columns] = random.standard_normal(one.columns)
    return found


def pieces_of(shapes: Sequence[Shape], rank: int) -> Iterator[Piece]:
    """Yields the tensors of a range as matrices, with the rank of their factors."""
    for shape, (start, stop) in zip(shapes, bounds(shapes), strict=True):
        n = shape[0] if shape else 1
        m = math.prod(shape[1:])
        used = min(rank, n, m)
        yield Piece(start, stop, n, m, used if (n + m) * used < n * m else 0)


class PowerEncoder(Encoder):
    """State of one range: what the factors lacked, and the last Q of each matrix in its first places, which
    all replicas have in common.
    """

    def __init__(self, settings: PowerSGD, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> None:
        super().__init__(settings.state_names, shapes, dtype)
        self._pieces = tuple(pieces_of(shapes, settings.rank))
        self._view = -1
        self.state[WARM_START] = first_factors(self._pieces, self.size, self.dtype)
        self._p: list[Matrix] = []
        self._wanted = np.zeros(0, self.dtype)

    @override
    def begin(self, view: int) -> None:
        """Begins a view with the same Q on all replicas: one that has just come has no other."""
        if view == self._view:
            return
        if self._view >= 0:
            self.state[WARM_START] = first_factors(self._pieces, self.size, self.dtype)
        self._view = view

    @override
    def _encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        if turn == 0:
            residual = self.state.get(RESIDUAL)
            self._wanted = gradient.copy() if residual is None else gradient + residual
            warm = self.state[WARM_START]
            for one, out in zip(self._pieces, self._split(message, 0), strict=True):
                matrix = self._matrix(self._wanted, one)
                q = warm[one.start : one.start + one.columns].reshape(one.m, one.rank)
                out[:] = (matrix @ q).reshape(-1) if one.rank else matrix.reshape(-1)
            return
        left = self._wanted
        for one, p, out in zip(self._pieces, self._p, self._split(message, 1), strict=True):
            matrix = self._matrix(left, one)
            if not one.rank:
                matrix.fill(0)
                continue
            q = matrix.T @ p
            out[:] = q.reshape(-1)
            matrix -= p @ q.T
        if RESIDUAL in self.state:
            self._next = {RESIDUAL: left}

    @override
    def decode(self, messages: Vector, gradient: Vector, *, step: int, turn: int) -> None:
        parts = self._split(messages[0], turn)
        if turn == 0:
            self._p = []
            for one, part in zip(self._pieces, parts, strict=True):
                self._p.append(_orthonormal(part.reshape(one.n, one.rank)) if one.rank else part[:0])
                if not one.rank:
                    gradient[one.start : one.stop] = part
            return
        warm = self._next[WARM_START] = np.zeros(self.size, self.dtype)
        for one, p, q in zip(self._pieces, self._p, parts, strict=True):
            warm[one.start : one.start + one.columns] = q
            if one.rank:
                _multiply(p, q.reshape(one.m, one.rank), self._matrix(gradient, one))

    def _split(self, message: Vector, turn: int) -> list[Vector]:
        """The part of each tensor in the message of a round."""
        sizes = [one.columns if turn else one.first for one in self._pieces]
        return np.split(message, np.cumsum(sizes)[:-1]) if sizes else []

    @staticmethod
    def _matrix(vector: Vector, one: Piece) -> Matrix:
        return vector[one.start : one.stop].reshape(one.n, one.m)


class FactorsEncoder(GatherEncoder):
    """State of one range: what the factors lacked, and the last Q of each matrix in its first places."""

    def __init__(self, settings: Factors, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> None:
        super().__init__(settings.state_names, shapes, dtype)
        self._pieces = tuple(pieces_of(shapes, settings.rank))
        self.state[WARM_START] = first_factors(self._pieces, self.size, self.dtype)

    @override
    def _encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        super()._encode(gradient, message, step=step, turn=turn, replicas=replicas)
        warm = np.zeros_like(self.state[WARM_START])
        for one, (_, q) in zip(self._pieces, self._parts(message), strict=True):
            warm[one.start : one.start + one.columns] = q
        self._next[WARM_START] = warm

    @override
    def write(self, vector: Vector, message: Vector, *, step: int) -> None:
        warm = self.state[WARM_START]
        for one, (p, q) in zip(self._pieces, self._parts(message), strict=True):
            if not one.rank:
                p[:] = vector[one.start : one.stop]
                continue
            matrix = vector[one.start : one.stop].reshape(one.n, one.m)
            last = warm[one.start : one.start + one.columns].reshape(one.m, one.rank)
            columns = _orthonormal(matrix @ last)
            p[:], q[:] = columns.reshape(-1), (matrix.T @ columns).reshape(-1)

    @override
    def add(self, message: Vector, vector: Vector, *, step: int) -> None:
        for one, (p, q) in zip(self._pieces, self._parts(message), strict=True):
            part = vector[one.start : one.stop]
            if not one.rank:
                part += p
                continue
            product = np.empty((one.n, one.m), self.dtype)
            _multiply(p.reshape(one.n, one.rank), q.reshape(one.m, one.rank), product)
            part += product.reshape(-1)

    def _parts(self, message: Vector) -> Iterator[tuple[Vector, Vector]]:
        """Yields both factors of each tensor in a message."""
        for one in self._pieces:
            yield message[: one.first], message[one.first : one.first + one.columns]
            message = message[one.first + one.columns :]


def _orthonormal(columns: Matrix) -> Matrix:
    """Makes columns orthonormal by Gram and Schmidt's method in float64, by sums in a fixed order.

    No library of linear algebra is called: all replicas have to find the same bits. Columns that depend on
    those before become zero.
    """
    found = columns.astype(np.float64)
    for i in range(found.shape[1]):
        column = np.ascontiguousarray(found[:, i])
        for j in range(i):
            other = np.ascontiguousarray(found[:, j])
            column -= (column * other).sum() * other
        norm = math.sqrt((column * column).sum())
        found[:, i] = column / norm if norm > _SMALLEST else 0.0
    return found.astype(columns.dtype)


def _multiply(p: Matrix, q: Matrix, out: Matrix) -> None:
    """Writes p q', by sums in a fixed order."""
    out.fill(0)
    for i in range(p.shape[1]):
        out += p[:, i, None] * q[None, :, i]
