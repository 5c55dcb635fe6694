"""Messages between a host and the host `files`, which serves files of the coordinator's machine.

A file is known by a name from a closed set (`data/...`, `initial/...`, `checkpoint/NUMBER/...`), never by a
path. Contents are sent beside the message, in chunks.
"""

from __future__ import annotations

import msgspec

from partita.engine.protocol.message_base import Count, MessageStruct


class FilesHello(MessageStruct, frozen=True, tag=True):
    """The first message of a host: the inbox to which answers are sent. Repeated until `FilesWelcome`."""

    endpoint: str


class FilesWelcome(MessageStruct, frozen=True, tag=True):
    """Answers `FilesHello`: requests are served from now on."""


class FindFile(MessageStruct, frozen=True, tag=True):
    """Asks for the size of a file. Answered by `FileFound` or `FileMissing`."""

    request: Count
    name: str


class FileFound(MessageStruct, frozen=True, tag=True):
    """Answers `FindFile`: the size of the file in bytes."""

    request: Count
    n_bytes: Count


class FileMissing(MessageStruct, frozen=True, tag=True):
    """Answers `FindFile` or `ReadFile`: the file cannot be read, for this reason."""

    request: Count
    reason: str


class ReadFile(MessageStruct, frozen=True, tag=True):
    """Asks for the bytes `[start, stop)` of a file, of which there are at most `CHUNK_BYTES`."""

    request: Count
    name: str
    start: Count
    stop: Count


class FileChunk(MessageStruct, frozen=True, tag=True):
    """Answers `ReadFile`. The payload: the bytes."""

    request: Count


class WriteFile(MessageStruct, frozen=True, tag=True):
    """The payload: the bytes of a new file from `start` on. A host writes one file at a time.

    `number` counts the files of the sender's process, ascending: a larger one drops an unfinished file.
    """

    number: Count
    name: str
    start: Count


class FinishFile(MessageStruct, frozen=True, tag=True):
    """The file has so many bytes and this SHA-256. Answered by `FileStored`, `FileRefused` or `FileWritten`.

    Repeated until then; the file is stored once.
    """

    number: Count
    name: str
    n_bytes: Count
    sha256: str


class FileWritten(MessageStruct, frozen=True, tag=True):
    """The first `n_bytes` of a file are written, not yet under its name; later chunks may follow."""

    number: Count
    n_bytes: Count


class FileStored(MessageStruct, frozen=True, tag=True):
    """The file is on disk under its name, with the SHA-256 that the sender gave."""

    number: Count


class FileRefused(MessageStruct, frozen=True, tag=True):
    """The file was not stored, for this reason; nothing is left of it."""

    number: Count
    reason: str


class PushRecord(msgspec.Struct, frozen=True, array_like=True):
    """The first `pushes` pushes of one process of a part, of one stream to a shard, are acknowledged.

    They and those of earlier processes of the part hold the gradients of the steps below `stop`.
    """

    incarnation: Count
    pushes: Count
    stop: Count = 0


class SavePushes(MessageStruct, frozen=True, tag=True):
    """A part's record of a stream to a shard, which replaces the one before it; see `PushRecord`."""

    stream: str
    record: PushRecord
