"""Damaged files of every kind, systematically: each is refused or passed over by one sentence."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from partita.engine.parameters import CheckpointError, Checkpoints, Journal, load_parameters, save_parameters
from tests.parameters.written import ENTRIES, SHAPES, whole, write, write_journal

Damage = Callable[[Path], None]


def damages(size: int) -> Iterator[tuple[str, Damage]]:
    """Truncated, flipped, grown, oversized and replaced, at places all over the file."""
    places = sorted({size * n // 12 for n in range(12)} | {size - 1})
    for at in places:
        yield f"cut at {at}", lambda path, at=at: path.write_bytes(path.read_bytes()[:at])  # type: ignore[misc]
        for bit in (0, 3, 7):
            yield f"bit {bit} of {at}", lambda path, at=at, bit=bit: flip(path, at, bit)  # type: ignore[misc]
    yield "grown", lambda path: path.write_bytes(path.read_bytes() * 2)
    yield "oversized", lambda path: grow(path, 1 << 40)
    yield "a folder", lambda path: (path.unlink(), path.mkdir())[0]
    yield "a link to a device", lambda path: (path.unlink(), path.symlink_to("/dev/zero"))[0]
    yield "a link to itself", lambda path: (path.unlink(), path.symlink_to(path))[0]
    yield "text", lambda path: path.write_text("nothing of the kind\n") and None
    yield "a huge header", lambda path: path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}") and None
    yield "nested", lambda path: path.write_bytes(b"[" * 100_000) and None
    yield "not readable as text", lambda path: path.write_bytes(b"\xff\xfe\x00" * 50) and None


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def grow(path: Path, size: int) -> None:
    """Extends a file to a size that no memory has; the disk stores none of it."""
    with path.open("r+b") as file:
        file.truncate(size)


def is_a_sentence(text: str) -> bool:
    return bool(text) and "\n" not in text and "Traceback" not in text and len(text) < 1000


@pytest.mark.parametrize("kind", ["manifest.json", "shard-0.incarnation-0.safetensors"])
def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(tmp_path: Path, kind: str) -> None:
    template = tmp_path / "template"
    for number in (1, 2):
        write(Checkpoints(template, run="run"), number, base=1000.0 * number)
    size = (template / "00000002-run" / kind).stat().st_size
    tracemalloc.start()
    tried = 0
    for n, (name, damage) in enumerate(damages(size)):
        folder = tmp_path / str(n)
        shutil.copytree(template, folder)
        victim = folder / "00000002-run" / kind
        before = victim.read_bytes()
        damage(victim)
        small = victim.is_file() and victim.stat().st_size <= size
        if kind == "manifest.json" and small and victim.read_bytes()[: size - 1] == before[:-1]:
            continue  # its last byte, a line feed, says nothing
        tracemalloc.reset_peak()
        taken_before, _ = tracemalloc.get_traced_memory()
        found = Checkpoints(folder).latest(SHAPES)
        taken = tracemalloc.get_traced_memory()[1] - taken_before
        assert taken < 1 << 22, (name, "took memory before it looked")
        assert found is not None and found.manifest.checkpoint == 1, name
        assert len(found.skipped) == 1 and is_a_sentence(found.skipped[0]), (name, found.skipped)
        assert np.array_equal(found.parameters()["hidden.bias"], whole(1000)["hidden.bias"])
        shutil.rmtree(folder)
        tried += 1
    tracemalloc.stop()
    assert tried > 45


def test_a_damaged_journal_is_refused_or_cut_behind_its_last_whole_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write_journal(path)
    whole_journal = path.read_bytes()
    tried = 0
    for name, damage in damages(len(whole_journal)):
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        path.write_bytes(whole_journal)
        damage(path)
        tried += 1
        said, found = "", None
        try:
            found = Journal.read(path)
        except CheckpointError as error:
            said = str(error)
        if found is None:
            assert is_a_sentence(said), name
            continue
        assert is_a_sentence(found.cut), name
        numbers = [entry.scalars for entry in found.entries]
        assert numbers == ENTRIES[: len(numbers)], name
        assert len(numbers) < len(ENTRIES) or name == "grown", name
    assert tried > 45


def test_a_damaged_network_is_refused_or_read_with_its_shapes(tmp_path: Path) -> None:
    """A saved network has no hash (torch reads it too): flipped numbers are numbers; all else is refused."""
    path = tmp_path / "net.safetensors"
    save_parameters(path, whole(0))
    saved = path.read_bytes()
    refused, said = 0, []
    for name, damage in damages(len(saved)):
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        path.write_bytes(saved)
        damage(path)
        try:
            found = load_parameters(path, SHAPES)
        except ValueError as error:
            said.append(str(error))
            refused += 1
            continue
        assert {key: values.shape for key, values in found.items()} == SHAPES, name
    assert all(map(is_a_sentence, said)), said
    assert refused > 20
