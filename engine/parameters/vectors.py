"""Named vectors of a shard, and the execution of a batch method's operations on them.

A policy of `partita.engine.protocol.shard` decides which operations are done, and when. A method in one
process uses the same store, so its sums have the bits of a shard's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.snapshot import ShardSnapshot
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vector_loops import add_product, add_products, add_term, add_terms
from partita.engine.protocol.commands import POINT, Combine, Dots, Largest, Multiply, Operation, Swap
from partita.engine.protocol.events import Span

_BLOCK: Final = 1 << 14
"""Numbers that are processed at once, so that vectors that are read again stay in cache."""

WORTH_SHARING: Final = 1 << 16
"""Bytes of a vector that are copied in about the time that reading in place takes beside it."""

_MAX_SHARED: Final = 3
"""Arrays for `x` that others read: one that is written, one that a slow reader has, one of a snapshot."""

_NAME: Final = re.compile(r"\w+", flags=re.ASCII)  # as in the keys of a shard's file


Memory: TypeAlias = Callable[[int], npt.NDArray[np.uint8] | None]


class Reading(Protocol):
    """Somebody's use of numbers where they lie."""

    @property
    def is_over(self) -> bool:
        """Returns whether the numbers are read no more."""


class VectorStore:
    """Vectors of one size by name: `x`, and those of a method or the state of an optimizer.

    One thread at a time executes operations, restores, or takes snapshots; meanwhile another may read a
    vector that is not being written, and release snapshots.

    Numbers are stored as float32 or float64. All sums are in float64 and in the same order: the same
    operations on the same numbers give the same bits.
    """

    def __init__(
        self,
        values: Vector,
        state: Mapping[str, Vector] | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
        memory: Memory = lambda n_bytes: None,
    ) -> None:
        """Copies `values`, the initial `x`, and the vectors of `state`, `[n]` each.

        `dtype` of all numbers is float32 or float64; by default that of `values`. `memory` gives zeros, uint8
        `[n_bytes]`, for `x`, in which others may read it; None where it has none.

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
        self._snapshots: tuple[ShardSnapshot, ...] = ()  # replaced as a whole, as another thread may read it
        self._memory: Final = memory
        self._shared: list[Vector] = []  # arrays for `x` in this memory
        self._read: tuple[tuple[Vector, Span, list[Reading]], ...] = ()  # replaced as a whole, too
        self.restore(ShardSnapshot(values, {} if state is None else state))

    def names(self) -> tuple[str, ...]:
        """Returns the names of all vectors in order of creation, `x` first."""
        return tuple(self._vectors)

    def vector(self, name: str) -> Vector:
        """Returns the vector itself, which changes with the next operation that writes it.

        Raises:
            ValueError: there is no such vector.
        """
        found = self._vectors.get(name)
        if found is None:
            known = ", ".join(map(repr, self._vectors))
            raise ValueError(f"there is no vector {name!r} to read, only {known}; write it before")
        return found

    def target(self, name: str) -> Vector:
        """Returns the array to write all numbers of a vector to: the vector, created if missing, or zeros
        that replace it where a snapshot contains it.

        Raises:
            ValueError: not a valid name.
        """
        found = self._get_or_create(name)
        if self._is_kept(found, 0, self.size):
            found = self._vectors[name] = self._new(name)
            found.fill(0)
        return found

    def writable(self, span: Span) -> Vector:
        """Returns the array to write a range of a vector to: the vector itself, or a copy that replaces it
        where a snapshot contains it, or somebody reads these numbers.

        Raises:
            ValueError: there is no such vector.
        """
        found = self.vector(span.vector)
        if self._is_kept(found, span.start, span.stop):
            copied = self._vectors[span.vector] = self._new(span.vector)
            np.copyto(copied, found)
            return copied
        return found

    def readings(self, span: Span) -> list[Reading]:
        """Returns a list for the readings of a range as it is now.

        Until all that are added to it are over, an operation that writes there writes to another array. One
        thread at a time, which fills the list before it asks for another.

        Raises:
            ValueError: there is no such vector.
        """
        vector, readings = self.vector(span.vector), list[Reading]()
        going_on = (one for one in self._read if not all(reading.is_over for reading in one[2]))
        self._read = (*going_on, (vector, span, readings))
        return readings

    def read(self, span: Span) -> Vector:
        """Returns a view of a range of a vector.

        Raises:
            ValueError: there is no such vector, or it is shorter.
        """
        if not 0 <= span.start <= span.stop <= self.size:
            raise ValueError(f"{span} is no range of a shard's {self.size} numbers")
        return self.vector(span.vector)[span.start : span.stop]

    def _is_kept(self, vector: Vector, start: int, stop: int) -> bool:
        """Returns whether a snapshot contains this array, or somebody reads some numbers of this range of
        it.
        """
        for array, span, readings in self._read:
            is_here = array is vector and span.start < stop and start < span.stop
            if is_here and not all(reading.is_over for reading in readings):
                return True
        if not self._snapshots:
            return False
        kept = (one for snapshot in self._snapshots for one in (snapshot.values, *snapshot.state.values()))
        return any(vector is one for one in kept)

    def _new(self, name: str) -> Vector:
        """Returns an array for a vector: for `x` one that others can read, where there is one.

        It has any numbers.
        """
        if name != POINT or self.size * self.dtype.itemsize < WORTH_SHARING:
            return np.zeros(self.size, self.dtype)
        used = [id(one) for one in self._vectors.values()]
        for spare in self._shared:
            if id(spare) not in used and not self._is_kept(spare, 0, self.size):
                return spare
        if len(self._shared) < _MAX_SHARED:
            memory = self._memory(self.size * self.dtype.itemsize)
            if memory is not None:
                self._shared.append(memory.view(self.dtype))
                return self._shared[-1]
        return np.zeros(self.size, self.dtype)

    def _get_or_create(self, name: str) -> Vector:
        found = self._vectors.get(name)
        if found is None:
            _check_name(name)
            found = self._vectors[name] = self._new(name)
        return found

    def execute(self, operation: Operation) -> list[float]:
        """Executes one operation on vectors alone (no `Evaluate`, `Snapshot`, `Restore`); returns its
        scalars.

        Overflows become infinite or NaN without a warning: a method tries points that are too far, and sees
        it in the scalars.

        Raises:
            ValueError: it reads a missing vector, or writes one with an invalid name; nothing is changed.
        """
        with np.errstate(all="ignore"):
            return self.execute_quietly(operation)

    def execute_quietly(self, operation: Operation) -> list[float]:
        """Executes one operation as `execute`, inside `np.errstate(all="ignore")`, which the caller enters.

        Entering it takes as long as an operation on few numbers, so a caller enters it for several.
        """
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
                vectors = self._get_or_create(one), self._get_or_create(other)
                self._vectors[other], self._vectors[one] = vectors
                return []
            case Dots(left=lefts, right=rights):
                return self._dots(lefts, rights)
            case Largest(vector=name):
                return [_largest(self.vector(name))]
        raise ValueError(
            f"{type(operation).__name__} is not for vectors alone; a shard takes it in a command"
        )

    def snapshot(self) -> ShardSnapshot:
        """Returns all vectors without copying: `x` as values, the others as state.

        Until `release`, an operation that writes one of them writes to another array, so at most one array
        for each vector is needed besides those of snapshots.
        """
        state = dict(self._vectors)
        snapshot = ShardSnapshot(state.pop(POINT), state)
        self._snapshots += (snapshot,)
        return snapshot

    def release(self, snapshot: ShardSnapshot) -> None:
        """Lets the vectors of a snapshot of this store change again."""
        self._snapshots = tuple(kept for kept in self._snapshots if kept is not snapshot)

    def restore(self, snapshot: ShardSnapshot) -> None:
        """Replaces all vectors by copies of a snapshot's.

        Raises:
            ValueError: a vector has another size, or an invalid name; nothing is changed.
        """
        wanted = {POINT: snapshot.values, **snapshot.state}
        for name, vector in wanted.items():
            if vector.shape != (self.size,):
                raise ValueError(f"vector {name!r} is {vector.shape}; all vectors must be ({self.size},)")
        self.refill(wanted, lambda name, out: np.copyto(out, wanted[name], casting="same_kind"))

    def refill(self, names: Iterable[str], fill: Callable[[str, Vector], object]) -> None:
        """Replaces all vectors by new ones, `x` among them, in the memory of the present ones.

        `fill` writes every number of a vector, given its name and `[n]` to write to.

        Raises:
            ValueError: an invalid name; nothing is changed.
            Exception: raised by `fill`; the vectors are undefined then.
        """
        wanted = list(names)
        assert POINT in wanted, wanted
        for name in wanted:
            _check_name(name)
        # New memory would cost several times as much as the copy.
        self._vectors = {name: vector for name, vector in self._vectors.items() if name in wanted}
        with np.errstate(all="ignore"):
            for name in wanted:
                fill(name, self.target(name))
        self._vectors = {name: self._vectors[name] for name in wanted}

    def _combine(self, to: str, terms: Sequence[tuple[float, str]]) -> None:
        """Combines block by block, so that `to` may be among the terms."""
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
        """Yields (start, the piece of each vector from there on)."""
        if self.size <= _BLOCK:
            yield 0, vectors
            return
        for start in range(0, self.size, _BLOCK):
            yield start, [vector[start : start + _BLOCK] for vector in vectors]


def compile_operations(dtype: npt.DTypeLike) -> None:
    """Compiles or loads the sums for vectors of this type, so that no request waits for it."""
    names = ("x", "y", "z")
    store = VectorStore(np.zeros(1), {name: np.zeros(1) for name in names[1:]}, dtype=dtype)
    for operation in (Dots(names, names), Dots(names[:1], names), Combine(POINT, ((1.0, POINT),) * 5)):
        store.execute(operation)


def _add_up(sums: Vector, factors: Sequence[float], vectors: Sequence[Vector]) -> None:
    """Adds the terms in order, four in a pass."""
    sums.fill(0)
    fours = len(factors) // 4 * 4
    for n in range(0, fours, 4):
        a, b, c, d = factors[n : n + 4]
        add_terms(sums, (a, b, c, d), *vectors[n : n + 4])
    for factor, vector in zip(factors[fours:], vectors[fours:], strict=True):
        add_term(sums, factor, vector)


def _add_products(sums: npt.NDArray[np.float64], few: Sequence[Vector], many: Sequence[Vector]) -> None:
    """Adds products to `sums` `[many, few]`; each of the many is read once for three of the few."""
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
    """Largest absolute value; 0 of no numbers, NaN if there is one."""
    return float(np.maximum(vector.max(), -vector.min())) if vector.size else 0.0
