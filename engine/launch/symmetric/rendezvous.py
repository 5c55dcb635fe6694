"""Rendezvous: where rank 0 of a job says its address, and by which keys the ranks know one another.

There are three, and which one a job has follows from what all of its ranks see alike. `SharedFolder`: a
folder of keys that all machines have; rank 0 writes its address into it. `KnownPorts`: a secret that all
ranks have in their environment; keys and ports follow from it. `PrivateFile`: all ranks are processes of one
user on one machine; rank 0 writes secret and address into a private file. Without any of these there is no
way in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil
import zmq
from typing_extensions import override

from partita.engine.launch.pool.join_file import JoinFile, default_keys
from partita.engine.launch.symmetric.job import JOB, Environ, Job
from partita.engine.launch.symmetric.job_keys import SECRET, SECRET_FILE, JobKeyring, JobSecret
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool.messages import Leave, encode
from partita.engine.transport.addresses import unreachable
from partita.engine.transport.keyring import Keyring
from partita.engine.transport.keys import InsecureKeyFile
from partita.engine.transport.visit import Visit

PORTS: Final = 8
"""Ports that rank 0 tries in turn, where they follow from the job's identity."""

_FIRST_PORT: Final = 20_000
_SPREAD: Final = 10_000  # below the ports that Linux gives to outgoing connections
_REACH_S: Final = 1.0
_HANDSHAKE_S: Final = 2.0


class Rendezvous(ABC):
    """The place where the ranks of a job find rank 0.

    Attributes:
        keyring: the keys of this rank.
        where: for messages, where ranks look for rank 0.
    """

    keyring: Keyring
    where: str

    @abstractmethod
    def endpoints(self, address: str) -> Sequence[str]:
        """Returns where rank 0, which has this address, tries to listen, in turn."""

    @abstractmethod
    def publish(self, found: JoinFile) -> None:
        """Lets the other ranks know where rank 0 listens. Raises OSError."""

    @abstractmethod
    def withdraw(self) -> None:
        """Removes what `publish` wrote."""

    @abstractmethod
    def find(self) -> JoinFile | None:
        """Returns where rank 0 listens; None if it does not yet."""


class SharedFolder(Rendezvous):
    """A file in a folder of keys that all machines share. It holds no secret."""

    def __init__(self, job: Job, keyring: Keyring, port: int) -> None:
        self.keyring, self._port = keyring, port
        self._path = keyring.folder / "jobs" / f"{_name(job)}.join"
        self.where = f"the file {self._path}"

    @override
    def endpoints(self, address: str) -> Sequence[str]:
        return [f"tcp://{address}:{self._port or '*'}"]

    @override
    def publish(self, found: JoinFile) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        found.write(self._path)

    @override
    def withdraw(self) -> None:
        self._path.unlink(missing_ok=True)

    @override
    def find(self) -> JoinFile | None:
        with contextlib.suppress(OSError, ValueError):
            os.listdir(self._path.parent)  # a network file system remembers for a while what a folder lacked
            found = JoinFile.read(self._path)
            # The file of an earlier run of the same job leads nowhere.
            if unreachable(found.address, timeout_s=_REACH_S) is None:
                return found
        return None


class KnownPorts(Rendezvous):
    """Ports of rank 0's host that follow from the job's identity, or one that is given."""

    def __init__(self, job: Job, keyring: JobKeyring, port: int) -> None:
        self.keyring, self._host, self._rank = keyring, job.address, job.rank
        self._public_key = keyring.secret.pair(job.id, "pool", 0).public
        digest = hashlib.sha256(job.id.encode()).digest()
        first = _FIRST_PORT + int.from_bytes(digest[:4]) % _SPREAD
        self._ports = [port] if port else list(range(first, first + PORTS))
        ports = str(port) if port else f"{self._ports[0]} to {self._ports[-1]}"
        self.where = f"{self._host or 'the host of rank 0'}, port {ports}"

    @override
    def endpoints(self, address: str) -> Sequence[str]:
        return [f"tcp://{address}:{port}" for port in self._ports]

    @override
    def publish(self, found: JoinFile) -> None:
        pass

    @override
    def withdraw(self) -> None:
        pass

    @override
    def find(self) -> JoinFile | None:
        for endpoint in self.endpoints(self._host):
            if unreachable(endpoint, timeout_s=_REACH_S) is None and self._is_ours(endpoint):
                return JoinFile(endpoint, self._public_key)
        return None

    def _is_ours(self, endpoint: str) -> bool:
        """Returns whether rank 0 listens there, by its key; another program may."""
        until = time.monotonic() + _HANDSHAKE_S
        with Visit(self.keyring.pair("worker"), Peer("rank 0", 0, endpoint, self._public_key)) as visit:
            while not visit.send(encode(Leave())) and time.monotonic() < until:
                zmq.select([visit.sockets[1]], [], [], 0.05)
                visit.receive()
                if visit.trouble is not None:
                    return False
            return time.monotonic() < until


