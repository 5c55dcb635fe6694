"""The place of a host, as an argument of its launcher."""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.transport.sockets import check_endpoint, is_loopback


@dataclass(frozen=True)
class Placement:
    """The place of a host: the command that starts processes there, its address, and its machine.

    Args:
        command: command that starts a process there, before the process's own command, as in
            `("ip", "netns", "exec", "left")`. It must become that process and not its parent.
        address: address at which the other hosts reach it, as in `10.0.0.2`. It listens there and nowhere
            else.
        machine: a label: hosts with the same one may share memory. "" shares memory with no other host.

    Raises:
        ValueError: the address cannot be one.
    """

    command: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    machine: str = ""

    def __post_init__(self) -> None:
        check_endpoint(self.endpoint, listening=True)

    @property
    def endpoint(self) -> str:
        """Endpoint of its mailbox, on any free port."""
        return f"tcp://{self.address}:*"

    @property
    def is_loopback(self) -> bool:
        """Returns whether only processes of the same machine can reach it."""
        return is_loopback(self.endpoint)
