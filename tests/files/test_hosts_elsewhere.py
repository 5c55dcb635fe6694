"""A host that sees no folder of the run: real files, the real threads, and mailboxes of one process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine.data.columns import Columns
from partita.engine.files.access import FilesAddress, HostFiles, RemoteFiles, marked
from partita.engine.files.catalogue import Catalogue
from partita.engine.files.connection import FileConnection, FilesUnavailable
from partita.engine.files.copies import COPY_CHUNK_BYTES
from partita.engine.files.fetched import FetchedArray
from partita.engine.files.push_log import PushLog, pushes_of_part, pushes_to_shard
from partita.engine.files.server import FileHost
from partita.engine.files.sources import ArrayFile
from partita.engine.parameters import (
    CheckpointError,
    Checkpoints,
    ShardRecord,
    ShardSnapshot,
    gather,
    save_parameters,
)
from partita.engine.parameters.manifest import own_file
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.messages import Peer
from partita.engine.runtime.feed import Examples
from partita.engine.transport.in_process import InProcessNetwork
from partita.layers.box import Box
from tests.parameters.written import MACHINES, SHAPES, whole, write

RUN, PART, SHARD = "run-of-a-test", "part 0.0", "shard 0"


class Run:
    """The files of a run in `folder`, and hosts that see none of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder / "run", folder / "kept"
        self.folder.mkdir()
        self.network = InProcessNetwork()
        self.numbers = np.arange(300_000, dtype=np.float32).reshape(1000, 300)
        self.array = ArrayFile(self.folder / "image.data", "float32", self.numbers.shape)
        self.array.write(self.numbers)
        save_parameters(self.folder / "initial.safetensors", whole(1.0))
        self.checkpoints = Checkpoints(self.kept, run=RUN)
        names = {
            "data/image": self.array.path,
            "initial/initial.safetensors": self.folder / "initial.safetensors",
        }
        catalogue = Catalogue(
            self.folder, names, self.checkpoints, self.folder / "pushes", 1 << 20, shards=2, fragments=2
        )
        self.host = FileHost(self.network.mailbox("files"), catalogue)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.opened: list[HostFiles] = []
        self.peers: dict[str, Peer] = {}

    def process(self, name: str, incarnation: int = 0, *, scratch: bool = True) -> RemoteFiles:
        """A new process of a host, in the place of an earlier one."""
        mailbox = self.network.mailbox(name, incarnation=incarnation)
        self.peers[name] = Peer(name, incarnation, "", mailbox.public_key)
        self.host.admit(self.peers.values())
        address = FilesAddress(self.host.peer, str(self.folder), str(self.kept), ".mark-nobody-wrote")
        where = self.scratch if scratch else None
        files = RemoteFiles(address, name, mailbox=lambda: mailbox, scratch=where)
        self.opened.append(files)
        return files

    def close(self) -> None:
        for files in self.opened:
            files.close()
        self.host.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()


def fetched(rows: Any) -> FetchedArray:
    assert isinstance(rows, FetchedArray)
    return rows


def test_examples_are_fetched_once_and_stay_over_restarts(run: Run) -> None:
    rows = fetched(run.process(PART).array(run.array))
    chosen = np.array([999, 3, 500])
    np.testing.assert_array_equal(rows[chosen], run.numbers[chosen])
    np.testing.assert_array_equal(rows[10:20], run.numbers[10:20])
    first = rows.copy.fetched_bytes
    assert 0 < first < run.numbers.nbytes and first % 4 == 0 and not rows.copy.complete
    again = fetched(run.process(PART, 1).array(run.array))
    np.testing.assert_array_equal(again[chosen], run.numbers[chosen])
    assert again.copy.fetched_bytes == 0, "an earlier process has left them"
    np.testing.assert_array_equal(again[np.arange(1000)], run.numbers)
    assert again.copy.complete and first + again.copy.fetched_bytes == run.numbers.nbytes
    assert rows.copy.complete, "processes of one machine have one copy"


