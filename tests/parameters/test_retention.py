"""Which checkpoints stay: the newest whole ones, whatever has happened to the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.parameters import CheckpointError, Checkpoints, checkpoint
from tests.draws import examples
from tests.parameters.written import SHAPES, whole, write

KEEP = 2


def is_whole(folder: Path, number: int) -> bool:
    try:
        found = Checkpoints(folder).open(number, SHAPES)
    except CheckpointError:
        return False
    return all(np.array_equal(array, whole(number)[name]) for name, array in found.parameters().items())


def whole_ones(folder: Path) -> list[int]:
    """Numbers, newest first."""
    return [number for number in Checkpoints(folder).complete() if is_whole(folder, number)]


@st.composite
def damages(draw: st.DrawFn, folder: Path) -> None:
    """Flips a bit of some file of some checkpoint, cuts it, or removes it."""
    paths = sorted(path for path in folder.glob("0*/*") if path.name != "partita" and path.stat().st_size)
    path = draw(st.sampled_from(paths))
    data = bytearray(path.read_bytes())
    at = draw(st.integers(0, len(data) - 1))
    how = draw(st.sampled_from(("flip", "cut", "remove")))
    if how == "remove":
        path.unlink()
        return
    if how == "flip":
        data[at] ^= 1 << draw(st.integers(0, 7))
    path.write_bytes(data if how == "flip" else data[:at])


@settings(max_examples=examples(6))
@given(st.data())
def test_only_whole_checkpoints_count(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("kept")
    store, first = Checkpoints(folder, keep=KEEP), 0
    for number in range(1, data.draw(st.integers(2, 6)) + 1):
        if (
            data.draw(st.integers(0, 4)) == 0
        ):  # the process is another one, perhaps of a run that replaces this
            store = Checkpoints(folder, keep=KEEP)
            first = data.draw(st.sampled_from((first, number)))
        write(store, number, base=number)
        before = whole_ones(folder)
        store.prune(first=first)
        kept = [n for n in before if n >= first][:KEEP] or before
        assert [n for n in whole_ones(folder) if n in kept] == kept, (before, first)
        beyond = [n for n in before if n not in kept]
        assert len(kept) < KEEP or not set(beyond) & set(whole_ones(folder)), "nothing more is kept"
        for _ in range(data.draw(st.integers(0, 2))):
            data.draw(damages(folder))


def test_a_checkpoint_is_read_again_only_where_its_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        write(Checkpoints(tmp_path), number, base=number)
    opened: list[int] = []
    real = Checkpoints.open

    def counts(self: Checkpoints, number: int, *arguments: object, **options: object) -> object:
        opened.append(number)
        return real(self, number, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint.Checkpoints, "open", counts)
    store = Checkpoints(tmp_path, keep=2)
    for number in (3, 4, 5):
        write(store, number, base=number)
        store.prune()
    assert opened == [2], "an earlier process wrote it"
    victim = next((tmp_path / "00000005").glob("shard-0*"))
    victim.write_bytes(victim.read_bytes()[:-1])
    write(store, 6, base=6)
    store.prune()
    assert opened == [2, 5] and store.complete() == [6, 5, 4], "a damaged one does not count"
