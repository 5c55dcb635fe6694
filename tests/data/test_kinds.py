"""Each kind of data trains the same network: to the bit where its examples come in the same order."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import Loader, Run, Stream, evaluate, predict
from partita.engine.data.ahead import ReadAhead
from partita.engine.data.columns import Columns, HeldArray
from partita.engine.data.naming import naming_of
from partita.engine.data.prepared import Prepared
from partita.engine.files.access import HostFiles
from partita.engine.parameters import initialise
from partita.engine.run.data import run_data
from partita.engine.run.minibatches import minibatches_of
from tests.data import kinds

KINDS = ("uint8", "memmap", "torch data set", "tensors", "torch loader", "generator", "npz")


def prepared(data: Any, folder: Path, *, targets: bool = True) -> Prepared:
    plan = kinds.plan()
    found = run_data(
        plan.graph, data, targets=targets, precision="float32", batch=kinds.BATCH, folder=folder, here=True
    )
    assert found.prepared is not None
    return found.prepared


def batches(data: Any, *, targets: bool = True) -> dict[str, kinds.Array]:
    """All examples in the order in which they lie, as a network gets them."""
    with minibatches_of(kinds.plan(), data, targets=targets) as given:
        real = [given.real_batch(number) for number in range(len(given))]
    return {name: np.concatenate([one[name] for one in real]) for name in real[0]}


def assert_same(found: dict[str, kinds.Array], expected: dict[str, kinds.Array] = kinds.ARRAYS) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_minibatches(kind: str, tmp_path: Path) -> None:
    assert_same(batches(kinds.random_access(tmp_path)[kind]))


@pytest.mark.parametrize("shards", [None, 3], ids=["one stream", "shards"])
@pytest.mark.parametrize("counted", [False, True], ids=["counted", "told"])
def test_a_stream_gives_the_same_minibatches(shards: int | None, counted: bool, tmp_path: Path) -> None:
    told: Any = 0 if not counted else kinds.EXAMPLES if shards is None else [10, 11, 9]
    opens: Any = kinds.pairs if shards is None else kinds.shard
    assert_same(batches(Stream(opens, shards=shards, examples=told)))
    assert_same(batches(kinds.Ordered()))


def test_a_function_and_chunks_are_streams(tmp_path: Path) -> None:
    def chunks() -> Any:
        yield from ({n: a[s : s + 7] for n, a in kinds.ARRAYS.items()} for s in range(0, kinds.EXAMPLES, 7))

    assert_same(batches(kinds.pairs))
    assert_same(batches(Stream(chunks, chunks=True)))


def test_compressed_shards_are_read_whole(tmp_path: Path) -> None:
    pattern = kinds.npz_shards(tmp_path, compressed=True)
    assert prepared(pattern, tmp_path).dataset.blocks == (10, 11, 9)
    assert_same(batches(pattern))


def test_numbers_that_belong_to_nothing_else_are_joined() -> None:
    grids = kinds.network().graph()
    columns = {f"p{n}": kinds.PICTURES.reshape(-1, 6)[:, n] for n in range(6)} | {"digit": kinds.DIGITS}
    table = Columns({name: HeldArray(values) for name, values in columns.items()})
    naming = naming_of(table, [*grids.inputs, *grids.targets])
    np.testing.assert_array_equal(naming.named(columns)["picture"], kinds.PICTURES.reshape(-1, 6))
    assert naming_of(table, grids.inputs, others={"digit"}).read == tuple(f"p{n}" for n in range(6))


@pytest.mark.slow
def test_columns_of_a_table_are_joined_to_the_one_input_without_a_name(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    flat = kinds.PICTURES.reshape(kinds.EXAMPLES, 6)
    from partita.layers import Dense, Network, SoftmaxCrossEntropy

    net = Network("table")
    net.loss = SoftmaxCrossEntropy()(Dense(3)(net.input("x", shape=(6,))), net.target("digit"))
    frame = pandas.DataFrame({"digit": kinds.DIGITS, **{f"p{n}": flat[:, n] for n in range(6)}})
    graph = net.graph()
    settings: Any = {"precision": "float32", "batch": 4, "folder": tmp_path, "here": True}
    found = run_data(graph, frame, targets=True, **settings)
    np.testing.assert_array_equal(found.arrays["x"], flat)
    assert run_data(graph, frame, targets=False, **settings).arrays.keys() == {"x"}
    with pytest.raises(ValueError, match=r"the data has no 'x'; it has 'digit', 'p0'.* 1 column for its 6"):
        run_data(graph, frame[["digit", "p0"]], targets=True, **settings)


def test_parquet_tables(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number, (first, last) in enumerate(((0, 17), (17, 30))):
        table = pyarrow.table(
            {
                "picture": kinds.PICTURES[first:last].tolist(),
                "digit": kinds.DIGITS[first:last],
                "name": [f"picture {n}" for n in range(first, last)],
            }
        )
        parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=6)
    pattern = str(tmp_path / "*.parquet")
    assert prepared(pattern, tmp_path).dataset.blocks == (6, 6, 5, 6, 6, 1)
    assert_same(batches(pattern))
    ragged = pyarrow.table({"picture": [[1], [2, 3, 4]], "digit": [0, 1]})
    parquet.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(ValueError, match=r"no 'picture'; it has 'digit'"):
        batches(str(tmp_path / "ragged.parquet"))


def test_pictures_in_folders(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for n, (picture, digit) in enumerate(zip(kinds.PICTURES, kinds.DIGITS, strict=True)):
        folder = tmp_path / "data" / f"class {digit}"
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(picture[..., 0]).save(folder / f"{n:02d}.png")
    from partita.engine import Pictures

    order = np.argsort(kinds.DIGITS, kind="stable")
    expected = {name: array[order] for name, array in kinds.ARRAYS.items()}
    assert_same(batches(Pictures(tmp_path / "data", channels=1)), expected)
    large = Pictures(str(tmp_path / "data" / "*" / "*.png"), size=(4, 6), channels=3)
    assert large.fields["picture"].shape == (4, 6, 3)
    assert large.classes == ("class 0", "class 1", "class 2")


@pytest.mark.slow
def test_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="partita[data] is not installed")
    importlib.import_module("tqdm").tqdm.monitor_interval = 0  # no thread of its own
    given = datasets.Dataset.from_dict(
        {"picture": kinds.PICTURES.tolist(), "digit": kinds.DIGITS.tolist(), "name": ["x"] * kinds.EXAMPLES}
    )
    assert_same(batches(given))
    with pytest.raises(ValueError, match=r"a DatasetDict with 'train'; give one of them, as data\['train'\]"):
        batches(datasets.DatasetDict({"train": given}))


def test_what_cannot_be_sent_is_copied_once(tmp_path: Path) -> None:
    class Held(kinds.Pairs):
        def __reduce__(self) -> Any:
            raise TypeError("a connection cannot be pickled")

    notes: list[str] = []
    found = run_data(
        kinds.plan().graph,
        Held(),
        targets=True,
        precision="float32",
        batch=kinds.BATCH,
        folder=tmp_path,
        note=notes.append,
    )
    assert found.prepared is not None and found.prepared.examples == kinds.EXAMPLES
    assert "cannot be sent to other processes (TypeError: a connection" in notes[0]


def test_evaluation_takes_every_kind() -> None:
    plan = kinds.plan()
    run = Run(plan, initialise(plan.graph.parameters.values(), 0, dtype="float32"))
    expected = evaluate(run, kinds.ARRAYS, hosts="inline", show="nothing")
    loader = Loader(kinds.Pairs(), workers=2)
    for data in ({"picture": kinds.PICTURES, "digit": kinds.DIGITS}, loader, kinds.pairs):
        assert evaluate(run, data, hosts="inline", show="nothing") == expected
    scores = predict(run, kinds.ARRAYS, hosts="inline", show="nothing")
    np.testing.assert_array_equal(predict(run, kinds.Ordered(), hosts="inline", show="nothing"), scores)
    np.testing.assert_array_equal(predict(run, loader, hosts="inline", show="nothing"), scores)


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_minibatch_is_the_same_whoever_makes_it(processes: bool, tmp_path: Path) -> None:
    def noisy(batch: dict[str, Any], draws: Any) -> dict[str, Any]:
        return batch | {"picture": batch["picture"] + draws.uniform("noise")[:, None, None, None]}

    chosen, found = np.array([4, 9, 2]), []
    for workers in (1, 3):
        settings: Any = {"workers": workers, "processes": processes and workers > 1}
        given = Loader(kinds.Pairs(), transform=noisy, **settings)
        ahead = ReadAhead(prepared(given, tmp_path), HostFiles())
        try:
            ahead.announce([(np.arange(3), 1), (chosen, 1)])
            found.append(ahead.take(chosen, 1)["picture"])
            alone = ahead.take(chosen[1:2], 1)["picture"]
        finally:
            ahead.close()
        np.testing.assert_array_equal(found[-1][1:2], alone)
    np.testing.assert_array_equal(found[0], found[1])
