"""Reading of checkpoints: any range of any parameter, whatever plan and number of shards wrote them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import safetensors

from partita.engine.parameters.compression.kept_state import own_names
from partita.engine.parameters.files import hash_plain, open_plain
from partita.engine.parameters.layout import check_cover
from partita.engine.parameters.manifest import CheckpointError, Manifest, ShardRecord, decode_record
from partita.engine.parameters.slots import CommonRun, Slot, common, split
from partita.engine.parameters.snapshot import ShardSnapshot
from partita.engine.parameters.vector import Vector

_KEY: Final = re.compile(
    r"(values|state\.\w+)/(\d{1,18}):(\d{1,18})(?::(\d{1,18}):(\d{1,18}))?/(.*)",
    flags=re.ASCII | re.DOTALL,
)

Fetch: TypeAlias = Callable[[str, bool], None]
"""Makes a file of a checkpoint readable, at least its header, or the whole file if the second is True."""

_AT_ONCE: Final = 1 << 22  # most numbers that are read from a file at once


def tensor_key(kind: str, slot: Slot) -> str:
    """Returns the name of a tensor in a shard's file: "values/0:640/hidden.weight", "state.sum/0:640/...".

    Columns of a matrix add the length of a run and the stride: "values/0:608:32:64/...".
    """
    columns = f":{slot.run}:{slot.stride}" if slot.stride else ""
    return f"{kind}/{slot.start}:{slot.stop}{columns}/{slot.parameter}"


def parse_key(key: str) -> tuple[str, Slot]:
    """Returns the arguments of `tensor_key`. Raises CheckpointError."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise CheckpointError(f"a shard's file has a tensor {key!r}, which is no range of a parameter")
    kind, start, stop, run, stride, parameter = match.groups()
    return kind, Slot(parameter, int(start), int(stop), int(run or 0), int(stride or 0))


def _batched(runs: Iterable[CommonRun]) -> Iterator[list[CommonRun]]:
    """Groups runs that are read at once, as there may be thousands, and cuts long ones: reading needs memory
    for all numbers in between, and holds the interpreter's lock.
    """
    together: list[CommonRun] = []
    for here, there, size in runs:
        for start in range(0, size, _AT_ONCE):
            run = CommonRun(here + start, there + start, min(_AT_ONCE, size - start))
            if together and run.there + run.size - together[0].there > _AT_ONCE:
                yield together
                together = []
            together.append(run)
    if together:
        yield together


