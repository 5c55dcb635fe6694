"""Data that cannot be used: one sentence that names the place, before the run or when it is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import Downpour, Loader, Npz, RunFailed, Stream, train
from partita.engine.data.dataset import DataError
from partita.engine.data.prepared import Prepared
from partita.engine.data.times import FeedTimes, ReadSums
from partita.engine.files.access import HostFiles
from partita.engine.profile.measure import Measured, first_batch, reading_remark
from partita.engine.run.data import run_data
from tests.data import kinds


def prepared(data: Any, folder: Path) -> Prepared:
    found = run_data(
        kinds.plan().graph, data, targets=True, precision="float32", batch=kinds.BATCH, folder=folder
    )
    assert found.prepared is not None
    return found.prepared


def read(data: Any, folder: Path, *numbers: int) -> None:
    maker = prepared(data, folder).maker(HostFiles())
    try:
        maker.make(np.array(numbers), 0)
    finally:
        maker.close()


def test_an_example_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"example 7 of the data \(Pairs\) cannot be read: KeyError: 'no such"
    ):
        read(kinds.Pairs(fails_at=7), tmp_path, 3, 7)
    with pytest.raises(ValueError, match="example 2 of the data"):  # before the run
        read(kinds.Pairs(fails_at=2), tmp_path, 9)


def changed(number: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    class Changed(kinds.Pairs):
        def __getitem__(self, n: int) -> Any:
            item = {"picture": kinds.PICTURES[n].astype(np.float32), "digit": int(kinds.DIGITS[n])}
            return change(item) if n == number else item

    return Changed()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda item: item | {"picture": item["picture"] * np.nan}, "'picture' is not finite .* example 11;"),
        (lambda item: item | {"picture": item["picture"][:1]}, "'picture' of example 11 has shape"),
        (lambda item: item | {"digit": 3}, "'digit' has the label 3 in example 11, .* 3 classes"),
        (lambda item: {"picture": item["picture"]}, "example 11 has picture, and example 10 picture, digit"),
        (lambda item: item | {"picture": "cat"}, "'picture' of example 11 is a str, not real numbers"),
    ],
)
def test_an_example_that_does_not_fit_is_named(change: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=sentence):
        read(changed(11, change), tmp_path, 10, 11)


def test_shards_that_do_not_fit(tmp_path: Path) -> None:
    pattern = kinds.npz_shards(tmp_path)
    given = prepared(pattern, tmp_path)
    (tmp_path / "1.npz").unlink()
    maker = given.maker(HostFiles())
    with pytest.raises(
        DataError, match=r"1\.npz is not on .*; every machine whose hosts read the data needs"
    ):
        maker.make(np.array([12]), 0)
    maker.close()
    (tmp_path / "1.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"1\.npz cannot be read on .*: BadZipFile"):
        Npz(pattern)
    np.savez(tmp_path / "1.npz", picture=kinds.PICTURES.astype(np.float32), digit=kinds.DIGITS)
    with pytest.raises(DataError, match=r"1\.npz has 'picture' float32 .*, and .*0\.npz 'picture' uint8"):
        Npz(pattern)
    np.savez(tmp_path / "1.npz", picture=kinds.PICTURES, digit=kinds.DIGITS[:3])
    with pytest.raises(DataError, match=r"1\.npz differ in their number of examples: {'picture': 30"):
        Npz(pattern)
    with pytest.raises(DataError, match=r"no file is called '.*none\*\.npz'"):
        Npz(str(tmp_path / "none*.npz"))


def test_streams_that_end_early_or_fail(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ended after 9 examples in shard 2, and it has 15; it must yield"):
        read(Stream(kinds.shard, shards=3, examples=[10, 11, 15]), tmp_path, 35)

    def fails() -> Iterator[Any]:
        yield kinds.PICTURES[0], 0
        raise OSError("the link is down")

    with pytest.raises(DataError, match="the stream failed at item 1: OSError: the link is down"):
        read(fails, tmp_path, 0)
    with pytest.raises(DataError, match="the stream has no examples"):
        read(lambda: iter(()), tmp_path, 0)
    with pytest.raises(DataError, match="the generator failed at example 1: OSError"):
        read(fails(), tmp_path, 0)
    with pytest.raises(ValueError, match=r"Stream takes a function .* give the function that makes it"):
        Stream(fails())  # type: ignore[arg-type]


def test_loaders_of_torch_that_do_more_than_a_loader(tmp_path: Path) -> None:
    loader: Any = torch.utils.data.DataLoader
    with pytest.raises(ValueError, match="a collate_fn of its own, which is not called"):
        read(loader(kinds.Pairs(), batch_size=kinds.BATCH, collate_fn=list), tmp_path, 0)
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * kinds.EXAMPLES, 5)
    with pytest.raises(ValueError, match="the DataLoader has a WeightedRandomSampler, and every example"):
        read(loader(kinds.Pairs(), batch_size=kinds.BATCH, sampler=sampler), tmp_path, 0)
    with pytest.warns(UserWarning, match="has batches of 5, and the plan of 8, which are used"):
        read(loader(kinds.Pairs(), batch_size=5), tmp_path, 0)


def test_transforms_that_fail(tmp_path: Path) -> None:
    def fewer(batch: dict[str, Any]) -> dict[str, Any]:
        return {name: values[1:] for name, values in batch.items()}

    for transform, sentence in (
        (lambda batch: None, "the transform <lambda> returned a NoneType; return the dictionary"),
        (fewer, "the transform fewer returned 'picture' of shape .* for 4 examples; keep"),
        (lambda batch: {"digit": batch["digit"]}, "the minibatch has no 'picture' after its transforms"),
        (
            lambda batch: batch["image"],
            "the minibatch that begins with example 0, epoch 0: KeyError: 'image'",
        ),
    ):
        with pytest.raises(DataError, match=sentence):
            read(Loader(kinds.ARRAYS, transform=transform), tmp_path, 0)
    with pytest.raises(ValueError, match="is no function"):
        Loader(kinds.ARRAYS, transform=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no argument 'num_workers'; did you mean 'workers'"):
        Loader(kinds.ARRAYS, num_workers=3)


def test_a_run_ends_with_the_sentence(on_threads: object) -> None:
    with pytest.raises(RunFailed, match="example 23 of the data"):
        train(kinds.plan(), kinds.Pairs(fails_at=23), driver=Downpour(), epochs=1, show="nothing")


def test_a_profile_says_that_reading_is_slower_than_computing() -> None:
    measured = Measured(kinds.plan(), (0.01,), (), (), ())  # 8 examples in 10 ms
    (remark,) = reading_remark(200.0, [measured])
    assert (
        "the reader gives 200 examples/s, and the network takes 800: it would wait 75% of the time" in remark
    )
    assert reading_remark(900.0, [measured]) == reading_remark(None, [measured]) == ()
    batch, rate = first_batch(kinds.plan(), kinds.Pairs())
    np.testing.assert_array_equal(batch["picture"], kinds.ARRAYS["picture"][: kinds.BATCH])
    assert rate is not None and rate > 0
    assert first_batch(kinds.plan(), kinds.ARRAYS)[1] is None


def test_waits_are_said_with_what_to_do(tmp_path: Path) -> None:
    given = prepared(kinds.Pairs(), tmp_path)
    times = FeedTimes(2.0, 6.0, 900, 2).since(FeedTimes(1.0, 2.0, 100, 2), passed_s=4.0)
    sums = ReadSums().plus(times).plus(())
    assert sums == (1.0, 4.0, 2.0, 800.0)
    sentence = sums.sentence(given)
    assert "25% of the time waited; the reader gives 400 examples/s, the network takes 267" in sentence
    assert ReadSums(0.1, 4.0, 2.0, 800).sentence(given) == ""
    assert ReadSums().sentence(given) == ""
