"""What was measured of this machine, kept in the user's cache folder: of kernels, of the runtime, of links.

As with products of matrices, a measurement holds for a machine, its versions of libraries and the environment
variables that steer them; with others it is made again.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from partita.engine.kernels.products.calibration import signature as library_signature
from partita.engine.numerics.cache import cache_folder
from partita.engine.numerics.kept_file import KeptFile, Versioned
from partita.engine.profile.roads import Road, Runtime
from partita.partitioner import kernel_times
from partita.partitioner.kernel_times import KernelTimes, Timed

VERSION: Final = kernel_times.VERSION
"""What is kept of a kernel is what such a table has of it."""
FILE: Final = "machine.json"
LOCK_WAIT_S: Final = 600.0

Company: TypeAlias = Literal["alone", "beside"]
"""Whether a part was rehearsed alone, or beside as many others as the machine has cores for."""
Transport: TypeAlias = Literal["memory", "tcp"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of one machine.

    Args:
        kernels: seconds, and those of the reference machine, by signature, by company.
        runtime: what it adds, if that was measured.
        roads: between its hosts, by transport.
    """

    kernels: dict[Company, dict[str, tuple[float, float]]] = {}
    runtime: Runtime | None = None
    roads: dict[Transport, Road] = {}

    def times(self, company: Company) -> KernelTimes:
        """The table of kernels."""
        found = self.kernels.get(company, {})
        return KernelTimes({signature: Timed(*pair) for signature, pair in found.items()})

    def with_kernels(self, company: Company, more: Mapping[str, Timed]) -> Record:
        """With these besides; what was measured before stands."""
        pairs = {signature: (timed.seconds, timed.reference_s) for signature, timed in more.items()}
        both = {**pairs, **self.kernels.get(company, {})}
        return msgspec.structs.replace(self, kernels={**self.kernels, company: both})


class _Content(Versioned, frozen=True, forbid_unknown_fields=True):
    machines: dict[str, Record]


class Store:
    """The file of records. Safe from several threads and processes."""

    def __init__(self, path: Path | None = None) -> None:
        """Finds it.

        Args:
            path: of the file; in the user's cache folder if not given.

        Raises:
            OSError: there can be no cache folder.
        """
        self._file = KeptFile(path or cache_folder() / FILE, _Content, version=VERSION)

    @property
    def path(self) -> Path:
        """Of the file."""
        return self._file.path

    def read(self) -> Record:
        """What is known of this machine, with its present libraries and settings."""
        return self._machines().get(signature(), Record())

    def write(self, record: Record) -> None:
        """Replaces what is known of this machine. To be called with the lock held.

        Raises:
            OSError: the file cannot be written.
        """
        self._file.write(_Content(VERSION, {**self._machines(), signature(): record}))

    def locked(self) -> AbstractContextManager[None]:
        """One process at a time measures, and the machine is its own.

        Raises:
            OSError: another process measures for too long, or there can be no lock.
        """
        return self._file.locked(wait_s=LOCK_WAIT_S)

    def trouble(self) -> str | None:
        """In one sentence what is wrong with the file, if something is."""
        return self._file.trouble()

    def forget(self) -> bool:
        """Deletes everything, of other settings too; says whether there was anything. Raises OSError."""
        return self._file.delete()

    def _machines(self) -> dict[str, Record]:
        found = self._file.read()
        return {} if found is None else found.machines


def signature() -> str:
    """What measurements depend on, in a line."""
    return f"{library_signature()}, Python {platform.python_version()}"
