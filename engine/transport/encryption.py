"""The setting of what hosts encrypt, which all hosts of a run are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.engine.transport.seal import CAN_SEAL
from partita.engine.transport.sockets import is_loopback


@dataclass(frozen=True, kw_only=True)
class Encryption:
    """Setting of encryption between machines. Hosts are authenticated with every setting.

    Args:
        payloads: False sends gradients, parameters and activations as they are. Messages, tasks and payloads
            of up to 4 KiB are encrypted nevertheless.
        trusted_network: allows that beyond loopback too: nobody else can read or change what is sent there.
    """

    payloads: bool = True
    trusted_network: bool = False

    def check(self, endpoint: str) -> None:
        """Checks that a host may listen at an endpoint.

        Raises:
            ValueError: payloads would not be encrypted there, and nobody has said that they need not be; or
                there is no package to seal the headers beside them.
        """
        if self.payloads:
            return
        if not CAN_SEAL:
            raise ValueError(
                "encrypt_payloads=False needs the package 'cryptography', which seals the headers; install it"
            )
        if not (self.trusted_network or is_loopback(endpoint)):
            raise ValueError(
                f"payloads to and from {endpoint} would not be encrypted; say by trusted_network=True that "
                "nobody else can read or change what is sent there, or leave encrypt_payloads as it is"
            )

    def __str__(self) -> str:
        if self.payloads:
            return "everything is encrypted"
        where = "on a network that is said to be trusted" if self.trusted_network else "on loopback"
        return f"payloads between machines are not encrypted, {where}"


ENCRYPTED: Final = Encryption()
