"""How ranks know one another: keys from a secret, and the three ways to find rank 0."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.launch.pool import JoinFile, PoolServer
from partita.engine.launch.pool.server import PoolThread
from partita.engine.launch.symmetric.job import Job, job_of
from partita.engine.launch.symmetric.job_keys import JobKeyring, JobSecret, write_secret
from partita.engine.launch.symmetric.rendezvous import (
    PORTS,
    KnownPorts,
    PrivateFile,
    SharedFolder,
    rendezvous_of,
)
from partita.engine.transport.keys import InsecureKeyFile, KeyPair
from tests.launch.pool.helpers import new_keys

SECRET = "a secret that is long enough for a job"


def job(rank: int, **changes: str) -> Job:
    environ = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PARTITA_JOB_ID": "one"}
    return job_of(environ | changes, "here")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def known_ports(rank: int, secret: str = SECRET, **changes: str) -> KnownPorts:
    one = job(rank, **changes)
    return KnownPorts(one, JobKeyring(Path("secret"), JobSecret(secret), one.id, rank, one.size), one.port)


def served(rendezvous: SharedFolder | KnownPorts | PrivateFile, endpoint: str) -> PoolThread:
    thread = PoolThread(PoolServer(rendezvous.keyring, endpoint, log=lambda text: None))
    rendezvous.publish(JoinFile(thread.server.endpoint, thread.server.public_key))
    return thread


@given(
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["pool", "worker"]),
    st.sampled_from(["pool", "worker"]),
)
def test_keys_follow_from_secret_job_role_and_rank(a: int, b: int, role: str, other: str) -> None:
    secret = JobSecret(SECRET)
    first = secret.pair("job", role, a)  # type: ignore[arg-type]
    assert first == JobSecret(SECRET).pair("job", role, a)  # type: ignore[arg-type]
    assert (first == secret.pair("job", other, b)) == ((role, a) == (other, b))  # type: ignore[arg-type]
    assert first.public != secret.pair("other job", role, a).public  # type: ignore[arg-type]
    assert first.public != JobSecret(f"{SECRET}!").pair("job", role, a).public  # type: ignore[arg-type]


def test_ranks_agree_on_keys_without_a_word() -> None:
    rings = [JobKeyring(Path("secret"), JobSecret(SECRET), "job", rank, 3) for rank in range(3)]
    trusted = {one.public_key: one.role for one in rings[0].authorised()}
    for ring in rings:
        assert trusted[ring.pair("worker").public] == "worker"
        assert ring.trusted("pool").public_key == rings[0].pair("pool").public
    assert rings[1].pair("client").public not in trusted
    assert "needs the same PARTITA_JOB_SECRET" in rings[0].remedy(other_key=True)


def test_a_secret_is_not_shown_nor_pickled_nor_short(tmp_path: Path) -> None:
    secret = JobSecret.generate()
    assert secret.text not in repr(secret) and len(secret.text) == 43
    ring = JobKeyring(Path("secret"), secret, "job", 0, 2)
    assert secret.text not in repr(ring)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
    with pytest.raises(ValueError, match="has 5 characters and needs 32") as refused:
        JobSecret("short")
    assert "short" not in str(refused.value).split()
    path = write_secret(tmp_path / "keys", secret)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert JobSecret.of({"PARTITA_JOB_SECRET_FILE": str(path)}) == secret
    with pytest.raises(FileExistsError, match="never overwritten"):
        write_secret(tmp_path / "keys", secret)


@pytest.mark.parametrize("given_port", [False, True])
def test_a_known_port_is_found_by_its_key(given_port: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        chosen = {"MASTER_PORT": str(free.getsockname()[1])} if given_port else {}
    ours, theirs = known_ports(0, **chosen), known_ports(1, **chosen)
    assert theirs.find() is None
    endpoints = list(ours.endpoints("127.0.0.1"))
    assert len(endpoints) == (1 if given_port else PORTS)
    thread = served(ours, endpoints[-1])
    try:
        assert theirs.find() == JoinFile(endpoints[-1], ours.keyring.pair("pool").public)
        assert known_ports(1, secret=f"{SECRET}, but another one", **chosen).find() is None
    finally:
        thread.close()
    assert theirs.find() is None


def test_a_shared_folder_has_the_address_and_no_secret(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    here, there = (rendezvous_of(job(rank), {}, keys=keys, port=None) for rank in range(2))
    assert isinstance(here, SharedFolder) and isinstance(there, SharedFolder)
    assert there.find() is None
    thread = served(here, here.endpoints("127.0.0.1")[0])
    try:
        found = there.find()
        assert found == JoinFile(thread.server.endpoint, thread.server.public_key)
        [file] = (keys / "jobs").iterdir()
        assert here.keyring.pair("pool").secret not in file.read_text()
    finally:
        thread.close()
    assert there.find() is None  # the file is there, and nobody listens
    here.withdraw()
    assert not list((keys / "jobs").iterdir())


def test_ranks_of_one_machine_meet_in_a_private_file(tmp_path: Path) -> None:
    here, there = (rendezvous_of(job(rank), {}, keys=None, port=None) for rank in range(2))
    assert isinstance(here, PrivateFile) and isinstance(there, PrivateFile)
    assert there.find() is None
    found = JoinFile("tcp://127.0.0.1:7077", here.keyring.pair("pool").public)
    here.publish(found)
    assert there.find() == found
    assert there.keyring.trusted("pool") == here.keyring.trusted("pool")
    [path] = (tmp_path / f"partita-{os.geteuid()}").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(
        FileExistsError, match=f"process {os.getpid()}, which is rank 0 of a job with the same"
    ):
        rendezvous_of(job(0), {}, keys=None, port=None).publish(found)
    path.chmod(0o640)
    with pytest.raises(InsecureKeyFile, match="not a private file"):
        there.find()
    path.chmod(0o600)
    here.withdraw()
    assert there.find() is None


def test_the_file_of_a_rank_0_that_was_killed_is_replaced(tmp_path: Path) -> None:
    here, there = (PrivateFile(job(rank), 0) for rank in range(2))
    here.publish(JoinFile("tcp://127.0.0.1:7077", KeyPair.generate().public))
    [path] = (tmp_path / f"partita-{os.geteuid()}").iterdir()
    path.write_text(path.read_text().replace(f'"pid":{os.getpid()}', f'"pid":{(1 << 22) + 1}'))
    assert there.find() is None
    again = PrivateFile(job(0), 0)
    again.publish(JoinFile("tcp://127.0.0.1:7078", KeyPair.generate().public))
    found = there.find()
    assert found is not None and found.address == "tcp://127.0.0.1:7078"


def test_each_job_has_the_rendezvous_that_all_ranks_can_reach(tmp_path: Path) -> None:
    far = {"MASTER_ADDR": "first.example.org"}
    with pytest.raises(ValueError, match=r"the ranks have no keys .*PARTITA_JOB_SECRET"):
        rendezvous_of(job(0, **far), {}, keys=None, port=None)
    secret = {"PARTITA_JOB_SECRET": SECRET}
    assert isinstance(rendezvous_of(job(1, **far), secret, keys=None, port=None), KnownPorts)
    assert isinstance(rendezvous_of(job(1), secret, keys=None, port=None), KnownPorts)
    new_keys(tmp_path / "config" / "partita" / "keys")
    assert isinstance(rendezvous_of(job(1, **far), {}, keys=None, port=None), SharedFolder)
    assert isinstance(rendezvous_of(job(1), {}, keys=None, port=None), PrivateFile)
    lost = job_of({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "7"}, "here")
    with pytest.raises(ValueError, match="does not say where rank 0 is; set MASTER_ADDR"):
        rendezvous_of(lost, secret, keys=None, port=None)
    unnamed = job_of({"PMI_RANK": "1", "PMI_SIZE": "2"}, "here")
    with pytest.raises(ValueError, match="set PARTITA_JOB_ID to the same text in all ranks"):
        rendezvous_of(unnamed, secret, keys=None, port=None)


def test_a_port_that_another_program_has_is_passed_over(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.engine.launch.symmetric.rendezvous._HANDSHAKE_S", 0.2)
    assert known_ports(1, MASTER_PORT=str(port)).find() is None
