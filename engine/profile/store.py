"""What was measured of this machine, kept in the user's cache folder: of kernels, of the runtime, of links.

A measurement holds for a machine, its versions of libraries and the environment variables that steer them;
with others it is made again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from partita.engine.numerics.cache import cache_folder
from partita.engine.numerics.kept_file import KeptFile, Versioned
from partita.engine.profile.links import LinkMeasurement, Runtime
from partita.engine.profile.products import ProductMeasurement
from partita.engine.profile.signature import signature
from partita.partitioner.cluster.kernel_times import KernelTimes, Timed
from partita.partitioner.cluster.processor import processor
from partita.partitioner.cluster.products import Products, products_for

VERSION: Final = 3
FILE: Final = "machine.json"
LOCK_WAIT_S: Final = 600.0

Contention: TypeAlias = Literal["alone", "beside"]
"""Whether a part was rehearsed alone, or beside as many others as the machine has cores for."""
Transport: TypeAlias = Literal["memory", "tcp"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of one machine.

    Args:
        kernels: seconds, and those of the reference machine, by signature, by company.
        runtime: what it adds, if that was measured.
        links: between its hosts, by transport.
        products: what was measured of products of matrices.
        measured_on: the day of the last of these, YYYY-MM-DD.
    """

    kernels: dict[Contention, dict[str, tuple[float, float]]] = {}
    runtime: Runtime | None = None
    links: dict[Transport, LinkMeasurement] = msgspec.field(default_factory=dict, name="roads")
    products: tuple[ProductMeasurement, ...] = ()
    measured_on: str = ""

    def times(self, contention: Contention) -> KernelTimes:
        """The table of kernels."""
        found = self.kernels.get(contention, {})
        return KernelTimes({signature: Timed(*pair) for signature, pair in found.items()})

    def choices(self) -> Products:
        """Which library computes which product of matrices on this machine."""
        rule = products_for(processor())
        measured = tuple((one.shape, one.choice) for one in self.products)
        source = f"{processor().name}, {self.measured_on}" if measured else ""
        return replace(rule, measured=measured, source=source)

    def without_kernels(self, signatures: Collection[str]) -> Record:
        """Without the kernels of these signatures: something that they depend on has changed."""
        kernels = {
            contention: {signature: pair for signature, pair in table.items() if signature not in signatures}
            for contention, table in self.kernels.items()
        }
        return msgspec.structs.replace(self, kernels=kernels)

    def with_kernels(self, contention: Contention, more: Mapping[str, Timed]) -> Record:
        """With these besides; what was measured before stands."""
        pairs = {signature: (timed.seconds, timed.reference_s) for signature, timed in more.items()}
        both = {**pairs, **self.kernels.get(contention, {})}
        return msgspec.structs.replace(self, kernels={**self.kernels, contention: both})


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
        """Holds the lock: one process at a time measures.

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
