"""The journal of a batch method: what was appended is there, whatever a crash leaves behind it."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import CheckpointError, Journal, JournalHeader, Manifest
from partita.engine.parameters.manifest import decode_manifest, encode_manifest
from tests.parameters.written import ENTRIES, HEADER, write_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def opened(path: Path, expected: JournalHeader = HEADER) -> Journal:
    """The journal of a run like this one."""
    found = Journal.read(path)
    assert found is not None
    found.check(expected)
    return found


def read(path: Path) -> list[tuple[float, ...]]:
    return [entry.scalars for entry in opened(path, HEADER).entries]


def test_what_was_appended_has_the_same_bits(path: Path) -> None:
    write_journal(path, [*ENTRIES, (math.nan,)])
    found = opened(path, HEADER)
    assert (found.header, found.cut, len(found)) == (HEADER, "", 5)
    for index, (entry, scalars) in enumerate(zip(found.entries, [*ENTRIES, (math.nan,)], strict=True)):
        assert (entry.index, entry.digest) == (index, index << 60)
        packed = [struct.pack(f"{len(some)}d", *some) for some in (entry.scalars, scalars)]
        assert packed[0] == packed[1]


@given(data=st.data())
def test_whatever_a_crash_leaves_whole_entries_stay_and_more_can_follow(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The file ends anywhere behind its first line, or a bit of it is another."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    write_journal(path)
    whole = bytearray(path.read_bytes())
    first = whole.index(b"\n") + 1
    ends = [first + sum(24 + 8 * len(scalars) for scalars in ENTRIES[:n]) for n in range(len(ENTRIES) + 1)]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(first, len(whole)))
        del whole[at:]
        damaged = at not in ends
    else:
        at = data.draw(st.integers(first, len(whole) - 1))
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
        damaged = True
    path.write_bytes(whole)
    kept = sum(end <= at for end in ends) - 1

    found = opened(path, HEADER)
    assert [entry.scalars for entry in found.entries] == ENTRIES[:kept]
    assert bool(found.cut) == damaged
    assert path.read_bytes() == whole, "reading changes nothing"
    found.append(kept, 5, (2.5,))
    found.close()
    assert read(path) == [*ENTRIES[:kept], (2.5,)]


def test_a_torn_entry_is_reported(path: Path) -> None:
    write_journal(path)
    with path.open("ab") as file:
        file.write(b"torn")
    said = opened(path, HEADER).cut
    assert (
        said == f"the journal {path} is damaged or cut short behind request 4; its last 4 bytes do not count"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"shapes": {"hidden.weight": (5, 3), "hidden.bias": (5,)}},
            r"of another network: 'hidden.weight' is",
        ),
        ({"shapes": {"hidden.weight": (4, 3)}}, "of another network: this network has no 'hidden.bias'"),
        (
            {"method": "NonlinearCG()"},
            r"with the method LBFGS\(history=10\), and this one has the method Non",
        ),
        ({"precision": "bfloat16"}, "of a run with float32, and this one has bfloat16; resume with the same"),
        ({"data": "00000000"}, "of a run with other data: as many examples, with other numbers"),
        (
            {"examples": 255},
            "of a run with 256 examples, and this one has 255 examples; resume with the same",
        ),
        ({"portion": 32}, "with portions of 16 examples, and this one has portions of 32 examples"),
        ({"unit_size": 2}, "with 4 portions for each push, and this one has 2 portions for each push"),
        ({"batch": 4}, "with all portions in each batch, and this one has batches of 4 portions"),
        (
            {"overlap": 1},
            "with batches that share 0 portions, and this one has batches that share 1 portions",
        ),
        ({"l2": 0.0}, r"with an l2 of 0.1, and this one has an l2 of 0.0"),
        ({"seed": 8}, "with the seed 7, and this one has the seed 8"),
    ],
)
def test_a_journal_of_another_run_is_named_and_left_alone(
    path: Path, change: dict[str, Any], sentence: str
) -> None:
    write_journal(path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=sentence):
        opened(path, msgspec.structs.replace(HEADER, **change))
    assert path.read_bytes() == before


def test_which_run_and_checkpoint_it_was_does_not_matter(path: Path) -> None:
    write_journal(path)
    expected = msgspec.structs.replace(HEADER, run="", first_checkpoint=9, start="")
    assert opened(path, expected).header == HEADER


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data.replace(b'"seed":7', b'"seed":8'), "is damaged in its first line; train from"),
        (lambda data: b"", "is damaged in its first line"),
        (lambda data: b"something else\n", "is damaged in its first line"),
        (lambda data: data[: data.index(b"\n")], "is damaged in its first line"),
    ],
)
def test_a_damaged_first_line_is_one_sentence(
    path: Path, damage: Callable[[bytes], bytes], sentence: str
) -> None:
    write_journal(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=sentence):
        opened(path, HEADER)


def test_another_format_and_unknown_fields_are_refused(path: Path) -> None:
    Journal.create(path, msgspec.structs.replace(HEADER, format=3))
    with pytest.raises(
        CheckpointError, match="has format 3, and this version of Partita reads formats up to 2"
    ):
        opened(path, HEADER)


def test_no_journal_and_what_is_no_file(path: Path, tmp_path: Path) -> None:
    assert Journal.read(path) is None
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="cannot be read"):
        opened(path, HEADER)


def test_entries_come_in_order(path: Path) -> None:
    journal = Journal.create(path, HEADER)
    with pytest.raises(ValueError, match="entry 1 was to follow entry -1"):
        journal.append(1, 0, ())


def test_entries_are_written_at_once_and_synced_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry is written before `append` returns; `sync` syncs all of them."""
    journal, calls, real = Journal.create(path, HEADER), [], os.fdatasync

    def counted(descriptor: int) -> None:
        calls.append(path.stat().st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    for index in range(3):
        journal.append(index, 0, (1.0,))
        assert len(read(path)) == index + 1
    journal.sync()
    journal.close()
    assert calls == [path.stat().st_size]


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_failed_write_is_not_retried(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    journal = Journal.create(path, HEADER)
    journal.append(0, 0, (1.0,))
    act = partial(journal.append, 1, 0, (2.0,)) if call == "write" else journal.sync
    real = os.write

    def fails(descriptor: int, *data: Any) -> None:
        if data:
            real(descriptor, data[0][:9])
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError, match="no space"):
            act()
    with pytest.raises(OSError, match="could not be written before"):
        act()
    journal.close()
    assert read(path)[0] == (1.0,)


def test_a_journal_that_cannot_be_made_leaves_the_one_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_journal(path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        Journal.create(path, msgspec.structs.replace(HEADER, run="another"))
    assert read(path) == ENTRIES


def test_a_manifest_names_a_position_and_old_ones_are_still_read() -> None:
    manifest = Manifest(
        checkpoint=1,
        run="r",
        shapes={},
        dtype="float32",
        optimizer="",
        steps=(1,),
        units_per_epoch=1,
        entries=(),
    )
    assert decode_manifest(encode_manifest(manifest)).position is None
    named = msgspec.structs.replace(manifest, position=17)
    assert decode_manifest(encode_manifest(named)).position == 17
    old = b'{"sha256":"%s","manifest":%s}'
    body = msgspec.json.encode({k: v for k, v in msgspec.to_builtins(manifest).items() if k != "position"})
    assert decode_manifest(old % (hashlib.sha256(body).hexdigest().encode(), body)) == manifest
