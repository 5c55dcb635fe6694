"""Manifest of a checkpoint, and the record in each shard's file.

The manifest is one line of JSON in an envelope with its SHA-256, so that a flipped bit in it is detected like
one in a file that it lists.
"""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec

from partita.engine.parameters.formats import CheckpointError as CheckpointError
from partita.engine.parameters.formats import Fields, NewerFormat, Upgrade, decode_any, newest, renamed
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.module_names import ModuleEntry
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import part_indices, shard_index

SHARD_FILE: Final = re.compile(
    r"(?:shard-\d{1,9}|part-\d{1,9}\.\d{1,9})\.(?:incarnation|epoch)-\d{1,9}\.safetensors",
    flags=re.ASCII,
)
"""Name of the file of a shard, or of a part whose replica keeps the parameters itself ("epoch": format 1)."""


def _record_2(fields: Fields) -> Fields:
    return renamed(fields, {"epoch": "incarnation"})


def _record_3(fields: Fields) -> Fields:
    """Format 3 may have `loss_scale`. Numbers of machines are read as texts before their types are known."""
    counts = fields.get("updates_of", {})
    if not isinstance(counts, dict) or not all(str(machine).isdecimal() for machine in counts):
        raise msgspec.ValidationError("no updates of machines")
    return {**fields, "updates_of": {int(machine): n for machine, n in counts.items()}}


def _manifest_2(fields: Fields) -> Fields:
    files = fields.get("entries")
    if not isinstance(files, list) or not all(isinstance(one, dict) for one in files):
        raise msgspec.ValidationError("no list of files")
    entries = [renamed(one, {"epoch": "incarnation"}) for one in files]
    names = {"rule": "optimizer", "steps_per_epoch": "units_per_epoch"}
    return {**renamed(fields, names), "entries": entries}


RECORD_UPGRADES: Final[tuple[Upgrade, ...]] = (_record_2, _record_3)
MANIFEST_UPGRADES: Final[tuple[Upgrade, ...]] = (
    _manifest_2,
    dict,
)  # format 3 may have `callbacks` and `module`


class UnitsOfRange(msgspec.Struct, frozen=True, array_like=True):
    """The units of work whose gradients the numbers `[start, stop)` of a shard's vector hold.

    They are ascending ranges, of all runs that went on from one another.
    """

    start: int
    stop: int
    units: tuple[tuple[int, int], ...]


class ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of a shard, or of a part that keeps parameters, that is stored with its numbers.

    Attributes:
        run: id of the run that wrote it. The watermarks are valid in this run only: the parts of a later one
            count their pushes from zero again.
        shard: "shard K", or "part R.M".
        incarnation: of the process that wrote it.
        version: number of applied pushes.
        seen: for each part, the last applied push: (incarnation, sequence).
        updates: largest number of updates of any number, in this run and those before it, for schedules; 0 in
            older files.
        stops: for each part, the step below which the numbers contain its gradients.
        updates_of: for each machine of the plan, the updates of its numbers, for this run; empty in older
            files.
        units: for each machine's range, the units of work that the numbers contain; empty in older files, and
            in those of parts.
        loss_scale: of a part that keeps parameters, where losses are scaled.
        format: of records.
    """

    run: str
    shard: str
    incarnation: int
    version: int
    seen: dict[str, tuple[int, int]]
    updates: int = 0
    stops: dict[str, int] = {}
    updates_of: dict[int, int] = {}
    units: tuple[UnitsOfRange, ...] = ()
    loss_scale: ScaleState | None = None
    format: int = newest(RECORD_UPGRADES)

    @property
    def file(self) -> str:
        """Name of its file."""
        known = shard_index(self.shard) is not None or part_indices(self.shard) is not None
        assert known, f"{self.shard!r} is neither a shard nor a part"
        return own_file(self.shard, self.incarnation)


def own_file(writer: str, incarnation: int) -> str:
    """Returns the name of a host's file in a checkpoint, different for each incarnation, so that a replaced
    process overwrites nothing.
    """
    return f"{writer.replace(' ', '-')}.incarnation-{incarnation}.safetensors"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A complete checkpoint.

    Attributes:
        checkpoint: its number.
        run: id of the run that wrote it.
        shapes: of every parameter of the network.
        dtype: of all numbers, "float32" or "float64".
        optimizer: as it prints itself.
        steps: done by each replica.
        units_per_epoch: steps of each replica; where there is `done`, the units that it counts. A run that
            continues with another batch or other data counts epochs.
        lost: number of acknowledged pushes that failures had lost so far.
        entries: the shards' files.
        network: a text for each layer, by name, for what shapes do not distinguish; empty in older files.
        position: for a batch method, the number of journal entries that the vectors contain; None for
            Downpour.
        done: units of the run that the files hold: ascending ranges `[start, stop)` of steps where the
            replicas share them, of examples where they do each step together. Empty in older files.
        callbacks: state of the run's callbacks, and the learning rate's factor; empty where there are none.
        module: the state dict of the module of PyTorch that the network was made of, or that is a layer;
            empty where there is none, and in older files.
        format: of manifests.
    """

    checkpoint: int
    run: str
    shapes: dict[str, Shape]
    dtype: str
    optimizer: str
    steps: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
    units_per_epoch: Annotated[int, msgspec.Meta(ge=1)]
    entries: tuple[ShardFile, ...]
    lost: int = 0
    network: dict[str, str] = {}
    position: Annotated[int, msgspec.Meta(ge=0)] | None = None
    done: tuple[tuple[int, int], ...] = ()
    callbacks: dict[str, Any] = {}
    module: tuple[ModuleEntry, ...] = ()
    format: int = newest(MANIFEST_UPGRADES)

    @property
    def epochs(self) -> Fraction:
        """The epochs that are done, on the average of the replicas."""
        if self.done:
            return Fraction(sum(stop - start for start, stop in self.done), self.units_per_epoch)
        return Fraction(sum(self.steps), self.units_per_epoch * len(self.steps))


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the content of manifest.json."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Decodes a manifest, and checks what can be checked without its files.

    Raises:
        NewerFormat: a newer version wrote it.
        CheckpointError: it is damaged, or names a file that is no shard's.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if hashlib.sha256(body).hexdigest() != envelope.sha256:
            raise CheckpointError("its manifest is damaged (the SHA-256 in it is another)")
        manifest = decode_any(body, Manifest, MANIFEST_UPGRADES)
    except NewerFormat as error:
        raise NewerFormat(f"its manifest {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"its manifest is damaged ({error})") from error
    if manifest.dtype not in ("float32", "float64"):
        raise CheckpointError(f"its numbers are {manifest.dtype!r}, neither float32 nor float64")
    bounds = [-1, *(bound for some in manifest.done for bound in some)]
    if any(a >= b for a, b in pairwise(bounds)):
        raise CheckpointError(f"its steps {manifest.done} are no ascending ranges")
    for entry in manifest.entries:
        if not SHARD_FILE.fullmatch(entry.file):
            raise CheckpointError(f"its manifest names {entry.file!r}, which is no name of a shard's file")
    return manifest


def encode_record(record: ShardRecord) -> dict[str, str]:
    """Encodes a record as safetensors metadata (one entry, so that equal checkpoints have equal bytes)."""
    return {"partita": msgspec.json.encode(record).decode()}


def decode_record(metadata: dict[str, str] | None) -> ShardRecord:
    """Decodes a record from safetensors metadata.

    Raises:
        NewerFormat: a newer version wrote it.
        CheckpointError: it is damaged.
    """
    try:
        return decode_any((metadata or {}).get("partita", ""), ShardRecord, RECORD_UPGRADES)
    except NewerFormat as error:
        raise NewerFormat(f"the record in a shard's file {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"a shard's file does not say what it is ({error})") from error
