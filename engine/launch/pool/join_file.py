"""Where a pool is, and where a user's keys are: what `partita worker` needs before it joins."""

from __future__ import annotations

from pathlib import Path

import msgspec
from platformdirs import user_config_path

from partita.engine.transport.keys import is_public_key
from partita.engine.transport.sockets import check_endpoint


def default_keys() -> Path:
    """Returns the folder of keys of this user."""
    return user_config_path("partita", appauthor=False) / "keys"


class JoinFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a pool is, and the key by which to know it. Holds no secret."""

    address: str
    public_key: str

    def write(self, path: Path) -> None:
        """Writes the file, in the place of an earlier one. Raises OSError."""
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(msgspec.json.encode(self))
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> JoinFile:
        """Reads a file. Raises OSError, or ValueError if it is none."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(
                f"{path} is not a join file ({error}); `partita pool serve` writes one"
            ) from None
        check_endpoint(found.address, listening=False)
        if not is_public_key(found.public_key):
            raise ValueError(f"{path} has no public key; `partita pool serve` writes a join file")
        return found
