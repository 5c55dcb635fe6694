"""Folders of keys: private, never overwritten, and every line of the list understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.engine.transport import InsecureKeyFile, KeyPair, Keyring, MalformedKeyFile
from partita.engine.transport.keyring import Authorised


def test_pairs_are_private_and_only_their_public_half_is_told(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    pair = keyring.new("worker")
    assert keyring.pair("worker") == pair and keyring.names() == ["worker"]
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "keys" / "worker.key").stat().st_mode & 0o777 == 0o600
    assert keyring.public_file("worker").read_text().strip() == pair.public
    with pytest.raises(FileExistsError, match="never overwritten"):
        keyring.new("worker")
    with pytest.raises(FileNotFoundError, match=r"make one with `partita keys new pool"):
        keyring.pair("pool")
    with pytest.raises(ValueError, match="cannot be the name of a key"):
        keyring.new("../worker")


def test_a_key_is_authorised_once_with_its_newest_role(tmp_path: Path) -> None:
    keyring, pair = Keyring(tmp_path / "keys"), KeyPair.generate()
    before = keyring.stamp()
    keyring.authorise("worker", pair.public, "a")
    keyring.authorise("client", pair.public, "b")
    assert keyring.authorised() == (Authorised("client", pair.public, "b"),)
    assert keyring.trusted("client").name == "b" and keyring.stamp() != before
    assert (tmp_path / "keys" / "authorised").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match=r"no key in .* is trusted as a pool; copy pool\.pub"):
        keyring.trusted("pool")
    with pytest.raises(ValueError, match="is not a public key"):
        keyring.authorise("pool", "short", "a")


def test_a_list_that_others_can_change_is_refused(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    keyring.authorise("worker", KeyPair.generate().public, "a")
    (tmp_path / "keys" / "authorised").chmod(0o666)
    with pytest.raises(InsecureKeyFile, match="can be changed by others"):
        keyring.authorised()


@pytest.mark.parametrize("line", ["worker", "king {key} a", "worker {key}", "worker {key} a b", "worker x a"])
def test_a_line_that_is_not_understood_is_named(tmp_path: Path, line: str) -> None:
    keyring, pair = Keyring(tmp_path / "keys"), KeyPair.generate()
    keyring.authorise("worker", pair.public, "a")
    with (tmp_path / "keys" / "authorised").open("a") as file:
        file.write(f"\n{line.format(key=pair.public)}\n")
    with pytest.raises(MalformedKeyFile, match="line 3 is not `ROLE PUBLIC-KEY NAME`"):
        keyring.authorised()
