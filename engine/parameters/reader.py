"""Reading a checkpoint: any range of any parameter, whatever plan and number of shards wrote it.

It must not know which checkpoint is wanted, nor the layout that reads or the one that wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors

from partita.engine.parameters.files import hash_plain, open_plain
from partita.engine.parameters.layout import check_cover
from partita.engine.parameters.manifest import CheckpointError, Manifest, ShardRecord, decode_record
from partita.engine.parameters.slots import Shared, Slot, common
from partita.engine.parameters.storage import Snapshot
from partita.engine.parameters.vector import Vector

_KEY: Final = re.compile(
    r"(values|state\.\w+)/(\d{1,18}):(\d{1,18})(?::(\d{1,18}):(\d{1,18}))?/(.*)",
    flags=re.ASCII | re.DOTALL,
)

_AT_ONCE: Final = 1 << 22
"""Numbers that are read from a file at once, at most."""


def tensor_key(kind: str, slot: Slot) -> str:
    """The name of a tensor in a shard's file: "values/0:640/hidden.weight", "state.sum/0:640/...".

    Columns of a matrix add the length of a run and from one to the next: "values/0:608:32:64/...".
    """
    columns = f":{slot.run}:{slot.stride}" if slot.stride else ""
    return f"{kind}/{slot.start}:{slot.stop}{columns}/{slot.parameter}"


def parse_key(key: str) -> tuple[str, Slot]:
    """What `tensor_key` was given. Raises CheckpointError."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise CheckpointError(f"a shard's file has a tensor {key!r}, which is no range of a parameter")
    kind, start, stop, run, stride, parameter = match.groups()
    return kind, Slot(parameter, int(start), int(stop), int(run or 0), int(stride or 0))


def _together(runs: Iterable[Shared]) -> Iterator[list[Shared]]:
    """Runs to be read at once, for there may be thousands; but of few numbers, as reading takes memory for
    them, and the interpreter's lock meanwhile. Longer ones are cut.
    """
    together: list[Shared] = []
    for here, there, size in runs:
        for cut in range(0, size, _AT_ONCE):
            run = Shared(here + cut, there + cut, min(_AT_ONCE, size - cut))
            if together and run.there + run.size - together[0].there > _AT_ONCE:
                yield together
                together = []
            together.append(run)
    if together:
        yield together


