from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path

import pytest

from partita.engine.transport import InsecureKeyFile, KeyPair, MalformedKeyFile, read_keys, write_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_pair_survives_its_file(folder: Path) -> None:
    keys = KeyPair.generate()
    write_keys(folder / "coordinator", keys)
    assert read_keys(folder / "coordinator") == keys
    assert (folder / "coordinator").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_files_are_private_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        write_keys(folder / "a", KeyPair.generate())
    finally:
        os.umask(before)
    assert (folder / "a").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_keys_are_never_overwritten(folder: Path) -> None:
    keys = KeyPair.generate()
    write_keys(folder / "a", keys)
    with pytest.raises(FileExistsError):
        write_keys(folder / "a", KeyPair.generate())
    assert read_keys(folder / "a") == keys


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o777])
def test_a_file_open_to_others_is_refused(folder: Path, mode: int) -> None:
    write_keys(folder / "a", KeyPair.generate())
    (folder / "a").chmod(mode)
    with pytest.raises(InsecureKeyFile, match="chmod it to 0600"):
        read_keys(folder / "a")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_open_to_others_is_refused(folder: Path, mode: int) -> None:
    write_keys(folder / "a", KeyPair.generate())
    folder.chmod(mode)
    with pytest.raises(InsecureKeyFile, match="chmod it to 0700"):
        read_keys(folder / "a")
    with pytest.raises(InsecureKeyFile, match="chmod it to 0700"):
        write_keys(folder / "b", KeyPair.generate())
    assert not (folder / "b").exists()


def test_links_are_refused(folder: Path, tmp_path: Path) -> None:
    write_keys(folder / "a", KeyPair.generate())
    (folder / "link").symlink_to(folder / "a")
    (tmp_path / "elsewhere").symlink_to(folder)
    (folder / "dangling").symlink_to(folder / "nothing")
    for path in (folder / "link", tmp_path / "elsewhere" / "a"):
        with pytest.raises(InsecureKeyFile, match="not behind a link"):
            read_keys(path)
    with pytest.raises(FileExistsError):
        write_keys(folder / "dangling", KeyPair.generate())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    write_keys(folder / "a", KeyPair.generate())
    os.chown(folder / "a", 65534, 65534)
    with pytest.raises(InsecureKeyFile, match="belongs to user 65534"):
        read_keys(folder / "a")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff" * 100, b'{"public": "x", "secret": "TOPSECRET"}', b"[" * 5000]
)
def test_other_files_are_refused_and_not_quoted(folder: Path, data: bytes) -> None:
    write_keys(folder / "a", KeyPair.generate())
    (folder / "a").write_bytes(data)
    with pytest.raises(MalformedKeyFile, match="does not hold a key pair") as raised:
        read_keys(folder / "a")
    assert "TOPSECRET" not in repr(raised.value)
    assert raised.value.__cause__ is None


def test_halves_of_two_pairs_are_refused(folder: Path) -> None:
    one, two = KeyPair.generate(), KeyPair.generate()
    write_keys(folder / "a", KeyPair(one.public, two.secret))
    with pytest.raises(MalformedKeyFile, match="two different pairs"):
        read_keys(folder / "a")


def test_a_secret_is_neither_shown_nor_pickled() -> None:
    keys = KeyPair.generate()
    for text in (repr(keys), str(keys), f"{keys}"):
        assert keys.secret not in text
        assert keys.public in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(keys)
    with pytest.raises(TypeError, match="not pickled"):
        copy.deepcopy(keys)
