"""Sealing of what travels over a stream link: AES-256-GCM, by the package `cryptography`.

A processor with instructions for AES seals or opens about 20 GB/s on a core; CURVE, in which ZeroMQ encrypts
frames, takes several times as long. The key of each link comes from the operating system, is used in one
direction, and reaches the receiver over the connection that CURVE authenticates and encrypts. Records are
numbered, and the number is the nonce, so none can be repeated, left out or moved.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:  # then CURVE encrypts everything
    _can_seal = False
else:
    _can_seal = True

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
"""Bytes by which a sealed record is longer."""

CAN_SEAL: Final = _can_seal
"""Whether the package is there. Without it there are no stream links."""


class BrokenSeal(ValueError):
    """A record is not what the owner of the key has sealed at this place."""


def new_key() -> bytes:
    """Returns a random key."""
    return secrets.token_bytes(KEY_BYTES)


class Seal:
    """One end of a sequence of sealed records; the other end has the same key. One thread at a time."""

    def __init__(self, key: bytes) -> None:
        """Begins at record 0. `key` has `KEY_BYTES` bytes."""
        self._cipher: Any = AESGCM(key)
        self._record = 0

    def close(self, data: memoryview | bytes, out: memoryview) -> None:
        """Seals the next record into `out`, which is `TAG_BYTES` longer than the data."""
        self._cipher.encrypt_into(self._nonce(), data, None, out)

    def open(self, sealed: memoryview | bytes, out: memoryview) -> None:
        """Opens the next record into `out`, which is `TAG_BYTES` shorter.

        Raises:
            BrokenSeal: it was sealed with another key, is another record, or was changed.
        """
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, None, out)
        except InvalidTag as error:
            raise BrokenSeal(f"record {self._record} was not sealed with this key") from error

    def _nonce(self) -> bytes:
        self._record += 1
        return self._record.to_bytes(12, "little")