class _LocalFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a private file; `pid` and `began` name the process of rank 0."""

    secret: str
    address: str
    pid: int
    began: float

    @property
    def is_alive(self) -> bool:
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.began) < 1.0)
        except psutil.NoSuchProcess:
            return False


class PrivateFile(Rendezvous):
    """A private file of this machine, for jobs whose ranks are all here and listen on loopback."""

    def __init__(self, job: Job, port: int) -> None:
        self._job, self._port = job, port
        self._path = _private_folder() / f"{_name(job)}.job"
        self.where = f"the file {self._path}"
        if job.rank == 0:
            self._secret = JobSecret.generate()
            self.keyring = self._keyring(self._secret)

    def _keyring(self, secret: JobSecret) -> JobKeyring:
        return JobKeyring(self._path.parent, secret, self._job.id, self._job.rank, self._job.size)

    @override
    def endpoints(self, address: str) -> Sequence[str]:
        assert address.startswith("127.")
        return [f"tcp://{address}:{self._port or '*'}"]

    @override
    def publish(self, found: JoinFile) -> None:
        own = psutil.Process()
        content = _LocalFile(self._secret.text, found.address, own.pid, own.create_time())
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".job-")  # with O_EXCL, 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(content))
            self._link(temporary)
        finally:
            os.unlink(temporary)

    def _link(self, temporary: str) -> None:
        """Gives the file its name, which fails where there is one."""
        try:
            os.link(temporary, self._path)
        except FileExistsError:
            left = self._read()
            if left is not None and left.is_alive:
                raise FileExistsError(
                    f"{self._path} belongs to process {left.pid}, which is rank 0 of a job with the same "
                    f"identity; give each job its own in {JOB}"
                ) from None
            self._path.unlink()  # of a rank 0 that was killed
            os.link(temporary, self._path)

    @override
    def withdraw(self) -> None:
        left = self._read()
        if left is not None and left.pid == os.getpid():
            self._path.unlink(missing_ok=True)

    @override
    def find(self) -> JoinFile | None:
        found = self._read()
        if found is None or not found.is_alive:
            return None
        self.keyring = self._keyring(JobSecret(found.secret))
        return JoinFile(found.address, self.keyring.trusted("pool").public_key)

    def _read(self) -> _LocalFile | None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise InsecureKeyFile(f"{self._path} is not a private file of this user; remove it")
            try:
                return msgspec.json.decode(file.read(4096), type=_LocalFile)
            except msgspec.MsgspecError:
                return None


def rendezvous_of(job: Job, environ: Environ, *, keys: Path | None, port: int | None) -> Rendezvous:
    """Chooses the rendezvous of a job.

    Args:
        job: the rank and its job.
        environ: the environment variables.
        keys: folder of keys, if one was given.
        port: of rank 0, if one was given.

    Raises:
        ValueError: there is no way in which ranks could know one another, or nothing tells the job from
            others.
        OSError, InsecureKeyFile: a secret cannot be read, or is open to others.
    """
    if not job.id:
        raise ValueError(
            f"{job.starter} does not say which job this is; set {JOB} to the same text in all ranks"
        )
    chosen = port or job.port
    if keys is not None:
        return SharedFolder(job, Keyring(keys), chosen)
    secret = JobSecret.of(environ)
    if secret is not None and not job.address and job.rank != 0:
        raise ValueError(
            f"{job.starter} does not say where rank 0 is; set MASTER_ADDR to its host name in all ranks, or "
            "give --keys, a folder that all machines share"
        )
    if secret is not None:
        keyring = JobKeyring(Path(SECRET), secret, job.id, job.rank, job.size)
        return KnownPorts(job, keyring, chosen)
    if job.is_local:
        return PrivateFile(job, chosen)
    if "pool" in Keyring(default_keys()).names():
        return SharedFolder(job, Keyring(default_keys()), chosen)
    raise ValueError(
        "the ranks have no keys by which to know one another; run `partita keys new` once where all machines "
        "share your home, or give --keys FOLDER, or make a secret with `partita keys new --job` and set "
        f"{SECRET} (or {SECRET_FILE}) in all ranks"
    )


def _name(job: Job) -> str:
    """A file name for a job, which differs from that of any other."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", job.id)[:40]
    return f"{readable}-{hashlib.sha256(job.id.encode()).hexdigest()[:8]}"


def _private_folder() -> Path:
    """Returns a folder of this machine that only this user may enter, and makes it.

    Raises:
        InsecureKeyFile: another user has a folder of this name.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    own = runtime.is_dir() and os.access(runtime, os.W_OK) and runtime.stat().st_uid == os.geteuid()
    folder = (runtime if own else Path(tempfile.gettempdir())) / f"partita-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise InsecureKeyFile(f"{folder} is not a private folder of this user; remove it, or set TMPDIR")
    return folder
