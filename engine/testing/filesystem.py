"""A file system with written and synced apart: what a power loss leaves of it is drawn.

A change of a file lasts once the file is synced, a change of a folder (a new name, another file under a name,
a name that is gone) once the folder is. A power loss keeps any of the others: none, all, those up to some
moment, or some here and there, and of a write only one end. That is what POSIX allows, and more than most
file systems do. Nothing is said about who uses it: simulated processes do, and the real writers of
checkpoints, journals and logs, whose calls `tests.simulation.recorded` carries out here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

Change: TypeAlias = tuple[int, int, bytes | None]
"""A change of a file: when, where, and what is written there; None: the file ends there."""

Entries: TypeAlias = tuple[int, tuple[tuple[str, int | None], ...]]
"""A change of a folder: when, and the node that each of these names stands for (None: none)."""

Survives: TypeAlias = Callable[[int], bool]
"""Whether the change made at this moment survives a power loss."""


@dataclass(slots=True)
class _File:
    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    since: list[Change] = field(default_factory=list)

    def apply(self, change: Change) -> None:
        _, at, data = change
        if data is None:
            del self.now[at:]
            data = b""
        self.now.extend(bytes(max(0, at + len(data) - len(self.now))))
        self.now[at : at + len(data)] = data

    def left(self, random: Random, survives: Survives, *, torn: bool) -> _File:
        found = _File(bytearray(self.synced))
        for moment, at, data in self.since:
            if not survives(moment):
                continue
            if torn and data and random.random() < 0.3:
                cut = random.randrange(len(data) + 1)
                at, data = random.choice(((at, data[:cut]), (at + cut, data[cut:])))
            found.apply((moment, at, data))
        found.synced = bytes(found.now)
        return found


@dataclass(slots=True)
class _Folder:
    now: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    since: list[Entries] = field(default_factory=list)

    def apply(self, change: Entries) -> None:
        for name, node in change[1]:
            if node is None:
                self.now.pop(name, None)
            else:
                self.now[name] = node

    def left(self, survives: Survives) -> _Folder:
        found = _Folder(dict(self.synced))
        for change in self.since:
            if survives(change[0]):
                found.apply(change)
        found.synced = dict(found.now)
        return found


class FileSystem:
    """Files and folders below a root, whose path is "". Paths have slashes. Not for several threads.

    Attributes:
        changes: how many there were; a power loss may come after each.
    """

    def __init__(self) -> None:
        self._nodes: list[_File | _Folder] = [_Folder()]
        self.changes = 0

    # Changes of folders.

    def mkdir(self, path: str) -> None:
        """Makes a folder. Raises FileExistsError."""
        self._add(path, _Folder())

    def create(self, path: str) -> int:
        """Makes an empty file, and returns its number. Raises FileExistsError."""
        return self._add(path, _File())

    def rename(self, old: str, new: str) -> None:
        """Gives a file or a folder another name in its folder, atomically; what had that name is gone."""
        parent, name = self._parent(old)
        other, target = self._parent(new)
        if parent is not other:
            raise ValueError(f"{old} is renamed to {new}, in another folder")
        if target != name:
            self._change(parent, ((target, parent.now[name]), (name, None)))

    def remove(self, path: str) -> None:
        """Takes away the name of a file or of a folder. Raises KeyError."""
        parent, name = self._parent(path)
        if name not in parent.now:
            raise KeyError(path)
        self._change(parent, ((name, None),))

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder last."""
        folder = self._folder(path)
        folder.synced, folder.since = dict(folder.now), []
        self.changes += 1

    # Changes of files.

    def number(self, path: str) -> int | None:
        """Returns the number of the file or folder of this path; None: there is none."""
        node = 0
        for name in path.split("/") if path else ():
            folder = self._nodes[node]
            if not isinstance(folder, _Folder) or name not in folder.now:
                return None
            node = folder.now[name]
        return node

    def write(self, number: int, at: int, data: bytes) -> None:
        """Writes bytes at a place of a file."""
        self._alter(number, (self.changes + 1, at, bytes(data)))

    def append(self, number: int, data: bytes) -> None:
        """Writes bytes at the end of a file."""
        self.write(number, len(self._file(number).now), data)

    def truncate(self, number: int, size: int) -> None:
        """Gives a file this size."""
        self._alter(number, (self.changes + 1, size, None))

    def sync(self, number: int, until: int | None = None) -> None:
        """Makes the bytes of a file last, and not its name.

        Args:
            number: of the file.
            until: the count of changes when syncing began: later ones are not meant. None: all are.
        """
        file = self._file(number)
        if until is None or not file.since or file.since[-1][0] <= until:
            file.synced, file.since = bytes(file.now), []
        else:
            early = _File(bytearray(file.synced))
            for change in file.since:
                if change[0] <= until:
                    early.apply(change)
            file.synced, file.since = bytes(early.now), [one for one in file.since if one[0] > until]
        self.changes += 1

    # Questions.

    def read(self, path: str) -> bytes | None:
        """Returns the bytes of a file as running processes see them; None where there is no file."""
        number = self.number(path)
        node = None if number is None else self._nodes[number]
        return bytes(node.now) if isinstance(node, _File) else None

    def is_folder(self, path: str) -> bool:
        """Returns whether there is a folder of this path."""
        number = self.number(path)
        return number is not None and isinstance(self._nodes[number], _Folder)

    def names(self, path: str) -> list[str]:
        """Returns the names in a folder, in order; none where there is no folder."""
        number = self.number(path)
        node = None if number is None else self._nodes[number]
        return sorted(node.now) if isinstance(node, _Folder) else []

    def walk(self, path: str = "") -> Iterator[tuple[str, bytes | None]]:
        """Yields the path of everything below a folder, and the bytes of files (None: a folder)."""
        for name in self.names(path):
            inner = f"{path}/{name}" if path else name
            data = self.read(inner)
            yield inner, data
            if data is None:
                yield from self.walk(inner)

    # Failures.

    def after_power_loss(self, random: Random) -> FileSystem:
        """Returns what may be left if the power fails now. This file system stays as it is."""
        kind = random.randrange(5)
        moments = [change[0] for node in self._nodes for change in node.since]
        first, last = min(moments, default=0), max(moments, default=0)
        until = random.randint(first, last) if kind == 2 else last * (kind == 1)
        survives: Survives = (
            (lambda moment: moment <= until) if kind < 3 else (lambda moment: random.random() < 0.5)
        )
        found = FileSystem()
        found._nodes = [
            node.left(random, survives, torn=kind >= 3) if isinstance(node, _File) else node.left(survives)
            for node in self._nodes
        ]
        return found

    def flip(self, path: str, random: Random) -> None:
        """Changes one bit of a file, as a disk that goes bad does. Raises ValueError for an empty one."""
        number = self.number(path)
        assert number is not None, path
        file = self._file(number)
        if not file.now:
            raise ValueError(f"{path} is empty")
        at = random.randrange(len(file.now))
        file.now[at] ^= 1 << random.randrange(8)
        file.synced, file.since = bytes(file.now), []

    # Inside.

    def _file(self, number: int) -> _File:
        node = self._nodes[number]
        assert isinstance(node, _File), number
        return node

    def _folder(self, path: str) -> _Folder:
        number = self.number(path)
        node = None if number is None else self._nodes[number]
        if not isinstance(node, _Folder):
            raise FileNotFoundError(path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _add(self, path: str, node: _File | _Folder) -> int:
        parent, name = self._parent(path)
        if name in parent.now:
            raise FileExistsError(path)
        self._nodes.append(node)
        self._change(parent, ((name, len(self._nodes) - 1),))
        return len(self._nodes) - 1

    def _change(self, folder: _Folder, entries: tuple[tuple[str, int | None], ...]) -> None:
        self.changes += 1
        change = (self.changes, entries)
        folder.apply(change)
        folder.since.append(change)

    def _alter(self, number: int, change: Change) -> None:
        self.changes += 1
        file = self._file(number)
        file.apply(change)
        file.since.append(change)
