"""What a checkpoint says of itself: the manifest, and what each shard's file remembers beside its numbers.

The manifest is one line of JSON in an envelope with its SHA-256, so that a flipped bit in it is noticed as
well as one in a file that it lists. It must not know the disk, only bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

import msgspec

from partita.engine.parameters.layout import Shape
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.protocol.names import shard_index

FORMAT: Final = 1
SHARD_FILE: Final = re.compile(r"shard-\d{1,9}\.epoch-\d{1,9}\.safetensors", flags=re.ASCII)
"""The name of a shard's file."""


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, or of another network. One sentence, and what to do."""


class ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard must remember together with its numbers.

    Attributes:
        run: the run that wrote it. The watermarks mean something in this run only: the parts of a later one
            count their pushes from zero again.
        shard: "shard K".
        epoch: of the process that wrote it.
        version: pushes applied.
        seen: for each part, the last push applied: (incarnation, sequence).
        updates: the most that any of its numbers has had, in this run and those before it: what schedules go
            by. 0 in files that were written before there were any.
        stops: for each part, the step below which the numbers hold its gradients.
    """

    run: str
    shard: str
    epoch: int
    version: int
    seen: dict[str, tuple[int, int]]
    updates: int = 0
    stops: dict[str, int] = {}

    @property
    def file(self) -> str:
        """Its file's name: another for each epoch, so that a process that was replaced overwrites nothing."""
        index = shard_index(self.shard)
        assert index is not None, f"{self.shard!r} is not a shard"
        return f"shard-{index}.epoch-{self.epoch}.safetensors"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A complete checkpoint.

    Attributes:
        checkpoint: its number.
        run: the run that wrote it.
        shapes: every parameter of the network.
        dtype: of all numbers, "float32" or "float64".
        optimizer: the optimizer, as it prints itself.
        steps: steps done by each replica.
        steps_per_epoch: of each replica. A run that goes on with another batch, or other data, counts epochs.
        lost: acknowledged pushes that failures had cost the run by then.
        entries: the shards' files.
        network: a text for each layer, by name: what shapes do not tell apart. Empty in manifests that were
            written before there were any.
        position: of a batch method: how many entries of its journal the vectors hold; None under Downpour.
        format: of checkpoints; another one is refused.
    """

    checkpoint: int
    run: str
    shapes: dict[str, Shape]
    dtype: str
    optimizer: str = msgspec.field(name="rule")
    steps: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
    steps_per_epoch: Annotated[int, msgspec.Meta(ge=1)]
    entries: tuple[ShardFile, ...]
    lost: int = 0
    network: dict[str, str] = {}
    position: Annotated[int, msgspec.Meta(ge=0)] | None = None
    format: int = FORMAT


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes, checked as far as that goes without its files.

    Raises:
        CheckpointError: it is damaged, of another format, or names a file that is no shard's.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if hashlib.sha256(body).hexdigest() != envelope.sha256:
            raise CheckpointError("its manifest is damaged (the SHA-256 in it is another)")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"its manifest is damaged ({error})") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"it has format {manifest.format}, and this version reads {FORMAT}")
    if manifest.dtype not in ("float32", "float64"):
        raise CheckpointError(f"its numbers are {manifest.dtype!r}, neither float32 nor float64")
    for entry in manifest.entries:
        if not SHARD_FILE.fullmatch(entry.file):
            raise CheckpointError(f"its manifest names {entry.file!r}, which is no name of a shard's file")
    return manifest


def encode_record(record: ShardRecord) -> dict[str, str]:
    """The record as safetensors metadata (one entry, so that equal checkpoints have equal bytes)."""
    return {"partita": msgspec.json.encode(record).decode()}


def decode_record(metadata: dict[str, str] | None) -> ShardRecord:
    """The record in safetensors metadata. Raises CheckpointError."""
    try:
        return msgspec.json.decode((metadata or {}).get("partita", ""), type=ShardRecord)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"a shard's file does not say what it is ({error})") from error
