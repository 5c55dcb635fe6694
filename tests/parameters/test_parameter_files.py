"""Files are the old one or the new one, and what torch reads is what was saved."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import Vector, load_parameters, save_parameters
from partita.engine.parameters.files import hash_plain, make_folder, read_plain, write_atomically
from tests.parameters.faulty_disk import Crash, FaultyDisk

WHOLE: dict[str, Vector] = {
    "hidden.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not C-contiguous
    "hidden.bias": np.array([0.5, -0.5], np.float32),
    "scale": np.array(2.0, np.float64),
}
SHAPES = {name: values.shape for name, values in WHOLE.items()}


@pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])
@pytest.mark.parametrize("before", [None, b"old"], ids=["new file", "replaced file"])
def test_a_failure_at_any_call_leaves_the_old_or_the_new_file(
    tmp_path: Path, before: bytes | None, crash: bool
) -> None:
    outcomes = set()
    for fail_at in range(1, 20):
        path = tmp_path / str(fail_at) / "file"
        path.parent.mkdir()
        if before is not None:
            path.write_bytes(before)
        disk = FaultyDisk(fail_at=fail_at, crash=crash)
        try:
            with disk.installed():
                write_atomically(path, b"new" * 1000)
        except (OSError, Crash):
            assert disk.calls >= fail_at
        else:
            assert path.read_bytes() == b"new" * 1000
            break
        found = path.read_bytes() if path.exists() else None
        assert found in (before, b"new" * 1000)
        outcomes.add(found)
        if not crash:
            assert {child.name for child in path.parent.iterdir()} <= {"file"}
    else:
        pytest.fail("it never succeeded")
    assert outcomes == {before, b"new" * 1000}  # the last call, on the folder, comes after the rename


def test_it_gives_back_the_hash_of_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "file"
    expected = hashlib.sha256(b"content").hexdigest()
    assert write_atomically(path, b"content") == expected == hash_plain(path)
    assert read_plain(path, at_most=7) == b"content"
    with pytest.raises(ValueError, match="at most 6 bytes"):
        read_plain(path, at_most=6)


def test_links_and_devices_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic links"):
        hash_plain(tmp_path / "link")
    for path in (Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a plain file"):
            hash_plain(path)
        with pytest.raises(ValueError, match="not a plain file"):
            read_plain(path, at_most=10)


def test_folders_are_made_also_behind_a_link(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    make_folder(tmp_path / "link")
    make_folder(tmp_path / "link" / "c")
    assert (tmp_path / "a" / "c").is_dir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "nowhere")


def test_a_network_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_parameters(path, WHOLE)
    loaded = load_parameters(path, SHAPES)
    assert all(np.array_equal(loaded[name], values) for name, values in WHOLE.items())
    assert list(load_parameters(path, SHAPES, only={"hidden.weight"})) == ["hidden.weight"]
    in_torch = safetensors.torch.load_file(path)
    assert torch.equal(in_torch["hidden.weight"], torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]))


def test_torch_may_write_it_too(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    safetensors.torch.save_file({"a": torch.ones(2, 3)}, path)
    assert np.array_equal(load_parameters(path, {"a": (2, 3)})["a"], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({**SHAPES, "more": (2,)}, r"'more' \(2,\) is missing"),
        ({**SHAPES, "hidden.bias": (3,)}, r"'hidden.bias' is \(2,\), and \(3,\) in this network"),
        ({"scale": ()}, "this network has no 'hidden"),
    ],
)
def test_another_networks_file_is_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    save_parameters(tmp_path / "net", WHOLE)
    with pytest.raises(ValueError, match=f"another network's parameters: .*{says}"):
        load_parameters(tmp_path / "net", shapes)


def test_numbers_of_another_kind_are_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2, dtype=torch.int32)}, tmp_path / "net")
    with pytest.raises(ValueError, match="'a' is int32; save it as float32 or float64"):
        load_parameters(tmp_path / "net", {"a": (2,)})
    safetensors.torch.save_file({"a": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "net")
    with pytest.raises(ValueError, match="net"):
        load_parameters(tmp_path / "net", {"a": (2,)})


def test_a_missing_or_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        load_parameters(tmp_path / "net", SHAPES)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_parameters(tmp_path, SHAPES)
    with pytest.raises(FileNotFoundError, match="make it first"):
        save_parameters(tmp_path / "nowhere" / "net", WHOLE)
    with pytest.raises(IsADirectoryError, match="is a folder; give a file name in it"):
        save_parameters(tmp_path, WHOLE)
    assert not list(tmp_path.iterdir())


@given(st.data())
def test_a_damaged_file_is_refused_or_still_of_this_network(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "net"
    content = bytearray(safetensors.numpy.save({"a": np.ones((2, 3), np.float32)}))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    try:
        shapes = [array.shape for array in load_parameters(path, {"a": (2, 3)}).values()]
    except ValueError:
        return
    assert shapes == [(2, 3)]
