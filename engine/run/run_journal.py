"""The journal of a run in its folder: found when a run goes on, created with its first entry.

    FOLDER/journal                      answers to the method's requests
    FOLDER/start-RUN.safetensors        the parameters that it began with

A folder has one journal. That of an earlier run is replaced when the new run has its first answer, not
before; from then on no run can go on from the earlier one's checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from partita.engine.drivers.trainer import Resumed
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import hash_plain, write_atomically
from partita.engine.parameters.formats import CheckpointError, NewerFormat
from partita.engine.parameters.journal import Journal
from partita.engine.parameters.journal_format import JournalHeader
from partita.engine.parameters.manifest import Manifest
from partita.engine.protocol.coordinator_effects import AppendJournal

JOURNAL: Final = "journal"
"""Name of the file."""


class RunJournal:
    """The journal of a run, whether it exists yet or not.

    Attributes:
        header: header of the journal, also before it exists.
    """

    def __init__(self, store: Checkpoints, header: JournalHeader) -> None:
        """Reads nothing yet.

        Args:
            store: the checkpoints of the folder.
            header: header of a run from the start; the first checkpoint and the digest of the first
                parameters are filled in later.
        """
        self._store: Final = store
        self._path: Final = store.folder / JOURNAL
        self.header = header
        self._journal: Journal | None = None
        self._given = Path()  # the file of the first parameters, of a run from the start

    @property
    def start(self) -> Path:
        """File of the parameters that the method began with, beside the journal."""
        return self._start_of(self.header)

    def __len__(self) -> int:
        """Number of entries now."""
        return 0 if self._journal is None else len(self._journal)

    def find(self, *, others: bool) -> tuple[Resumed, tuple[str, ...]] | None:
        """Looks for a run to go on with.

        Args:
            others: whether checkpoints of another driver are allowed, which that driver handles.

        Returns:
            Its newest checkpoint, if it has one, and its entries; and files that could not be used, one
            sentence each. None: there is no run.

        Raises:
            CheckpointError: there is one, and it cannot go on so.
        """
        journal = Journal.read(self._path)
        newest = None if journal is None else self._newest(journal)
        if journal is None or newest is None:
            self._check_others(others=others)
            return None
        journal.check(self.header)
        self._journal, self.header = journal, journal.header
        checkpoint, skipped = newest
        if checkpoint is None:
            self._check_start()
        return Resumed(checkpoint, journal.entries), (*skipped, *((journal.cut,) if journal.cut else ()))

    def _newest(self, journal: Journal) -> tuple[Manifest | None, tuple[str, ...]] | None:
        """The run's newest usable checkpoint, if any, and why others are not; None if a later run has made
        checkpoints.
        """
        skipped: list[str] = []
        for number in self._store.complete():
            if number < journal.header.first_checkpoint:
                break
            try:
                manifest = self._store.open(number, journal.header.shapes).manifest
            except NewerFormat:
                raise
            except CheckpointError as error:
                skipped.append(str(error))
                continue
            if manifest.run != journal.header.run:
                return None
            if manifest.position is not None and manifest.position <= len(journal):
                return manifest, tuple(skipped)
            skipped.append(
                f"checkpoint {number} holds what {manifest.position} answers led to, and the journal has "
                f"{len(journal)}; an older one is used"
            )
        return None, tuple(skipped)

    def _check_others(self, *, others: bool) -> None:
        newest = self._store.latest(self.header.shapes, network=self.header.network)
        if newest is None:
            return
        manifest = newest.manifest
        if manifest.position is not None:
            raise CheckpointError(
                f"checkpoint {newest.path} needs its journal, and {self._path} is not there; train from the "
                "start, or put it back"
            )
        if not others:
            raise CheckpointError(
                f"checkpoint {newest.path} was written with {manifest.optimizer}, and a batch method goes on "
                "from a journal; give warm_start to go on with Downpour, or another folder"
            )

    def _check_start(self) -> None:
        try:
            same = hash_plain(self.start) == self.header.start
        except (OSError, ValueError):
            same = False
        if not same:
            raise CheckpointError(
                f"the journal {self._path} has no checkpoint that can be used, and {self.start.name}, from "
                "which it began, is missing or damaged; train from the start"
            )

    def _start_of(self, header: JournalHeader) -> Path:
        return self._store.folder / f"start-{header.run[:8]}.safetensors"

    def begin(self, *, first_checkpoint: int, start: Path) -> None:
        """Begins or goes on with the run.

        Args:
            first_checkpoint: number of the run's first checkpoint; those below are others'.
            start: file of the parameters that the method begins with, copied with the first entry.

        Raises:
            OSError: the journal of the run that goes on cannot be written.
        """
        self._given = start
        if self._journal is not None:
            self._journal.claim()
        else:
            self.header = msgspec.structs.replace(self.header, first_checkpoint=first_checkpoint)

    def append(self, entry: AppendJournal) -> None:
        """Adds an entry, which is written when this returns. Raises OSError."""
        self._made().append(entry.index, entry.digest, entry.scalars)

    def sync(self) -> None:
        """Forces every entry to the disk. Raises OSError."""
        self._made().sync()

    def close(self) -> None:
        """Closes the journal's file."""
        if self._journal is not None:
            self._journal.close()

    def _made(self) -> Journal:
        if self._journal is None:
            replaced = self._replaced_start()
            sha256 = write_atomically(self.start, self._given.read_bytes())
            self.header = msgspec.structs.replace(self.header, start=sha256)
            self._journal = Journal.create(self._path, self.header)
            if replaced is not None:
                replaced.unlink()
        return self._journal

    def _replaced_start(self) -> Path | None:
        """The start of the run whose journal is replaced, if it is the very file that that run wrote."""
        try:
            before = Journal.read(self._path)
            if before is not None and hash_plain(self._start_of(before.header)) == before.header.start:
                return self._start_of(before.header)
        except (CheckpointError, OSError, ValueError):
            return None  # what cannot be read proves nothing
        return None
