"""A folder of keys: pairs of this machine's own, and the public keys that may talk to it.

The folder is private (0700). `NAME.key` is a pair (0600) and `NAME.pub` its public half; `authorised` has a
line for each public key that is trusted, with the role that its owner may have and a name for messages:

    ROLE  PUBLIC-KEY  NAME

Roles: `pool` (the coordinator of a pool), `worker`, and `client` (trains on the pool's workers). Whoever may
be a client can run code on every worker. A line that is deleted revokes its key.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias, get_args

from partita.engine.transport.keys import (
    InsecureKeyFile,
    KeyPair,
    MalformedKeyFile,
    is_public_key,
    read_keys,
    write_keys,
)

Role: TypeAlias = Literal["pool", "worker", "client"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

_SUFFIX: Final = ".key"
_PUBLIC: Final = ".pub"
_LIST: Final = "authorised"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", flags=re.ASCII)


@dataclass(frozen=True, slots=True)
class Authorised:
    """A public key that is trusted.

    Args:
        role: the role that its owner may have.
        public_key: Z85 text of 40 characters.
        name: for messages.
    """

    role: Role
    public_key: str
    name: str


class Trust(Protocol):
    """Keys of a pool's registry: a `Keyring`, or what has the same methods."""

    def pair(self, name: str) -> KeyPair:
        """Returns the pair of this name."""

    def authorised(self) -> tuple[Authorised, ...]:
        """Returns the public keys that are trusted."""

    def stamp(self) -> tuple[int, int]:
        """Returns a value that changes when `authorised` does."""

    def remedy(self, *, other_key: bool) -> str:
        """Words what somebody has to do who did not get in.

        Args:
            other_key: because the pool was expected to have another key; otherwise for a key of their own
                that is not trusted.
        """


@dataclass(frozen=True)
class Keyring:
    """A folder of keys, which need not exist yet.

    Args:
        folder: the folder.
    """

    folder: Path

    def new(self, name: str) -> KeyPair:
        """Makes a pair and writes it as `NAME.key`; the folder is made if it is missing.

        Raises:
            ValueError: the name has other characters than letters, digits, `.`, `_` and `-`.
            FileExistsError: there is a pair of this name; keys are never overwritten.
            InsecureKeyFile: the folder is open to others.
        """
        _check_name(name)
        pair = KeyPair.generate()
        path = self.folder / f"{name}{_SUFFIX}"
        try:
            write_keys(path, pair)
        except FileExistsError:
            raise FileExistsError(
                f"{path} exists, and a key is never overwritten; choose another name, or remove the file"
            ) from None
        self.public_file(name).write_text(f"{pair.public}\n", encoding="ascii")
        return pair

    def public_file(self, name: str) -> Path:
        """Returns the path of a pair's public half, which may be given to anybody."""
        return self.folder / f"{name}{_PUBLIC}"

    def pair(self, name: str) -> KeyPair:
        """Reads the pair of this name.

        Raises:
            FileNotFoundError: there is none.
            InsecureKeyFile, MalformedKeyFile, OSError: as `read_keys`.
        """
        path = self.folder / f"{name}{_SUFFIX}"
        try:
            return read_keys(path)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no key {path}; make one with `partita keys new {name} --keys {self.folder}`"
            ) from None

    def names(self) -> list[str]:
        """Returns the names of the pairs, sorted."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))

    def authorise(self, role: Role, public_key: str, name: str) -> None:
        """Adds a public key to those that are trusted; one that is there already gets this role and name.

        Raises:
            ValueError: the key is not 40 characters of Z85, or the name has other characters.
            InsecureKeyFile, MalformedKeyFile: see `authorised`.
        """
        _check_name(name)
        if not is_public_key(public_key):
            raise ValueError(
                f"'{public_key}' is not a public key, which has 40 characters; `partita keys show` prints it"
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = [one for one in self.authorised() if one.public_key != public_key]
        lines = [
            f"{one.role} {one.public_key} {one.name}\n" for one in (*kept, Authorised(role, public_key, name))
        ]
        temporary = self.folder / f".{_LIST}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.writelines(lines)
        temporary.replace(self.folder / _LIST)

    def authorised(self) -> tuple[Authorised, ...]:
        """Reads the public keys that are trusted; none if there is no list.

        Raises:
            InsecureKeyFile: others could change the list.
            MalformedKeyFile: a line cannot be read.
        """
        path = self.folder / _LIST
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return ()
        with os.fdopen(descriptor, encoding="ascii") as file:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
                raise InsecureKeyFile(
                    f"{path} can be changed by others, who could let themselves in; "
                    "it must belong to the user who runs this, with mode 0600"
                )
            return tuple(_authorised(line, path, n) for n, line in enumerate(file, 1) if line.strip())

    def stamp(self) -> tuple[int, int]:
        """Returns a value that changes when the list of trusted keys is replaced or written."""
        try:
            found = os.stat(self.folder / _LIST)
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def remedy(self, *, other_key: bool) -> str:
        """Words what somebody has to do who did not get in, see `Trust`."""
        if other_key:
            return f"give it {self.public_file('pool')} of this machine"
        return (
            "to let it in, copy its .pub file here and run `partita keys authorise FILE --as worker --keys "
            f"{self.folder}`"
        )

    def trusted(self, role: Role) -> Authorised:
        """Returns the first trusted key of a role.

        Raises:
            ValueError: there is none.
            InsecureKeyFile, MalformedKeyFile: see `authorised`.
        """
        for one in self.authorised():
            if one.role == role:
                return one
        raise ValueError(
            f"no key in {self.folder} is trusted as a {role}; copy {role}.pub from the {role}'s folder of "
            f"keys, and run `partita keys authorise {role}.pub --as {role} --keys {self.folder}`"
        )


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"'{name}' cannot be the name of a key; use letters, digits, '.', '_' and '-'")


def _authorised(line: str, path: Path, number: int) -> Authorised:
    words = line.split()
    if len(words) == 3 and words[0] in ROLES and is_public_key(words[1]) and _NAME.fullmatch(words[2]):
        return Authorised(words[0], words[1], words[2])
    raise MalformedKeyFile(
        f"{path}, line {number} is not `ROLE PUBLIC-KEY NAME`, with a role of {', '.join(ROLES)}; correct it"
    )
