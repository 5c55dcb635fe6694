"""Measurements of this machine's kernels, runtime and links, kept in the user's cache folder.

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
from partita.engine.profile.kept_file import KeptFile, Versioned
from partita.engine.profile.links import LinkMeasurement, Runtime
from partita.engine.profile.products import ProductMeasurement
from partita.engine.profile.signature import signature
from partita.engine.profile.tiles import TileMeasurement
from partita.partitioner.cluster.kernel_times import KernelTimes, Timed
from partita.partitioner.cluster.processor import Processor, processor
from partita.partitioner.cluster.products import Products, products_for
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TileForms

VERSION: Final = 3
FILE: Final = "machine.json"
LOCK_WAIT_S: Final = 600.0

Contention: TypeAlias = Literal["alone", "beside"]
"""Whether a part was timed alone, or beside as many others as the machine has cores for."""
Transport: TypeAlias = Literal["memory", "tcp"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurements of one machine.

    Args:
        kernels: seconds on it and on the reference machine, by contention and by signature.
        runtime: costs of the runtime, if they were measured.
        links: links between its hosts, by transport.
        products: products of matrices.
        tiles: operations of layers on patches.
        measured_on: day of the newest product or operation, YYYY-MM-DD.
        threads: least work of each thread, by the number of a machine's threads.
        processor: kind of its processor; None: that of the machine on which this process runs.
    """

    kernels: dict[Contention, dict[str, tuple[float, float]]] = {}
    runtime: Runtime | None = None
    links: dict[Transport, LinkMeasurement] = msgspec.field(default_factory=dict, name="roads")
    products: tuple[ProductMeasurement, ...] = ()
    tiles: tuple[TileMeasurement, ...] = ()
    threads: dict[int, ThreadShares] = {}
    measured_on: str = ""
    processor: Processor | None = None

    def times(self, contention: Contention) -> KernelTimes:
        """Returns the table of kernels."""
        found = self.kernels.get(contention, {})
        return KernelTimes({signature: Timed(*pair) for signature, pair in found.items()})

    def choices(self, threads: int | None = None) -> Products:
        """Returns the library of each product of matrices, the least work of each thread, and forms of tiles.

        Args:
            threads: those of a machine; None: as many as were measured last.
        """
        rule = products_for(self.processor or processor())
        measured = tuple((one.shape, one.choice) for one in self.products)
        shares = self.threads.get(next(reversed(self.threads), 0) if threads is None else threads)
        source = self.source if measured else ""
        tiled = tuple((one.loop, one.form) for one in self.tiles)
        forms = TileForms(tiled, self.source if tiled else "")
        return replace(rule, measured=measured, source=source, threads=shares or rule.threads, forms=forms)

    @property
    def source(self) -> str:
        """Processor and day of the newest choice, in words."""
        return f"{(self.processor or processor()).name}, {self.measured_on}"

    def without_kernels(self, signatures: Collection[str]) -> Record:
        """Returns the record without some kernels, because something that they depend on has changed."""
        kernels = {
            contention: {signature: pair for signature, pair in table.items() if signature not in signatures}
            for contention, table in self.kernels.items()
        }
        return msgspec.structs.replace(self, kernels=kernels)

    def with_kernels(self, contention: Contention, more: Mapping[str, Timed]) -> Record:
        """Returns the record with more kernels; those measured before stay."""
        pairs = {signature: (timed.seconds, timed.reference_s) for signature, timed in more.items()}
        both = {**pairs, **self.kernels.get(contention, {})}
        return msgspec.structs.replace(self, kernels={**self.kernels, contention: both})


class _Content(Versioned, frozen=True, forbid_unknown_fields=True):
    machines: dict[str, Record]


class Store:
    """The file of records. Safe from several threads and processes."""

    def __init__(self, path: Path | None = None, *, of: str | None = None) -> None:
        """Finds the file.

        Args:
            path: path of the file; in the user's cache folder if not given.
            of: signature of the machine whose record is read and written; of this machine if not given.

        Raises:
            OSError: there can be no cache folder.
        """
        self._file = KeptFile(path or cache_folder() / FILE, _Content, version=VERSION)
        self._of = of

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    def read(self) -> Record:
        """Returns the record of the machine with its present libraries and settings; it may be empty."""
        return self._machines().get(self._of or signature(), Record())

    def write(self, record: Record) -> None:
        """Replaces the record of the machine. The caller must hold the lock.

        Raises:
            OSError: the file cannot be written.
        """
        self._file.write(_Content(VERSION, {**self._machines(), self._of or signature(): record}))

    def locked(self) -> AbstractContextManager[None]:
        """Holds the lock: one process at a time measures.

        Raises:
            OSError: another process measures for too long, or there can be no lock.
        """
        return self._file.locked(wait_s=LOCK_WAIT_S)

    def trouble(self) -> str | None:
        """Returns a sentence about what is wrong with the file; None if nothing is."""
        return self._file.trouble()

    def forget(self) -> bool:
        """Deletes the records of all machines and settings; says whether any was there. Raises OSError."""
        return self._file.delete()

    def _machines(self) -> dict[str, Record]:
        found = self._file.read()
        return {} if found is None else found.machines
