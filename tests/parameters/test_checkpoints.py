"""Checkpoints: written whole or not at all, read into any layout, and refused when anything is wrong."""

from __future__ import annotations

import os
import shutil
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    Layout,
    ShardRecord,
    ShardSnapshot,
    Slot,
    gather,
    reader,
    scatter,
)
from partita.engine.parameters.manifest import decode_manifest, decode_record, encode_manifest
from partita.engine.protocol.coordinator_effects import ShardFile
from tests.parameters.faulty_disk import Crash, FaultyDisk
from tests.parameters.written import MACHINES, SHAPES, whole, write

OTHER = ((Slot("scores/odd:name", 0, 4), Slot("hidden.bias", 0, 4), Slot("hidden.weight", 0, 12)),)


def latest(checkpoints: Checkpoints) -> Checkpoint:
    found = checkpoints.latest(SHAPES)
    assert found is not None
    return found


def assert_reads_into_another_layout(folder: Path, shards: int) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1, shards=shards)
    found = latest(checkpoints)
    assert all(np.array_equal(values, whole(0)[name]) for name, values in found.parameters().items())
    assert np.array_equal(found.parameters("state.sum")["hidden.bias"], whole(0)["hidden.bias"] ** 2)
    assert found.state_names == ("sum",)
    other = Layout(OTHER, SHAPES, shards=3)
    again = {name: np.zeros_like(values) for name, values in whole(0).items()}
    for shard in range(3):
        snapshot = found.snapshot(other.slots_of(shard))
        assert np.array_equal(snapshot.state["sum"], snapshot.values**2)
        scatter(other.slots_of(shard), snapshot.values, again)
    assert all(np.array_equal(values, whole(0)[name]) for name, values in again.items())


@pytest.mark.parametrize("shards", [1, 2, 3, 24])
def test_it_reads_into_another_plan_and_another_number_of_shards(tmp_path: Path, shards: int) -> None:
    assert_reads_into_another_layout(tmp_path / "checkpoints", shards)


def test_long_runs_are_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_AT_ONCE", 2)
    assert_reads_into_another_layout(tmp_path / "checkpoints", 3)