def test_a_part_of_a_file_is_fetched_and_read_ahead(run: Run) -> None:
    """An array mapped from the middle of a file, as data that is prepared on another machine."""
    part = ArrayFile(run.array.path, "float32", (900, 300), offset=100 * 1200, named="image")
    files, reader = run.process(PART), Columns({"image": part})
    opened = reader.open(files)
    chosen = np.array([5, 899, 0])
    np.testing.assert_array_equal(opened.read(chosen, ["image"])["image"], run.numbers[100 + chosen])
    assert not files.has_paths and files.waits(0.0) == ()
    opened.close()


def test_a_feed_fetches_ahead_and_ends_with_an_ordinary_array(run: Run) -> None:
    files = run.process(PART)
    rows = fetched(files.array(run.array))
    examples = Examples({"image": rows})
    out, box = np.empty((300, 4), np.float32), Box(((0, 300),))
    chosen = np.array([5, 7, 6, 5])
    examples.put("image", box, out, chosen)
    np.testing.assert_array_equal(out, run.numbers[chosen].T)
    assert examples.steps_ahead and rows.copy.waited_s > 0.0
    examples.ahead([(np.arange(1000), 0)])
    rows.copy.ensure(np.arange(-(-run.numbers.nbytes // COPY_CHUNK_BYTES)))
    assert rows.copy.fetched_bytes == run.numbers.nbytes, "what was on its way is not asked for again"
    examples.put("image", box, out, chosen)
    assert not examples.steps_ahead and files.waits(0.0) == ()
    examples.put("image", box, out, slice(3, 7))
    np.testing.assert_array_equal(out, run.numbers[3:7].T)


def test_logs_are_kept_where_their_shard_is(run: Run) -> None:
    assert HostFiles().log_folder(run.kept) == run.kept
    assert run.process(SHARD).log_folder(run.kept) == run.scratch / "logs"
    assert run.process(SHARD, 1, scratch=False).log_folder(run.kept) is None


def test_first_parameters_are_fetched_by_name(run: Run) -> None:
    path, names = run.folder / "initial.safetensors", {"hidden.bias", "scores/odd:name"}
    found = run.process(SHARD).parameters(path, SHAPES, only=names)
    assert found.keys() == names
    for name, values in found.items():
        np.testing.assert_array_equal(values, whole(1.0)[name])


def saved(files: HostFiles, run: Run, checkpoint: int, incarnation: int = 0) -> tuple[str, str]:
    slots = MACHINES[0]
    record = ShardRecord(RUN, SHARD, incarnation, 7, {})
    snapshot = ShardSnapshot(gather(slots, whole(3.0)), {})
    return files.checkpoints(run.kept, run=RUN).write_shard(checkpoint, record, slots, snapshot)


def test_a_file_that_is_sent_is_the_file_that_would_be_written(run: Run, tmp_path: Path) -> None:
    name, sha256 = saved(run.process(SHARD), run, 1)
    here = Checkpoints(tmp_path / "here", run=RUN)
    direct = saved(HostFiles(), _Elsewhere(here.folder), 1)  # type: ignore[arg-type]
    assert (name, sha256) == direct
    stored = run.checkpoints.path_of(1, name)
    assert stored.read_bytes() == here.path_of(1, name).read_bytes()
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == sha256


class _Elsewhere:
    def __init__(self, kept: Path) -> None:
        self.kept = kept


def test_a_checkpoint_is_read_from_elsewhere_and_damage_is_named(run: Run) -> None:
    write(run.checkpoints, 1)
    files = run.process(SHARD, scratch=False)
    expected = run.checkpoints.open(1, SHAPES)
    found = files.checkpoints(run.kept, run=RUN).open(1, SHAPES, slots=MACHINES[0])
    assert found.manifest == expected.manifest
    np.testing.assert_array_equal(found.gather(MACHINES[0]), expected.gather(MACHINES[0]))
    damaged = next(run.checkpoints.path(1).glob("shard-0*"))
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged"):
        files.checkpoints(run.kept, run=RUN).open(1, SHAPES, slots=MACHINES[0])
    with pytest.raises(FilesUnavailable, match=r"manifest\.json"):
        files.checkpoints(run.kept, run=RUN).open(2, SHAPES)


@pytest.mark.parametrize(
    "name",
    [
        f"checkpoint/1/{own_file('shard 1', 0)}",
        f"checkpoint/1/{own_file(SHARD, 1)}",
        f"checkpoint/../{own_file(SHARD, 0)}",
        "checkpoint/1/manifest.json",
        "data/image",
        "/etc/passwd",
    ],
)
def test_a_host_writes_its_own_files_alone(run: Run, name: str) -> None:
    files = run.process(SHARD)
    with pytest.raises(FilesUnavailable, match="may not write"):
        connection_of(files).write(name, [b"numbers"])
    assert not run.kept.exists() or not list(run.kept.rglob("*safetensors"))


@pytest.mark.parametrize("name", ["data/../image.data", "initial/../image.data", "../run/image.data", "/"])
def test_no_path_that_a_host_sends_is_opened(run: Run, name: str) -> None:
    with pytest.raises(FilesUnavailable, match="there is no file"):
        connection_of(run.process(PART)).size(name)


def connection_of(files: RemoteFiles) -> FileConnection:
    return files._connected()


def test_a_link_in_a_checkpoint_is_not_followed(run: Run, tmp_path: Path) -> None:
    write(run.checkpoints, 1)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    file = next(run.checkpoints.path(1).glob("shard-0*"))
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(FilesUnavailable):
        connection_of(run.process(PART)).size(f"checkpoint/1/{file.name}")


def test_a_writer_that_dies_leaves_nothing_and_the_next_one_writes(run: Run) -> None:
    first = connection_of(run.process(SHARD, 0))
    half = threading.Event()
    size = 900_000

    def pieces() -> Iterator[bytes]:
        yield bytes(size)

    def written(n_bytes: int) -> None:
        half.set()

    first.write(f"checkpoint/1/{own_file(SHARD, 0)}", pieces(), written=written)
    assert half.is_set()
    with pytest.raises(FilesUnavailable, match="more than 1048576 bytes"):
        first.write(f"checkpoint/2/{own_file(SHARD, 0)}", [bytes(1 << 21)])
    name, _ = saved(run.process(SHARD, 1), run, 3, 1)
    assert run.checkpoints.path_of(3, name).is_file()
    assert not list(run.kept.rglob("*.tmp"))


def test_acknowledged_pushes_are_noted_as_on_one_machine(run: Run, tmp_path: Path) -> None:
    pushes = (0, 3, 4), (1, 2, 3), (0, 4, 6)
    records = [(f"shard {shard}", PushRecord(0, n, stop)) for shard, n, stop in pushes]
    records.append(("shard 1 fragment 1", PushRecord(0, 7, 8)))
    near = PushLog(tmp_path / "near", PART, 0, shards=2, fragments=2)
    files = run.process(PART)
    far = files.push_log(run.folder / "pushes", PART, 0, shards=2, fragments=2)
    far.note("shard 2", PushRecord(0, 1))  # which is none
    far.note("shard 0 fragment 2", PushRecord(0, 1))
    for shard, record in records:
        near.note(shard, record)
        far.note(shard, record)
    near.close()
    far.close()
    connection_of(files).size("data/image")  # answered after what was sent before
    assert pushes_of_part(run.folder / "pushes", PART, shards=2) == pushes_of_part(
        tmp_path / "near", PART, shards=2
    )
    assert pushes_to_shard(run.folder / "pushes", 1, shards=2) == {
        PART: (PushRecord(0, 2, 3),),
        f"{PART} fragment 1": (PushRecord(0, 7, 8),),
    }


def test_a_host_with_the_marks_opens_files_by_their_paths(run: Run) -> None:
    run.kept.mkdir()
    with marked((run.folder, run.kept), ".mark") as paths:
        address = FilesAddress(run.host.peer, str(run.folder), str(run.kept), ".mark")

        def mailbox() -> Any:
            raise AssertionError("no connection is needed")

        files = RemoteFiles(address, PART, mailbox=mailbox, scratch=None)
        rows = files.array(run.array)
        assert isinstance(rows, np.memmap)
        assert isinstance(files.checkpoints(run.kept, run=RUN), Checkpoints)
        assert (
            files.parameters(run.folder / "initial.safetensors", SHAPES, only=SHAPES).keys() == SHAPES.keys()
        )
        files.close()
    assert not any(Path(path).exists() for path in paths)
