"""Whoever may not join is named on both sides within 10 s, with key and address."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from partita.engine.transport import Keyring
from tests.launch.pool.helpers import Program, new_keys, pool_of, worker

SOON_S = 10.0


def test_a_key_that_is_not_authorised_gets_nowhere_until_it_is(tmp_path: Path) -> None:
    keys, others = new_keys(tmp_path / "keys"), new_keys(tmp_path / "others")
    pool_key = Keyring(keys).pair("pool").public
    Keyring(others).authorise("pool", pool_key, "pool")
    own = Keyring(others).pair("worker").public
    (others / "authorised").write_text(f"pool {pool_key} pool\n")
    with pool_of(keys, 0) as (address, serve, _), worker(address, others, "new") as new:
        new.wait_for("joins tcp://")
        new.wait_for(f"refuses this worker's key {own}", address, within_s=SOON_S)
        serve.wait_for("refused a connection from 127.0.0.1", own, within_s=SOON_S)
        with Program(
            *("keys", "authorise", str(others / "worker.pub"), "--as", "worker", "--keys", str(keys))
        ) as done:
            assert done.end() == 0, done.output
        new.wait_for("joined the pool as 'new'", within_s=SOON_S)
        lines = (keys / "authorised").read_text().splitlines(keepends=True)
        (keys / "authorised").write_text("".join(line for line in lines if own not in line))
        serve.wait_for("worker 'new' lost its authorisation", within_s=SOON_S)


@pytest.mark.slow
def test_another_key_of_the_pool_is_named(tmp_path: Path) -> None:
    keys, others = new_keys(tmp_path / "keys"), new_keys(tmp_path / "others")
    trusted = Keyring(others).pair("pool").public
    with pool_of(keys, 0) as (address, serve, _), worker(address, others, "new") as new:
        new.wait_for("joins tcp://")
        new.wait_for(f"the pool at {address} has another key than {trusted}", within_s=SOON_S)
        serve.wait_for("refused a connection from", "it expects another key of the pool", within_s=SOON_S)


@pytest.mark.slow
def test_a_closed_port_is_named_and_given_up_after_the_death_timeout(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    with worker("tcp://127.0.0.1:1", keys, "alone", "--death-timeout", "3") as alone:
        alone.wait_for("joins tcp://")
        alone.wait_for("the pool at tcp://127.0.0.1:1 cannot be reached from 127.0.0.1 (lo)", within_s=SOON_S)
        assert alone.end() == 1
        assert alone.said[-1].startswith("partita: the pool at tcp://127.0.0.1:1 cannot be reached")
        assert "gave up after 3 s" in alone.said[-1]


def test_another_version_is_named_on_both_sides(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import cloudpickle\ncloudpickle.__version__ = '0.0.1'\n")
    with pool_of(keys, 0) as (address, serve, _):
        arguments = ("worker", "--join", address, "--keys", str(keys), "--name", "old")
        with Program(*arguments, env={"PYTHONPATH": str(site)}) as old:
            old.wait_for("joins tcp://")
            old.wait_for("cloudpickle is 0.0.1 and must be", within_s=SOON_S)
            serve.wait_for("worker 'old' at tcp://", "cloudpickle is 0.0.1 and must be", within_s=SOON_S)
            assert old.end() == 1


@pytest.mark.slow
def test_a_key_of_another_role_is_named(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    text = (keys / "authorised").read_text()
    with pool_of(keys, 0) as (address, serve, _):
        (keys / "authorised").write_text(text.replace("worker ", "client ", 1))
        serve_key = Keyring(keys).pair("worker").public
        with worker(address, keys, "new") as new:
            new.wait_for("is authorised as a client, not as a worker", within_s=60.0)
            serve.wait_for("is refused", "is authorised as a client", serve_key[:6], within_s=SOON_S)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(
            ("--interface", "nosuch0"),
            "no interface 'nosuch0' with an address; it has lo 127.0.0.1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--contact-address", "192.0.2.7"), "choose an address that it has", marks=pytest.mark.slow
        ),
        (
            ("--interface", "lo", "--contact-address", "192.0.2.7"),
            "interface lo has the address 127.0.0.1",
        ),
        pytest.param(("--resources", "gpus=1"), "'gpus=1' is not a resource", marks=pytest.mark.slow),
        pytest.param(("--threads", "0"), "--threads is 0", marks=pytest.mark.slow),
        (("--join", "tcp://127.0.0.1:9"), "give the pool's address once"),
    ],
)
def test_a_mistake_in_an_option_is_one_sentence(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    keys = new_keys(tmp_path / "keys")
    with Program("worker", "tcp://127.0.0.1:1", "--keys", str(keys), *options) as command:
        assert command.end() == 1
        assert text in command.output and len(command.said) == 1, command.output


@pytest.mark.slow
def test_the_join_file_of_a_pool_is_enough(tmp_path: Path) -> None:
    keys, others, file = new_keys(tmp_path / "keys"), new_keys(tmp_path / "others"), tmp_path / "join.json"
    Keyring(keys).authorise("worker", Keyring(others).pair("worker").public, "far")
    (others / "authorised").unlink()
    serve_options = ("--keys", str(keys), "--join-file", str(file))
    with Program("pool", "serve", "tcp://127.0.0.1:*", *serve_options) as serve:
        serve.wait_for("serves a pool at")
        assert Keyring(keys).pair("pool").secret not in file.read_text()
        with Program("worker", "--join-file", str(file), "--keys", str(others), "--name", "far") as far:
            serve.wait_for("worker 'far' joined")
            address = serve.said[0].split()[4]
            for command, line in (("status", "waits"), ("drain", "ends")):
                with Program("pool", command, address, "--keys", str(keys)) as asked:
                    assert asked.end() == 0, asked.output
                    assert any("far" in text and line in text for text in asked.said), asked.output
            far.wait_for("worker 'far' was drained and ends", within_s=SOON_S)
            assert far.end() == 0
            serve.wait_for("worker 'far' left", within_s=SOON_S)


def test_ctrl_c_ends_a_worker_at_once_and_the_pool_says_so(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 1) as (_, serve, [one]):
        one.signal(signal.SIGINT)
        assert one.end() == 0
        serve.wait_for("worker 'w0' left", within_s=SOON_S)
