"""The file in which measurements of kernels are kept: its form, and how several processes share it.

It lies in the user's cache folder: whoever deletes it loses a second at the next start. A file that is not
of this form counts as empty and is written anew. One process at a time measures; others wait for its lock,
and read what it found.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

VERSION: Final = 2
_LOOK_AGAIN_S: Final = 0.02

Library: TypeAlias = Literal["numpy", "tiles", "torch"]
"""Who multiplies: the BLAS of NumPy or of torch, or our own loops."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A product of matrices, `[m, k]` times `[k, n]`, and who computes it.

    Args:
        m: rows of the result.
        k: terms of each sum.
        n: columns of the result.
        layout: of both factors, "N" for one that lies in rows and "T" for one in columns.
        precision: as `Site.precision`.
        threads: that may be used.
        device: as `Site.device`.
    """

    m: int
    k: int
    n: int
    layout: str
    precision: str
    threads: int
    device: str = "cpu"

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.k * self.n


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a product took.

    Args:
        machine: on which, with which libraries and settings; see `calibration.signature`.
        product: what was measured.
        seconds: that each library took.
        chosen: one of them.
    """

    machine: str
    product: Shape
    seconds: dict[Library, float]
    chosen: Library


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class _Content(_Versioned, frozen=True, forbid_unknown_fields=True):
    measurements: tuple[Measurement, ...]


class CalibrationFile:
    """The file at a path. Safe from several threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Measurement, ...]:
        """What is kept; nothing where the file is missing or cannot be used."""
        try:
            return self._measurements()
        except (OSError, ValueError, msgspec.DecodeError):
            return ()

    def trouble(self) -> str | None:
        """In one sentence why the file cannot be used; None if it can be, or is missing."""
        try:
            self._measurements()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            return (
                f"{self.path} cannot be used ({error}); it counts as empty, and is written anew when needed"
            )
        return None

    def add(self, measurement: Measurement) -> None:
        """Keeps one more. To be called with the lock held.

        Raises:
            OSError: the file cannot be written; the old one stands.
        """
        content = _Content(VERSION, (*self.read(), measurement))
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self) -> bool:
        """Removes the file; says whether there was one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
            return True
        return False

    @contextlib.contextmanager
    def locked(self, *, wait_s: float) -> Iterator[None]:
        """Holds the lock, which ends with the process, however that ends.

        Raises:
            TimeoutError: another process has held it for so long.
            OSError: there can be no lock in this folder.
        """
        descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + wait_s
            while not _taken(descriptor):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held {self.path.with_suffix('.lock')} for {wait_s} s"
                    )
                time.sleep(_LOOK_AGAIN_S)
            yield
        finally:
            os.close(descriptor)

    def _measurements(self) -> tuple[Measurement, ...]:
        data = self.path.read_bytes()
        found = msgspec.json.decode(data, type=_Versioned).version
        if found != VERSION:
            raise ValueError(f"its version is {found}, and this Partita reads version {VERSION}")
        return msgspec.json.decode(data, type=_Content).measurements


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