class Checkpoint:
    """A complete checkpoint, with the hashes verified of the files that are read.

    Attributes:
        path: its folder.
        manifest, records: its manifest, and the shards' records by name.
        dtype, state_names: type of all numbers, and names of its state vectors.
        skipped: sentences about newer checkpoints that could not be used.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        slots: Sequence[Slot] | None = None,
        skipped: tuple[str, ...] = (),
        fetch: Fetch = lambda file, whole: None,
    ) -> None:
        """Verifies the files. `fetch` is called before a file, or more of it, is read.

        Only files that contain some of `slots` are hashed and may be read, so that of many shards that open a
        checkpoint only one or two read each file. None: all files.

        Raises:
            CheckpointError: a file is missing or damaged, or they do not contain every number once.
        """
        self.path: Final = path
        self.manifest: Final = manifest
        self.skipped: Final = skipped
        self.dtype: Final[np.dtype[Any]] = np.dtype(manifest.dtype)
        self.records: Final[dict[str, ShardRecord]] = {}
        self._tensors: Final[dict[str, dict[str, tuple[str, Slot]]]] = {}  # file -> key -> (kind, slot)
        try:
            kinds = self._read_headers(slots, fetch)
        except CheckpointError:
            for entry in manifest.entries:  # most of them are not hashed yet: name the one that is damaged
                fetch(entry.file, True)
                self._verify(entry.file, entry.sha256)
            raise
        self.state_names: Final = tuple(sorted(kind.removeprefix("state.") for kind in kinds - {"values"}))

    def _read_headers(self, slots: Sequence[Slot] | None, fetch: Fetch) -> set[str]:
        """Reads what the files contain, and hashes those with some of `slots`; returns the kinds of vectors.

        Raises:
            CheckpointError: see `__init__`.
        """
        for entry in self.manifest.entries:
            fetch(entry.file, slots is None)
            self._verify(entry.file, entry.sha256 if slots is None else None)
            record = self.records[entry.shard] = self._index(entry.file)
            if slots is not None and self._contains(entry.file, slots):
                fetch(entry.file, True)
                self._verify(entry.file, entry.sha256)
            written = (record.shard, record.incarnation, record.version)
            if written != (entry.shard, entry.incarnation, entry.version):
                raise CheckpointError(
                    f"{entry.file} says that it is of {record.shard}, incarnation {record.incarnation}"
                )
        kinds: dict[str, list[Slot]] = {"values": []}
        for tensors in self._tensors.values():
            for kind, slot in tensors.values():
                kinds.setdefault(kind, []).append(slot)
        for kind, found in kinds.items():
            try:
                check_cover(found, self.manifest.shapes)
            except ValueError as error:
                raise CheckpointError(
                    f"its files do not hold every number of {kind!r} once ({error})"
                ) from error
        return set(kinds)

    def snapshot(self, slots: Sequence[Slot]) -> ShardSnapshot:
        """Returns values and optimizer state of the shard whose vector these slots make, in any layout."""
        state = {name: self.gather(slots, f"state.{name}") for name in self.common_names}
        return ShardSnapshot(self.gather(slots), state)

    def parameters(self, kind: str = "values") -> dict[str, Vector]:
        """Returns whole parameters by name, in their shapes; or their optimizer state ("state.sum")."""
        whole = {name: np.empty(shape, self.dtype) for name, shape in self.manifest.shapes.items()}
        self._fill(kind, [(Slot(name, 0, array.size), array.reshape(-1)) for name, array in whole.items()])
        return whole

    def gather(self, slots: Sequence[Slot], kind: str = "values", *, out: Vector | None = None) -> Vector:
        """Returns the vector of these slots, of kind "values" or "state.NAME", in the checkpoint's dtype.

        Fills `out`, `[n]` of any dtype, if it is given.
        """
        vector = np.empty(sum(slot.size for slot in slots), self.dtype) if out is None else out
        self._fill(kind, split(slots, vector))
        return vector

    def seen(self, shard: str, run: str) -> Mapping[str, tuple[int, int]]:
        """Returns a shard's watermarks; none where another run wrote them (see `ShardRecord.run`)."""
        record = self.records.get(shard)
        return record.seen if record is not None and record.run == run else {}

    def stops(self, shard: str, run: str) -> Mapping[str, int]:
        """Returns the step for each part below which the numbers contain its gradients, in this run."""
        record = self.records.get(shard)
        return record.stops if record is not None and record.run == run else {}

    def updates_of(self, shard: str, run: str) -> Mapping[int, int]:
        """Returns the number of updates of each machine's numbers in a shard, in this run."""
        record = self.records.get(shard)
        return record.updates_of if record is not None and record.run == run else {}

    def units(self, shard: str) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
        """Returns the units of work in the numbers of each range of a shard's vector."""
        record = self.records.get(shard)
        return {} if record is None else {(one.start, one.stop): one.units for one in record.units}

    @property
    def common_names(self) -> tuple[str, ...]:
        """The names of state vectors, less those of the replicas' compressors."""
        own = own_names(self.state_names)
        return tuple(name for name in self.state_names if name not in own)

    def holds(self, kind: str, slots: Sequence[Slot]) -> bool:
        """Returns whether one file has the vector of these slots, cut as they are."""
        wanted = {slot for slot in slots if slot.size}
        return any(
            wanted <= {slot for found, slot in tensors.values() if found == kind}
            for tensors in self._tensors.values()
        )

    def has(self, shard: str, slots: Sequence[Slot]) -> bool:
        """Returns whether the file of a shard has just the numbers of these slots."""
        files = [entry.file for entry in self.manifest.entries if entry.shard == shard]
        return any(
            {slot for kind, slot in self._tensors[file].values() if kind == "values"} == {*slots}
            for file in files
        )

    def updates(self, slots: Sequence[Slot]) -> int:
        """Returns the largest number of updates of a shard that had some of these slots."""
        entries = (entry for entry in self.manifest.entries if self._contains(entry.file, slots))
        return max((self.records[entry.shard].updates for entry in entries), default=0)

    def _contains(self, file: str, slots: Sequence[Slot]) -> bool:
        """Returns whether a file contains a number of one of the slots."""
        found = self._tensors[file].values()
        return any(any(common(one, slot)) for _, one in found for slot in slots)

    def _verify(self, file: str, sha256: str | None) -> None:
        """Checks that a file is plain, and that it has this hash unless None is given."""
        try:
            open_plain(self.path / file).close()
            if sha256 is None:
                return
            self._open(file)  # checks the length by the header, before everything is read
            found = hash_plain(self.path / file)
        except FileNotFoundError as error:
            raise CheckpointError(f"{file} is missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read ({error})") from error
        if found != sha256:
            raise CheckpointError(f"{file} is damaged (its SHA-256 is not the one in the manifest)")

    def _index(self, name: str) -> ShardRecord:
        """Stores the keys of a file, and returns its record."""
        with self._open(name) as file:
            keys = file.keys()
            tensors = {key: parse_key(key) for key in keys}
            for key, (_, slot) in tensors.items():
                if file.get_slice(key).get_shape() != [slot.size]:
                    raise CheckpointError(f"{name} holds {key!r} with another number of numbers")
            self._tensors[name] = tensors
            return decode_record(file.metadata())

    def _open(self, name: str) -> Any:
        try:
            return safetensors.safe_open(self.path / name, framework="numpy")
        except (safetensors.SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{name} is damaged: it is not a readable safetensors file ({error})"
            ) from error

    def _fill(self, kind: str, targets: Iterable[tuple[Slot, Vector]]) -> None:
        """Reads each target's slot into its vector, opening each file once."""
        wanted: dict[str, list[tuple[Slot, Vector]]] = {}
        for slot, vector in targets:
            if slot.parameter not in self.manifest.shapes:
                known = list(self.manifest.shapes)
                raise ValueError(f"the checkpoint has no {slot.parameter!r}; it has {known}")
            size = math.prod(self.manifest.shapes[slot.parameter])
            if slot.stop > size:
                raise ValueError(f"{slot} leaves its parameter; it has {size} numbers")
            wanted.setdefault(slot.parameter, []).append((slot, vector))
        for name, tensors in self._tensors.items():
            with self._open(name) as file:
                for key, (found, stored) in tensors.items():
                    if found != kind:
                        continue
                    for slot, vector in wanted.get(stored.parameter, ()):
                        for runs in _batched(common(slot, stored)):
                            first, last = runs[0].there, runs[-1].there + runs[-1].size
                            numbers = file.get_slice(key)[first:last]
                            for here, there, n in runs:
                                vector[here : here + n] = numbers[there - first : there - first + n]
