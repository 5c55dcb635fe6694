"""Streams: examples that can be read in their order alone, from a function that begins at the front.

Each host reads the stream by itself and skips what other replicas take. What was read last is kept, for the
window in which examples are permuted; what lies before is read again from the front.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import DataError, Dataset, Field, Reader
from partita.engine.data.items import arrays_of, stacked
from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]

_KEPT_BYTES: Final = 96 << 20
_CHUNK: Final = 256
"""Examples that are joined to one array."""


@dataclass(frozen=True, eq=False)
class Stream(Dataset):
    """Examples that a function yields, in the same order each time it is called.

    Args:
        opens: `opens()` returns an iterable of examples: tuples in the order of the network's inputs and
            targets, or dictionaries by name. With `shards`, `opens(shard)` returns those of one shard.
        shards: what the function is called with, one after another, for example names of files; or their
            number. Shards are read in a new order each epoch.
        examples: the number of examples of an epoch, or of each shard. If not given, the stream is read once
            before the run, to count them. The rest of a longer stream is not read.
        chunks: each item has several examples: arrays `[count, *shape]`.

    Raises:
        ValueError: the function is none, or the numbers do not fit each other.
    """

    opens: Callable[..., Iterable[Any]]
    _: KW_ONLY
    shards: int | Sequence[Any] | None = None
    examples: int = 0  # of all shards; 0: not counted yet
    lengths: tuple[int, ...] = ()
    chunks: bool = False
    fields: Mapping[str, Field] = field(default_factory=dict, repr=False)
    named: bool = True

    def __post_init__(self) -> None:
        if not callable(self.opens):
            raise ValueError(
                f"Stream takes a function that opens the stream, not a {type(self.opens).__name__}; a "
                "generator can be read once: give the function that makes it"
            )
        given: Any = self.examples
        if not isinstance(given, int):
            lengths = tuple(int(one) for one in given)
            if len(lengths) != len(self.keys):
                raise ValueError(f"Stream has {len(self.keys)} shards and {len(lengths)} numbers of examples")
            object.__setattr__(self, "lengths", lengths)
            object.__setattr__(self, "examples", sum(lengths))
        elif given and not self.lengths and len(self.keys) == 1:
            object.__setattr__(self, "lengths", (given,))
        elif given and not self.lengths:
            raise ValueError("give the examples of each shard, examples=[...], or leave them to be counted")

    @property
    def keys(self) -> tuple[Any, ...]:
        """The shards, as the function is called with them; one None where there are none."""
        if self.shards is None:
            return (None,)
        return tuple(range(self.shards)) if isinstance(self.shards, int) else tuple(self.shards)

    @property
    def in_order(self) -> bool:  # type: ignore[override]
        """Returns whether examples are tuples."""
        return not self.named

    @property
    def blocks(self) -> tuple[int, ...]:  # type: ignore[override]
        """The sizes of the shards."""
        return self.lengths

    @property
    def seekable(self) -> bool:  # type: ignore[override]
        """Returns whether there are shards."""
        return len(self.keys) > 1

    @property
    def identity(self) -> str:
        """The sizes of the shards."""
        return f"stream {self.lengths}"

    def counted(self) -> Stream:
        """Returns the stream with its fields and lengths; reads all of it unless these are known.

        Raises:
            DataError: the stream fails, or has no example.
        """
        first = next(self.items(0), None)
        if first is None:
            raise DataError("the stream has no examples; does its function return an iterable each time?")
        named = isinstance(first, Mapping)
        fields = {name: Field.of(array) for name, array in self.chunk_of(first, 0, 0).items()}
        fields = {name: Field(one.shape[1:], one.dtype) for name, one in fields.items()}
        lengths = self.lengths
        if not lengths:
            lengths = tuple(self._length(shard) for shard in range(len(self.keys)))
        known = replace(self, examples=sum(lengths), lengths=lengths)
        object.__setattr__(known, "fields", fields)
        object.__setattr__(known, "named", named)
        return known

    def _length(self, shard: int) -> int:
        items = self.items(shard)
        if not self.chunks:
            return sum(1 for _ in items)
        count = 0
        for item in items:
            count += len(next(iter(self.chunk_of(item, shard, count).values())))
        return count

    def items(self, shard: int) -> Iterator[Any]:
        """Yields what the function yields. Raises DataError, which names the place."""
        number = 0
        try:
            key = self.keys[shard]
            for item in self.opens() if self.shards is None else self.opens(key):
                yield item
                number += 1
        except Exception as error:
            where = "" if self.shards is None else f" of shard {self.keys[shard]!r}"
            raise DataError(
                f"the stream failed at item {number}{where}: {type(error).__name__}: {error}"
            ) from error

    def chunk_of(self, item: Any, shard: int, number: int) -> dict[str, Array]:
        """Returns the arrays `[count, *shape]` of what the function has yielded. Raises DataError."""
        found = arrays_of(item, f"item {number} of the stream")
        return found if self.chunks else {name: array[None] for name, array in found.items()}

    def open(self, files: OpensArrays) -> Reader:
        """Calls the function when it is needed."""
        return _StreamReader(self)


class _StreamReader(Reader):
    """One cursor for each shard that is being read. Reads one thread at a time."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._starts = np.cumsum([0, *stream.lengths])
        self._cursors: dict[int, _Cursor] = {}
        self._clock = 0
        self._most_bytes = _KEPT_BYTES

    def keep(self, n_bytes: int) -> None:
        self._most_bytes = max(self._most_bytes, n_bytes)

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        shards = np.searchsorted(self._starts, chosen, side="right") - 1
        found: dict[str, Array] = {}
        with self._lock:
            self._clock += 1
            for shard in np.unique(shards).tolist():
                here = np.flatnonzero(shards == shard)
                cursor = self._cursor(shard)
                for name, rows in cursor.rows(chosen[here] - self._starts[shard], names).items():
                    if name not in found:
                        found[name] = np.empty((len(chosen), *rows.shape[1:]), rows.dtype)
                    found[name][here] = rows
            self._drop()
        return found

    def _cursor(self, shard: int) -> _Cursor:
        if shard not in self._cursors:
            self._cursors[shard] = _Cursor(self._stream, shard)
        self._cursors[shard].used = self._clock
        return self._cursors[shard]

    def _drop(self) -> None:
        """Drops the chunks of the shards that were not used for the longest time, then the oldest chunks."""
        cursors = sorted(self._cursors.items(), key=lambda one: one[1].used)
        excess = sum(cursor.n_bytes for _, cursor in cursors) - self._most_bytes
        for shard, cursor in cursors:
            if excess <= 0:
                return
            excess -= cursor.drop(excess)
            if not cursor.n_bytes and cursor.used < self._clock:
                self._cursors.pop(shard).close()

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()


