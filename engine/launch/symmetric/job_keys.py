"""Keys of a job's ranks that follow from one secret, where machines share no folder of keys.

Each rank's pair is derived from the secret, the job's identity, the role and the rank, by HKDF with SHA-256
(RFC 5869): its 32 bytes are the secret half of a Curve25519 pair. Pairs of different jobs or ranks say
nothing
of one another, but whoever has the secret has all keys of the job: ranks are equal among themselves, and a
secret is as valuable as a client's key. It is read from the environment or from a private file, and never
printed, logged, pickled or sent.
"""

from __future__ import annotations

import base64
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import zmq
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from typing_extensions import override
from zmq.utils import z85

from partita.engine.launch.symmetric.job import Environ
from partita.engine.transport.keyring import Authorised, Keyring, Role
from partita.engine.transport.keys import KeyPair

SECRET: Final = "PARTITA_JOB_SECRET"
"""Variable with the secret of a job."""

SECRET_FILE: Final = "PARTITA_JOB_SECRET_FILE"
"""Variable with the path of a file that holds it, for example one that Kubernetes mounts."""

LEAST: Final = 32
"""Characters that a secret has at least."""

_BYTES: Final = 32


@dataclass(frozen=True)
class JobSecret:
    """The secret of a job. Its repr does not show it.

    Args:
        text: the secret.

    Raises:
        ValueError: it is too short to be one.
    """

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.text) < LEAST:
            raise ValueError(
                f"a job's secret has {len(self.text)} characters and needs {LEAST}; make one with "
                "`partita keys new --job`"
            )

    @classmethod
    def generate(cls) -> JobSecret:
        """Returns a new secret, from the operating system's random numbers."""
        return cls(base64.urlsafe_b64encode(secrets.token_bytes(_BYTES)).decode("ascii").rstrip("="))

    @classmethod
    def of(cls, environ: Environ) -> JobSecret | None:
        """Reads the secret of a job from the environment, or from the file that it names; None: there is
        none.

        Raises:
            ValueError: it is too short.
            OSError: the file cannot be read.
        """
        text, path = environ.get(SECRET, ""), environ.get(SECRET_FILE, "")
        if not text and path:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        return cls(text.strip()) if text else None

    def pair(self, job: str, role: Role, rank: int) -> KeyPair:
        """Derives the pair of a rank in a role."""
        derivation = HKDF(SHA256(), _BYTES, salt=job.encode(), info=f"partita 1 {role} {rank}".encode())
        secret = z85.encode(derivation.derive(self.text.encode()))
        return KeyPair(zmq.curve_public(secret).decode("ascii"), secret.decode("ascii"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a job's secret is not pickled")


def write_secret(folder: Path, secret: JobSecret) -> Path:
    """Writes a secret into a new private file (0600) of a folder, which is made (0700) if it is missing.

    Raises:
        FileExistsError: the folder has one; it is never overwritten.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "job.secret"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise FileExistsError(f"{path} exists, and a secret is never overwritten; remove it first") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{secret.text}\n")
    return path


@dataclass(frozen=True)
class JobKeyring(Keyring):
    """The keys of a rank, derived from the secret of its job, with the interface of a folder of keys.

    Args:
        folder: where the secret was found, for messages.
        secret: the secret.
        job: identity of the job.
        rank: of this process.
        size: number of ranks, whose workers' keys are trusted.
    """

    secret: JobSecret
    job: str
    rank: int
    size: int

    @override
    def pair(self, name: str) -> KeyPair:
        role: Role = "pool" if name == "pool" else "client" if name == "client" else "worker"
        return self.secret.pair(self.job, role, self.rank)

    @override
    def authorised(self) -> tuple[Authorised, ...]:
        pool = Authorised("pool", self.secret.pair(self.job, "pool", 0).public, "rank-0")
        workers = (
            Authorised("worker", self.secret.pair(self.job, "worker", rank).public, f"rank-{rank}")
            for rank in range(self.size)
        )
        return (pool, *workers)

    @override
    def stamp(self) -> tuple[int, int]:
        return 0, 0

    @override
    def remedy(self, *, other_key: bool) -> str:
        return f"its rank needs the same {SECRET} and the same job as this one"
