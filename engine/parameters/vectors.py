"""The named vectors of a shard under batch optimisation, and what a method's operations do to them.

It must not know messages, evaluations, or who asks: `partita.engine.protocol.vector_shard` decides what is
done, and when. A method tried in one process uses the same store, so that it adds up as a shard does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.storage import Snapshot
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vector_loops import add_product, add_products, add_term, add_terms
from partita.engine.protocol.commands import POINT, Combine, Dots, Largest, Multiply, Operation, Swap

_BLOCK: Final = 1 << 14
"""Numbers of a vector that are worked on at a time: those of the few that are read again stay in cache."""

_NAME: Final = re.compile(r"\w+", flags=re.ASCII)  # as it stands in a shard's file


class VectorStore:
    """Vectors of one size by name, `x` and whatever a method needs. One thread uses it at a time.

    Numbers are stored as float32 or float64. All sums are in float64, whatever is stored, and always in the
    same order: the same operations on the same numbers give the same bits.
    """

    def __init__(
        self,
        values: Vector,
        state: Mapping[str, Vector] | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        """Takes copies.

        Args:
            values: `[n]`, what `x` begins with.
            state: `[n]` each, the other vectors, by name.
            dtype: of all numbers, float32 or float64; None: as `values` has it.

        Raises:
            ValueError: another dtype, a vector of another size, or a name with more than letters, digits and
                underscores.
        """
        self.dtype: Final = np.dtype(values.dtype if dtype is None else dtype)
        if values.ndim != 1 or self.dtype not in (np.float32, np.float64):
            raise ValueError(f"values are {self.dtype} {values.shape}; use a float32 or float64 vector")
        self.size: Final = values.size
        self._vectors: dict[str, Vector] = {}
        self._sums: Final = np.empty(min(self.size, _BLOCK))
        self.restore(Snapshot(values, {} if state is None else state))

    def names(self) -> tuple[str, ...]:
        """Of all vectors, in the order in which they were made; `x` is the first."""
        return tuple(self._vectors)

    def vector(self, name: str) -> Vector:
        """The vector itself, to be read: it changes with the next operation that writes it.

        Raises:
            ValueError: nothing was ever written to it.
        """
        found = self._vectors.get(name)
        if found is None:
            known = ", ".join(map(repr, self._vectors))
            raise ValueError(f"there is no vector {name!r} to read, only {known}; write it before")
        return found

    def target(self, name: str) -> Vector:
        """The vector itself, to be written; made, all zeros, where there is none.

        Raises:
            ValueError: no vector may have this name.
        """
        found = self._vectors.get(name)
        if found is None:
            _check_name(name)
            found = self._vectors[name] = np.zeros(self.size, self.dtype)
        return found

    def do(self, operation: Operation) -> list[float]:
        """Does one operation; returns the scalars that it gives.

        Numbers that run away become infinite or NaN, as IEEE 754 has it, and nothing is said: a method tries
        points that are too far, and sees it in the scalars.

        Args:
            operation: on vectors alone. `Evaluate`, `Snapshot` and `Restore` need more than a store.

        Raises:
            ValueError: it reads a vector that is not there, or writes one whose name cannot be. Nothing is
                changed.
        """
        with np.errstate(all="ignore"):
            match operation:
                case Combine(to=to, terms=terms):
                    self._combine(to, terms)
                    return []
                case Multiply(to=to, left=left, right=right):
                    factors = self.vector(left), self.vector(right)
                    np.multiply(*factors, out=self.target(to))  # a product rounded once in either precision
                    return []
                case Swap(one=one, other=other):
                    _check_name(other)
                    vectors = self.target(one), self.target(other)
                    self._vectors[other], self._vectors[one] = vectors
                    return []
                case Dots(left=lefts, right=rights):
                    return self._dots(lefts, rights)
                case Largest(vector=name):
                    return [_largest(self.vector(name))]
        raise ValueError(
            f"{type(operation).__name__} is not for vectors alone; a shard takes it in a command"
        )

    def snapshot(self) -> Snapshot:
        """A copy of everything: `x` as values, the others as state."""
        state = {name: vector.copy() for name, vector in self._vectors.items() if name != POINT}
        return Snapshot(self._vectors[POINT].copy(), state)

    def restore(self, snapshot: Snapshot) -> None:
        """All vectors become a copy of what the snapshot holds; others are gone.

        Raises:
            ValueError: a vector has another size, or a name that cannot be. Nothing is changed.
        """
        wanted = {POINT: snapshot.values, **snapshot.state}
        for name, vector in wanted.items():
            if vector.shape != (self.size,):
                raise ValueError(f"vector {name!r} is {vector.shape}; all vectors must be ({self.size},)")
            _check_name(name)
        # Into the memory that is there: fresh memory would cost several times as much as the copy.
        self._vectors = {name: self.target(name) for name in wanted}
        with np.errstate(all="ignore"):
            for name, vector in wanted.items():
                np.copyto(self._vectors[name], vector, casting="same_kind")

    def _combine(self, to: str, terms: Sequence[tuple[float, str]]) -> None:
        """Block by block, so that `to` may be among the terms."""
        vectors = [self.vector(name) for _, name in terms]
        target = self.target(to)
        if not terms:
            target.fill(0)
        elif len(terms) == 1 and terms[0][0] == 1:
            np.copyto(target, vectors[0])
        else:
            factors = [float(factor) for factor, _ in terms]
            for start, pieces in self._blocks(vectors):
                sums = self._sums[: pieces[0].size]
                _add_up(sums, factors, pieces)
                target[start : start + sums.size] = sums

    def _dots(self, lefts: Sequence[str], rights: Sequence[str]) -> list[float]:
        few, many = (lefts, rights) if len(lefts) <= len(rights) else (rights, lefts)
        columns = {name: column for column, name in enumerate(dict.fromkeys(few))}
        rows = {name: row for row, name in enumerate(dict.fromkeys(many))}
        sums = np.zeros((len(rows), len(columns)))
        for _, pieces in self._blocks([self.vector(name) for name in (*columns, *rows)]):
            _add_products(sums, pieces[: len(columns)], pieces[len(columns) :])
        found = sums.tolist()
        if few is lefts:
            return [found[rows[right]][columns[left]] for left in lefts for right in rights]
        return [found[rows[left]][columns[right]] for left in lefts for right in rights]

    def _blocks(self, vectors: Sequence[Vector]) -> Iterator[tuple[int, Sequence[Vector]]]:
        """(start, the piece of each vector from there on) in turn."""
        if self.size <= _BLOCK:
            yield 0, vectors
            return
        for start in range(0, self.size, _BLOCK):
            yield start, [vector[start : start + _BLOCK] for vector in vectors]


def make_ready(dtype: npt.DTypeLike) -> None:
    """Has what sums vectors of this type compiled, or loaded: at a start, so that no request waits for it."""
    names = ("x", "y", "z")
    store = VectorStore(np.zeros(1), {name: np.zeros(1) for name in names[1:]}, dtype=dtype)
    for operation in (Dots(names, names), Dots(names[:1], names), Combine(POINT, ((1.0, POINT),) * 5)):
        store.do(operation)


def _add_up(sums: Vector, factors: Sequence[float], vectors: Sequence[Vector]) -> None:
    """Term by term, and four of them in a pass."""
    sums.fill(0)
    fours = len(factors) // 4 * 4
    for n in range(0, fours, 4):
        (a, b, c, d), (first, second, third, fourth) = factors[n : n + 4], vectors[n : n + 4]
        add_terms(sums, a, first, b, second, c, third, d, fourth)
    for factor, vector in zip(factors[fours:], vectors[fours:], strict=True):
        add_term(sums, factor, vector)


def _add_products(sums: npt.NDArray[np.float64], few: Sequence[Vector], many: Sequence[Vector]) -> None:
    """To `sums` `[many, few]`; each of the many is read once for three of the few."""
    threes = len(few) // 3 * 3
    for row, vector in zip(sums, many, strict=True):
        for n in range(0, threes, 3):
            add_products(row, n, few[n], few[n + 1], few[n + 2], vector)
        for n in range(threes, len(few)):
            add_product(row, n, few[n], vector)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a vector; use letters, digits and underscores, as in 'g' or 's_0'"
        )


def _largest(vector: Vector) -> float:
    """The largest absolute value; 0 of no numbers, NaN where there is one (both passes bring it along)."""
    return float(np.maximum(vector.max(), -vector.min())) if vector.size else 0.0