class _Cursor:
    """A shard that is read from its front, and what was read last.

    Attributes:
        n_bytes: of what is kept.
        used: when it was last read.
    """

    def __init__(self, stream: Stream, shard: int) -> None:
        self.n_bytes, self.used = 0, 0
        self._stream, self._shard = stream, shard
        self._chunks: list[tuple[int, dict[str, Array]]] = []  # by their first example, ascending
        self._next = 0
        self._items = stream.items(shard)

    def rows(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        """Returns examples of the shard, `[count, *shape]`. Raises DataError."""
        first, last = int(chosen.min()), int(chosen.max())
        if self._next > first and (not self._chunks or self._chunks[0][0] > first):
            self._restart()
        while self._next <= last:
            self._read_chunk(keep_from=first)
        starts = np.array([start for start, _ in self._chunks])
        places = np.searchsorted(starts, chosen, side="right") - 1
        found: dict[str, Array] = {}
        for place in np.unique(places).tolist():
            here, (start, chunk) = np.flatnonzero(places == place), self._chunks[place]
            for name in names:
                rows = chunk[name][chosen[here] - start]
                if name not in found:
                    found[name] = np.empty((len(chosen), *rows.shape[1:]), rows.dtype)
                found[name][here] = rows
        return found

    def _read_chunk(self, keep_from: int) -> None:
        """Reads on, and keeps what it reads if that is not long before what is wanted."""
        stream, items = self._stream, list[dict[str, Array]]()
        for item in self._items:
            items.append(stream.chunk_of(item, self._shard, self._next + len(items)))
            if stream.chunks or len(items) == _CHUNK:
                break
        if not items:
            where = "" if stream.shards is None else f" in shard {stream.keys[self._shard]!r}"
            raise DataError(
                f"the stream ended after {self._next} examples{where}, and it has "
                f"{stream.lengths[self._shard]}; it must yield the same examples each time it is opened"
            )
        numbers = range(self._next, self._next + len(items))
        joined = (
            {name: rows[:, 0] for name, rows in stacked(items, numbers, "example").items()}
            if not stream.chunks
            else items[0]
        )
        count = len(next(iter(joined.values())))
        if self._next + count > keep_from:
            self._chunks.append((self._next, joined))
            self.n_bytes += _bytes(joined)
        self._next += count

    def drop(self, excess: int) -> int:
        """Drops the oldest chunks, at least so many bytes if there are; returns how many."""
        before = self.n_bytes
        while self._chunks and before - self.n_bytes < excess:
            _, chunk = self._chunks.pop(0)
            self.n_bytes -= _bytes(chunk)
        return before - self.n_bytes

    def _restart(self) -> None:
        self.close()
        self._chunks.clear()
        self.n_bytes = self._next = 0
        self._items = self._stream.items(self._shard)

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _bytes(chunk: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in chunk.values())
