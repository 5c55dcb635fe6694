"""The first message to a host: its name, its key pair, and its coordinator's address."""

from __future__ import annotations

import msgspec

from partita.engine.files.access import FilesAddress
from partita.engine.protocol.messages import Peer
from partita.engine.transport.encryption import ENCRYPTED, Encryption


class Bootstrap(msgspec.Struct, frozen=True):
    """Everything that a new process needs to become a host. Holds a secret: never print it.

    Args:
        name, incarnation: of the host.
        public_key, secret_key: keys of its mailbox (Z85).
        coordinator: the coordinator's address and key.
        listen: endpoint at which its mailbox listens.
        machine: label of its machine, see `Peer`.
        together: whether all hosts of the run are on one machine.
        path: folders from which the coordinator imports.
        encryption: of the run, see `ZmqMailbox`.
        files: the run's files, for a host that may be on another machine; None: it has them by their paths.
        scratch: folder on the host's machine for copies of them; "": a temporary one.
        cores: cores that its kernels keep busy; for a worker of a pool, which shares its cores among hosts.
    """

    name: str
    incarnation: int
    public_key: str
    secret_key: str
    coordinator: Peer
    listen: str
    machine: str
    together: bool
    path: tuple[str, ...]
    encryption: Encryption = ENCRYPTED
    files: FilesAddress | None = None
    scratch: str = ""
    cores: int = 0

    def __repr__(self) -> str:
        return f"Bootstrap({self.name}, {self.incarnation})"
