"""Stores of checkpoints: a folder, a shared folder, a URL."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import Downpour, Run, Sandblaster, SharedFolder, train
from partita.engine.drivers import Driver
from partita.engine.files.mirror import MirroredCheckpoints, UrlFolder
from partita.engine.files.stores import Folder, UrlStore, store_of
from partita.engine.parameters import CheckpointError, Checkpoints
from partita.engine.parameters.manifest import Manifest
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.parameters.written import SHAPES, write

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield (tmp_path / "there").as_uri()
    else:
        name = f"/{uuid.uuid4().hex}"
        yield f"memory:/{name}"
        memory = fsspec.filesystem("memory")
        if memory.exists(name):
            memory.rm(name, recursive=True)


def names(url: str) -> set[str]:
    remote = UrlFolder(url)
    return {f"{folder}/{file}" for folder in remote.names() for file in remote.names(folder)}


def test_a_checkpoint_is_read_back_where_nothing_of_it_is(url: str, tmp_path: Path) -> None:
    here = MirroredCheckpoints(tmp_path / "a", UrlFolder(url), run="run")
    write(here, 1)
    there = MirroredCheckpoints(tmp_path / "b", UrlFolder(url))
    assert there.complete() == [1] and there.next_number() == 2
    assert not list((tmp_path / "b").rglob("*.safetensors")), "files come when they are read"
    found, expected = there.latest(SHAPES), here.latest(SHAPES)
    assert found is not None and expected is not None and found.manifest == expected.manifest
    for name, values in expected.parameters().items():
        np.testing.assert_array_equal(found.parameters()[name], values)


def test_the_manifest_comes_last_and_only_with_all_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = MirroredCheckpoints(tmp_path / "a", UrlFolder(url), run="run")
    sent: list[str] = []
    put = UrlFolder.put

    def failing(self: UrlFolder, path: Path, name: str) -> None:
        sent.append(name)
        if len(sent) == 3:
            raise OSError(f"{url}: the network is gone")
        put(self, path, name)

    monkeypatch.setattr(UrlFolder, "put", failing)
    with pytest.raises(OSError, match="the network is gone"):
        write(here, 1)
    assert not here.complete() and not any(name.endswith("manifest.json") for name in names(url))
    assert not MirroredCheckpoints(tmp_path / "b", UrlFolder(url)).complete()
    manifests: list[Manifest] = []
    commit = Checkpoints.commit
    monkeypatch.setattr(Checkpoints, "commit", lambda self, one: (manifests.append(one), commit(self, one)))
    write(here, 2)
    assert MirroredCheckpoints(tmp_path / "c", UrlFolder(url)).complete() == [2]


def test_old_checkpoints_go_there_as_here_and_a_users_files_stay(url: str, tmp_path: Path) -> None:
    UrlFolder(url).put_bytes(b"mine", "notes.txt")
    here = MirroredCheckpoints(tmp_path / "a", UrlFolder(url), keep=2, run="run")
    for number in range(1, 5):
        write(here, number)
        here.prune()
    assert sorted(UrlFolder(url).names()) == ["00000003-run", "00000004-run", "notes.txt"]
    other = MirroredCheckpoints(tmp_path / "b", UrlFolder(url), keep=1, run="other")
    write(other, 5)
    other.prune()
    assert sorted(UrlFolder(url).names()) == ["00000005-other", "notes.txt"]


def test_a_damaged_file_there_is_named_and_an_older_checkpoint_used(url: str, tmp_path: Path) -> None:
    here = MirroredCheckpoints(tmp_path / "a", UrlFolder(url), run="run")
    write(here, 1)
    write(here, 2)
    file = next(name for name in sorted(names(url)) if "00000002" in name and "shard-0" in name)
    UrlFolder(url).put_bytes(b"torn", file)
    found = MirroredCheckpoints(tmp_path / "b", UrlFolder(url)).latest(SHAPES)
    assert found is not None and found.manifest.checkpoint == 1
    assert "shard-0.incarnation-0.safetensors is damaged" in found.skipped[0]
    UrlFolder(url).remove_file(file)
    with pytest.raises(CheckpointError, match="cannot be fetched"):
        MirroredCheckpoints(tmp_path / "c", UrlFolder(url)).open(2, SHAPES)


def trained(driver: Driver, url: str, epochs: int | None = None, **options: Any) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=32)
    return train(plan, toy.data(), driver=driver, epochs=epochs, show="nothing", checkpoints=url, **options)


@pytest.mark.slow
@pytest.mark.parametrize("driver", [Downpour(), Sandblaster()])
def test_a_run_goes_on_from_a_url(driver: Driver, url: str) -> None:
    few, more = (2, 4) if isinstance(driver, Downpour) else (None, None)
    first = trained(driver, url, few)
    assert first.checkpoint == url
    with pytest.raises(ValueError, match=f"{url} holds .* of an earlier run"):
        trained(driver, url, few)
    second = trained(driver, url, more, resume=True)
    if isinstance(driver, Downpour):
        assert second.steps == (4 * first.steps[0] // 2,)
    else:
        assert second.iterations == first.iterations
    trained(driver, url, few, overwrite=True)


def test_what_checkpoints_may_be(tmp_path: Path) -> None:
    assert store_of(None) is None
    assert store_of(str(tmp_path)) == store_of(tmp_path) == Folder(tmp_path)
    assert store_of("memory://x") == UrlStore("memory://x") and str(store_of("memory://x")) == "memory://x"
    shared = SharedFolder(tmp_path)
    assert store_of(shared) is shared and shared.is_shared and not Folder(tmp_path).is_shared
    with pytest.raises(ValueError, match="checkpoints is a int"):
        store_of(3)
    with pytest.raises(ValueError, match=r"cannot be kept at nowhere://x: .*nowhere"):
        store_of("nowhere://x")


def test_a_url_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import partita.engine.files.mirror as mirror

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(json.dumps(name))

    monkeypatch.setattr(mirror, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install 'partita\[stores\]'"):
        UrlStore("memory://x")
