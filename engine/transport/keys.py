"""CURVE key pairs, and private files for them.

A secret key is passed in a file or in memory, never in a command line, a log line or an error, and never
pickled.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec
import zmq
from zmq.utils import z85

_MAX_FILE_BYTES = 4096


class InsecureKeyFile(PermissionError):
    """A secret key is stored where others could read or replace it."""


class MalformedKeyFile(ValueError):
    """A file does not contain a key pair."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, Z85 text of 40 characters each. Its repr shows the public half only."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> KeyPair:
        """Returns a new pair, from the operating system's random numbers."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode("ascii"), secret.decode("ascii"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled; write it with write_keys() and send the path")


def is_public_key(text: str) -> bool:
    """Returns whether the text can be a public key: 40 characters of Z85."""
    return len(text) == 40 and text.isascii() and all(byte in z85.Z85MAP for byte in text.encode("ascii"))


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    public: str
    secret: str


def write_keys(path: Path, keys: KeyPair) -> None:
    """Writes a pair into a new file (0600) of a private folder, which is created (0700) if missing.

    Raises:
        InsecureKeyFile: the folder is open to others.
        FileExistsError: the file exists; keys are never overwritten.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(os.lstat(path.parent), path.parent, kind=stat.S_IFDIR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(_KeyFile(keys.public, keys.secret)))
    except BaseException:
        path.unlink()
        raise


def read_keys(path: Path) -> KeyPair:
    """Reads a pair that `write_keys` wrote.

    Raises:
        InsecureKeyFile: the file or its folder is open to others, is a link, or belongs to another user.
        MalformedKeyFile: the file does not contain a pair whose halves belong together.
        OSError: the file cannot be read.
    """
    _check_private(os.lstat(path.parent), path.parent, kind=stat.S_IFDIR)
    _check_private(os.lstat(path), path, kind=stat.S_IFREG)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        # Again for the open file: the path may have been replaced since.
        _check_private(os.fstat(descriptor), path, kind=stat.S_IFREG)
        data = file.read(_MAX_FILE_BYTES)
    try:
        found = msgspec.json.decode(data, type=_KeyFile)
        belongs = zmq.curve_public(found.secret.encode()) == found.public.encode()
    except (msgspec.MsgspecError, UnicodeError, ValueError, zmq.ZMQError) as error:
        # Without the cause, which could quote the secret.
        raise MalformedKeyFile(
            f"{path} does not hold a key pair ({type(error).__name__}); write it again"
        ) from None
    if not belongs:
        raise MalformedKeyFile(f"{path} holds halves of two different pairs; write it again")
    return KeyPair(found.public, found.secret)


def _check_private(found: os.stat_result, path: Path, *, kind: int) -> None:
    """Checks for a plain folder or file (`kind`, of `stat.S_IFMT`) that only this user may access."""
    name, mode = {stat.S_IFDIR: ("folder", 0o700), stat.S_IFREG: ("file", 0o600)}[kind]
    if stat.S_IFMT(found.st_mode) != kind:
        raise InsecureKeyFile(
            f"{path} is not a plain {name}; a secret key lies in one, and not behind a link"
        )
    if found.st_uid != os.geteuid():
        raise InsecureKeyFile(
            f"{path} belongs to user {found.st_uid}; a secret key must belong to the user who runs this"
        )
    found_mode = stat.S_IMODE(found.st_mode)
    if found_mode & 0o077:
        raise InsecureKeyFile(
            f"{path} has mode {found_mode:04o}, which opens a secret key to others; chmod it to {mode:04o}"
        )