def test_only_files_that_hold_something_of_what_is_wanted_are_verified(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = write(checkpoints, 1, shards=2)
    slots = [Layout(MACHINES, SHAPES, 2).slots_of(shard) for shard in (0, 1)]
    damage(tmp_path / "00000001" / manifest.entries[1].file)
    found = checkpoints.open(1, SHAPES, slots=slots[0])
    out = np.zeros(10)
    assert found.gather(slots[0], out=out) is out
    assert out.tolist() == found.gather(slots[0]).tolist() == gather(slots[0], whole(0)).tolist()
    assert found.updates(slots[0]) == 50
    for wanted in (slots[1], Layout(OTHER, SHAPES, 3).slots_of(2), None):
        with pytest.raises(CheckpointError, match=f"{manifest.entries[1].file} is damaged"):
            checkpoints.open(1, SHAPES, slots=wanted)
    (tmp_path / "00000001" / manifest.entries[1].file).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        checkpoints.open(1, SHAPES, slots=slots[0])


def test_a_file_is_written_without_a_copy_of_its_numbers(tmp_path: Path) -> None:
    layout = Layout(((Slot("w", 0, 1 << 20),),), {"w": (1 << 20,)}, 1)
    snapshot = ShardSnapshot(np.ones(1 << 20), {"g": np.zeros(1 << 20)})
    record = ShardRecord("run", "shard 0", 0, 1, {}, 0)
    tracemalloc.start()
    file, _ = Checkpoints(tmp_path).write_shard(1, record, layout.slots_of(0), snapshot)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20, "of 16 MiB"
    tensors = safetensors.numpy.load_file(tmp_path / "00000001" / file)
    assert {key: vector.sum() for key, vector in tensors.items()} == {
        "values/0:1048576/w": 1 << 20,
        "state.g/0:1048576/w": 0,
    }


def damage(path: Path) -> None:
    """Flips a bit of its last number."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_any_range_can_be_read(tmp_path: Path) -> None:
    write(Checkpoints(tmp_path), 1)
    found = latest(Checkpoints(tmp_path))
    assert found.gather([Slot("hidden.weight", 5, 8), Slot("hidden.bias", 0, 0)]).tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="it has 12 numbers"):
        found.gather([Slot("hidden.weight", 5, 13)])
    with pytest.raises(ValueError, match="the checkpoint has no 'more'"):
        found.gather([Slot("more", 0, 1)])


def test_it_stores_the_records_of_its_own_run(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 3, incarnation=2)
    found = latest(checkpoints)
    assert found.manifest.steps == (40, 42)
    assert found.records["shard 1"].version == 8
    assert found.seen("shard 1", "run") == {"part 0.0": (0, 7)}
    assert found.seen("shard 1", "another run") == {}
    assert found.seen("shard 9", "run") == {}


def test_it_stores_the_number_of_updates(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    found = latest(checkpoints)
    slots = [Layout(MACHINES, SHAPES, 2).slots_of(shard) for shard in range(2)]
    assert [found.updates(held) for held in slots] == [50, 51]
    (whole_again,) = (Layout(OTHER, SHAPES, 1).slots_of(0),)
    assert found.updates(whole_again) == 51
    assert found.updates([Slot("hidden.weight", 0, 1)]) == 50
    assert found.updates([]) == found.updates([Slot("hidden.weight", 3, 3)]) == 0


def test_a_record_without_updates_has_none() -> None:
    old = '{"run":"run","shard":"shard 0","epoch":0,"version":7,"seen":{}}'
    assert decode_record({"partita": old}).updates == 0


def test_the_newest_complete_one_is_found_and_unfinished_ones_do_not_exist(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest(SHAPES) is None
    assert checkpoints.next_number() == 1
    for number in (2, 9, 10):
        write(checkpoints, number, base=number)
    (tmp_path / "00000010" / "manifest.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "00000011").write_text("a file")
    found = latest(checkpoints)
    assert found.manifest.checkpoint == 9
    assert found.skipped == ()
    assert checkpoints.next_number() == 11


def test_pruning_keeps_the_newest_and_what_may_still_be_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for number in (1, 2, 3, 4, 5):
        write(checkpoints, number)
    for unfinished in (2, 5):
        (tmp_path / f"{unfinished:08d}" / "manifest.json").unlink()
    checkpoints.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003", "00000004", "00000005"]
    assert latest(checkpoints).manifest.checkpoint == 4


@pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])
def test_a_failure_at_any_call_leaves_the_old_or_the_new_checkpoint(tmp_path: Path, crash: bool) -> None:
    template = tmp_path / "template"
    write(Checkpoints(template, keep=1), 1, base=0)
    seen = set()
    for fail_at in range(1, 60):
        folder = tmp_path / str(fail_at)
        shutil.copytree(template, folder)
        checkpoints = Checkpoints(folder, keep=1)
        done = False
        try:
            with FaultyDisk(fail_at=fail_at, crash=crash).installed():
                write(checkpoints, 2, base=1000)
                done = True
                checkpoints.prune()
        except (OSError, Crash):
            pass
        found = latest(Checkpoints(folder))
        assert found.skipped == ()
        base = {1: 0, 2: 1000}[found.manifest.checkpoint]
        assert np.array_equal(found.parameters()["hidden.bias"], whole(base)["hidden.bias"])
        assert base == 1000 or not done
        seen.add((found.manifest.checkpoint, done))
        if sorted(path.name for path in folder.iterdir()) == ["00000002"]:
            break
    else:
        pytest.fail("it never succeeded")
    assert seen == {(1, False), (2, False), (2, True)}


@given(st.data())
def test_one_flipped_or_missing_byte_anywhere_falls_back_to_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1, base=0)
    write(checkpoints, 2, base=1000)
    newest = folder / "00000002"
    victim = data.draw(st.sampled_from(sorted(path for path in newest.iterdir() if path.name != "partita")))
    content = bytearray(victim.read_bytes())
    # The manifest ends in a line feed, which says nothing; every other byte counts.
    at = data.draw(st.integers(0, len(content) - 1 - (victim.name == "manifest.json")))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    victim.write_bytes(content)
    found = latest(checkpoints)
    assert found.manifest.checkpoint == 1
    (why,) = found.skipped
    assert str(newest) in why
    assert "damaged" in why or "cannot be read" in why
    assert np.array_equal(found.parameters()["hidden.bias"], whole(0)["hidden.bias"])


def test_a_missing_or_linked_file_is_reported(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = write(checkpoints, 1)
    file = tmp_path / "00000001" / manifest.entries[1].file
    moved = tmp_path / "elsewhere"
    file.rename(moved)
    with pytest.raises(CheckpointError, match=rf"{file.name} is missing. Train from the start"):
        checkpoints.latest(SHAPES)
    file.symlink_to(moved)
    with pytest.raises(CheckpointError, match=rf"{file.name} cannot be read"):
        checkpoints.latest(SHAPES)


def test_a_linked_folder_is_neither_written_nor_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(Checkpoints(outside), 1)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.folder.mkdir()
    (checkpoints.folder / "00000001").symlink_to(outside / "00000001")
    assert checkpoints.latest(SHAPES) is None
    with pytest.raises(CheckpointError, match="it is a link"):
        checkpoints.open(1, SHAPES)
    with pytest.raises(OSError, match="is there already and is no checkpoint; move it away"):
        write(checkpoints, 1)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["00000001"]
    linked = Checkpoints(tmp_path / "linked")
    linked.folder.symlink_to(outside)
    write(linked, 2)
    assert Checkpoints(outside).complete() == [2, 1]


def test_what_is_not_a_checkpoint_of_a_run_stays(tmp_path: Path) -> None:
    """Folders of eight digits, also with a manifest of another kind, and files in a folder of ours."""
    for name, file in (
        ("20240131", "notes"),
        ("00000001", "manifest.json"),
        ("99999999", "shard-0.incarnation-0"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("a user's")
    (tmp_path / "00000003-run").mkdir()  # of another run's name, without a mark
    kept = sorted(tmp_path.rglob("*"))
    checkpoints = Checkpoints(tmp_path, keep=1, run="run")
    assert checkpoints.next_number() == 1
    for number in (1, 2):
        write(checkpoints, number)
    (tmp_path / "00000001-run" / "remarks.txt").write_text("a user's")
    checkpoints.prune()
    assert checkpoints.complete() == [2] and checkpoints.next_number() == 3
    ours = {tmp_path / "00000002-run", *(tmp_path / "00000002-run").iterdir()}
    users = {tmp_path / "00000001-run", tmp_path / "00000001-run" / "remarks.txt"}
    assert sorted(tmp_path.rglob("*")) == sorted({*kept, *ours, *users})


def test_a_process_that_outlives_its_run_writes_into_no_other_runs_checkpoint(tmp_path: Path) -> None:
    before, now = (Checkpoints(tmp_path, run=run) for run in ("before", "now"))
    write(now, 1, base=1000)
    layout = Layout(MACHINES, SHAPES, 1)
    record = ShardRecord("before", "shard 0", 0, 1, {})
    before.write_shard(1, record, layout.slots_of(0), ShardSnapshot(gather(layout.slots_of(0), whole(0))))
    for reads in (now, before, Checkpoints(tmp_path)):
        assert np.array_equal(latest(reads).parameters()["hidden.bias"], whole(1000)["hidden.bias"])


def test_checkpoints_from_before_folders_had_marks_are_read_and_never_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 1)
    (tmp_path / "00000001" / "partita").unlink()
    assert latest(checkpoints).manifest.checkpoint == 1
    newer = Checkpoints(tmp_path, keep=1, run="run")
    assert newer.next_number() == 2
    write(newer, 2)
    newer.prune()
    assert newer.complete() == [2, 1]


def test_only_their_owner_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "runs"
    write(Checkpoints(folder, run="run"), 1)
    made = [folder.parent, folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}


def test_checkpoints_of_a_replaced_run_are_removed_after_the_first_new_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2):
        write(checkpoints, number)
    checkpoints.prune(first=3)
    assert checkpoints.complete() == [2, 1]
    write(checkpoints, 3)
    checkpoints.prune(first=3)
    assert checkpoints.complete() == [3]


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({**SHAPES, "more": (1,)}, r"'more' \(1,\) is missing"),
        ({**SHAPES, "hidden.bias": (5,)}, r"'hidden.bias' is \(4,\), and \(5,\) in this network"),
        ({"hidden.weight": (4, 3)}, "this network has no 'hidden.bias'"),
    ],
)
def test_another_network_is_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], says: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    write(checkpoints, 2)
    with pytest.raises(CheckpointError, match=rf"00000002 .*of another network: {says}.*1 older"):
        checkpoints.latest(shapes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 4}, "its manifest has format 4, and this version of Partita reads formats up to 3"),
        ({"dtype": "object"}, "neither float32 nor float64"),
        ({"checkpoint": 5}, "its manifest is of checkpoint 5"),
        ({"entries": (ShardFile("shard 0", 0, 0, "../../etc/passwd", ""),)}, "no name of a shard's file"),
        (
            {"entries": (ShardFile("shard 0", 0, 0, "/shard-0.incarnation-0.safetensors", ""),)},
            "no name of a shard's",
        ),
        ({"entries": ()}, "do not hold every number of 'values' once"),
        ({"shapes": SHAPES | {"hidden.bias": (10**30,)}}, "damaged|another network"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = msgspec.structs.replace(write(checkpoints, 1), **change)
    (tmp_path / "00000001" / "manifest.json").write_bytes(encode_manifest(manifest))
    with pytest.raises(CheckpointError, match=says):
        checkpoints.open(1, SHAPES)


def test_a_file_of_another_shard_or_epoch_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = write(checkpoints, 1)
    first, second = manifest.entries
    swapped = msgspec.structs.replace(
        manifest, entries=(ShardFile("shard 5", 0, 7, first.file, first.sha256), second)
    )
    checkpoints.commit(swapped)
    with pytest.raises(CheckpointError, match="says that it is of shard 0"):
        checkpoints.open(1, SHAPES)


def test_a_checkpoint_without_all_its_files_is_not_completed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = write(checkpoints, 1)
    with pytest.raises(CheckpointError, match=r"cannot be completed: shard-0.* is not there"):
        checkpoints.commit(msgspec.structs.replace(manifest, checkpoint=2))
    bad = (ShardFile("shard 0", 0, 0, "../x", ""),)
    with pytest.raises(CheckpointError, match="no name of a shard's file"):
        checkpoints.commit(msgspec.structs.replace(manifest, entries=bad))


def test_equal_checkpoints_have_equal_bytes(tmp_path: Path) -> None:
    first, second = (write(Checkpoints(tmp_path / name), 1) for name in "ab")
    assert first == second


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode_manifest(data)
    with pytest.raises(CheckpointError):
        decode_record({"partita": data.decode(errors="replace")})


def test_a_folder_that_cannot_hold_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        Checkpoints(tmp_path / "file")
    with pytest.raises(ValueError, match="keep=0 would leave no checkpoint"):
        Checkpoints(tmp_path, keep=0)
    assert os.listdir(tmp_path) == ["file"]
