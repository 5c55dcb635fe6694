"""Training over data that is read ahead: the bits of a training over arrays, for any driver and replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import AllReduce, Downpour, Loader, Record, Sandblaster, Stream, train
from tests.data import kinds


def trained(data: Any, driver: Any = None, *, machines: int = 1, **settings: Any) -> dict[str, Any]:
    driver = driver or Downpour()
    epochs = None if isinstance(driver, Sandblaster) else 2
    run = train(kinds.plan(machines), data, driver=driver, epochs=epochs, show="nothing", **settings)
    return dict(run.parameters)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("machines", [1, 2])
def test_downpour(machines: int, on_threads: object) -> None:
    records: list[Record] = []
    found = trained(Loader(kinds.Pairs(), workers=2), machines=machines, on_record=records.append)
    assert_same(found, trained(kinds.ARRAYS, machines=machines))
    assert sum(record.examples for record in records) == 2 * kinds.EXAMPLES
    assert all(0.0 <= record.metrics["data_wait"] <= 1.5 for record in records)


def test_small_types_have_the_same_bits(on_threads: object) -> None:
    assert_same(
        trained({"picture": kinds.PICTURES, "digit": kinds.DIGITS.astype(np.int8)}), trained(kinds.ARRAYS)
    )


def test_the_order_is_the_same_for_any_number_of_replicas(on_threads: object) -> None:
    data = Loader({"picture": kinds.PICTURES, "digit": kinds.DIGITS}, transform=kinds.halved)
    arrays = {"picture": kinds.ARRAYS["picture"] / 2, "digit": kinds.DIGITS}
    assert_same(trained(data, AllReduce(replicas=2)), trained(arrays, AllReduce(replicas=2)))


def test_streams_train_in_windows(on_threads: object) -> None:
    """Examples come in the order of the windows, which the arrays in that order give, too."""
    stream = Stream(kinds.shard, shards=3, examples=[10, 11, 9])
    ordering = Loader(stream, shuffle=7).ordering(stream)
    order = ordering.of(kinds.EXAMPLES, lambda epoch: [0, 1, 0, epoch])
    twice = np.concatenate([order.at(epoch, 0, kinds.EXAMPLES) for epoch in (0, 1)])
    assert not np.array_equal(twice[: kinds.EXAMPLES], twice[kinds.EXAMPLES :])
    shown = Loader({name: array[twice] for name, array in kinds.ARRAYS.items()}, shuffle=False)
    run = train(kinds.plan(), shown, driver=Downpour(), epochs=1, max_steps=3, show="nothing")
    found = train(
        kinds.plan(), Loader(stream, shuffle=7), driver=Downpour(), epochs=1, max_steps=3, show="nothing"
    )
    assert_same(dict(found.parameters), dict(run.parameters))


def test_weights_of_examples_are_those_of_arrays(tmp_path: Path, on_threads: object) -> None:
    """By their numbers, or by a column, whatever the data is; and after transforms."""
    weights, by_label = np.linspace(0.2, 2.0, kinds.EXAMPLES), {0: 3.0, 2: 0.5}
    given: dict[str, Any] = {"sample_weight": weights, "class_weight": by_label}
    expected = trained(kinds.ARRAYS, **given)
    assert any((values != trained(kinds.ARRAYS)[name]).any() for name, values in expected.items())
    np.savez(tmp_path / "all.npz", picture=kinds.PICTURES, digit=kinds.DIGITS, cost=weights)
    columns = {"picture": kinds.PICTURES, "digit": kinds.DIGITS, "cost": weights}
    assert_same(trained(Loader(kinds.Pairs(), workers=2), **given), expected)
    for data in (str(tmp_path / "all.npz"), Loader(columns, workers=2), Loader(columns, transform=dict)):
        assert_same(trained(data, **given | {"sample_weight": "cost"}), expected)


@pytest.mark.parametrize("machines", [1, 2])
def test_sandblaster(machines: int, on_threads: object) -> None:
    records: list[Record] = []
    given = Loader(kinds.Pairs()), Sandblaster()
    found = trained(*given, machines=machines, on_record=records.append)
    assert_same(found, trained(kinds.ARRAYS, Sandblaster(), machines=machines))
    assert records
    assert all(0.0 <= record.metrics["data_wait"] <= 1.5 for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memmap", "torch data set", "tensors", "torch loader", "generator", "npz"])
def test_every_kind_on_processes(kind: str, tmp_path: Path) -> None:
    found = trained(kinds.random_access(tmp_path)[kind])
    assert_same(found, trained(kinds.ARRAYS))


@pytest.mark.slow
def test_worker_processes_in_hosts() -> None:
    data = Loader(kinds.Pairs(), workers=2, processes=True)
    assert_same(trained(data, Downpour(replicas=1)), trained(kinds.ARRAYS))