class Checkpoint:
    """A complete checkpoint, with the hash of every file verified that is to be read.

    Attributes:
        path: its folder.
        manifest: what it says of itself.
        records: what each shard remembered, by name.
        state_names: the vectors of optimizer state in it.
        skipped: newer checkpoints that could not be used, one sentence each.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        slots: Sequence[Slot] | None = None,
        skipped: tuple[str, ...] = (),
    ) -> None:
        """Verifies the files.

        Args:
            path: its folder.
            manifest: what it says of itself.
            slots: files that hold none of these are not hashed, and not to be read: where each of many shards
                opens a checkpoint, every file is read once or twice, not by all of them. None: all are.
            skipped: newer ones that could not be used.

        Raises:
            CheckpointError: a file is missing or damaged, or they do not hold every number once.
        """
        self.path: Final = path
        self.manifest: Final = manifest
        self.skipped: Final = skipped
        self.records: Final[dict[str, ShardRecord]] = {}
        self._tensors: Final[dict[str, dict[str, tuple[str, Slot]]]] = {}  # file -> key -> (kind, slot)
        for entry in manifest.entries:
            self._verify(entry.file, entry.sha256 if slots is None else None)
            record = self.records[entry.shard] = self._index(entry.file)
            if slots is not None and self._holds(entry.file, slots):
                self._verify(entry.file, entry.sha256)
            if (record.shard, record.epoch, record.version) != (entry.shard, entry.epoch, entry.version):
                raise CheckpointError(f"{entry.file} says that it is of {record.shard}, epoch {record.epoch}")
        kinds: dict[str, list[Slot]] = {"values": []}
        for tensors in self._tensors.values():
            for kind, slot in tensors.values():
                kinds.setdefault(kind, []).append(slot)
        for kind, slots in kinds.items():
            try:
                check_cover(slots, manifest.shapes)
            except ValueError as error:
                raise CheckpointError(
                    f"its files do not hold every number of {kind!r} once ({error})"
                ) from error
        self.state_names: Final = tuple(
            sorted(kind.removeprefix("state.") for kind in kinds.keys() - {"values"})
        )

    def snapshot(self, slots: Sequence[Slot]) -> Snapshot:
        """Values and optimizer state of the shard whose vector these slots make, in any layout."""
        state = {name: self.gather(slots, f"state.{name}") for name in self.state_names}
        return Snapshot(self.gather(slots), state)

    def parameters(self, kind: str = "values") -> dict[str, Vector]:
        """Whole parameters by name, in their shapes; or their optimizer state ("state.sum")."""
        whole = {name: np.empty(shape, self.dtype) for name, shape in self.manifest.shapes.items()}
        self._fill(kind, [(Slot(name, 0, array.size), array.reshape(-1)) for name, array in whole.items()])
        return whole

    def gather(self, slots: Sequence[Slot], kind: str = "values", *, out: Vector | None = None) -> Vector:
        """The vector that these slots make: of one shard, of one machine, or of any ranges.

        Args:
            slots: the ranges.
            kind: "values", or "state.NAME".
            out: `[n]`, of any dtype, to be filled; None: a new vector of the checkpoint's dtype.
        """
        size = sum(slot.size for slot in slots)
        vector = np.empty(size, self.dtype) if out is None else out
        assert vector.shape == (size,), (vector.shape, size)
        targets, position = [], 0
        for slot in slots:
            targets.append((slot, vector[position : position + slot.size]))
            position += slot.size
        self._fill(kind, targets)
        return vector

    def seen(self, shard: str, run: str) -> Mapping[str, tuple[int, int]]:
        """The watermarks to restore in this run: none where another wrote them (see `ShardRecord.run`)."""
        record = self.records.get(shard)
        return record.seen if record is not None and record.run == run else {}

    def stops(self, shard: str, run: str) -> Mapping[str, int]:
        """For each part, the step below which the numbers hold its gradients, in this run."""
        record = self.records.get(shard)
        return record.stops if record is not None and record.run == run else {}

    def updates(self, slots: Sequence[Slot]) -> int:
        """How many updates the numbers of these slots have had: the most that a shard says that held some."""
        return max(
            (
                self.records[entry.shard].updates
                for entry in self.manifest.entries
                if self._holds(entry.file, slots)
            ),
            default=0,
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all numbers."""
        return np.dtype(self.manifest.dtype)

    def _holds(self, file: str, slots: Sequence[Slot]) -> bool:
        """Whether it holds a number of one of the slots."""
        held = self._tensors[file].values()
        return any(any(common(one, slot)) for _, one in held for slot in slots)

    def _verify(self, file: str, sha256: str | None) -> None:
        """It is a plain file of this hash; None: it is a plain file."""
        try:
            if sha256 is None:
                open_plain(self.path / file).close()
                return
            open_plain(self.path / file).close()
            self._open(file)  # its length is what its header says: of any other length it need not be read
            found = hash_plain(self.path / file)
        except FileNotFoundError as error:
            raise CheckpointError(f"{file} is missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read ({error})") from error
        if found != sha256:
            raise CheckpointError(f"{file} is damaged (its SHA-256 is not the one in the manifest)")

    def _index(self, name: str) -> ShardRecord:
        """Notes what a file holds; returns what its shard remembered."""
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
            if slot.stop > self._size(slot.parameter):
                raise ValueError(f"{slot} leaves its parameter; it has {self._size(slot.parameter)} numbers")
            wanted.setdefault(slot.parameter, []).append((slot, vector))
        for name, tensors in self._tensors.items():
            with self._open(name) as file:
                for key, (found, held) in tensors.items():
                    if found != kind:
                        continue
                    for slot, vector in wanted.get(held.parameter, ()):
                        for runs in _together(common(slot, held)):
                            first, last = runs[0].there, runs[-1].there + runs[-1].size
                            numbers = file.get_slice(key)[first:last]
                            for here, there, n in runs:
                                vector[here : here + n] = numbers[there - first : there - first + n]

    def _size(self, parameter: str) -> int:
        if parameter not in self.manifest.shapes:
            raise ValueError(f"the checkpoint has no {parameter!r}; it has {list(self.manifest.shapes)}")
        return int(np.prod(self.manifest.shapes[parameter], dtype=np.int64))
