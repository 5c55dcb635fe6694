"""Initial values as names of other libraries, numbers, arrays and functions."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import SGD, Session
from partita.engine.drivers.identity import identity
from partita.engine.parameters import initialise
from partita.layers import Conv2D, Dense, Embedding, HalfSquaredError, Network, Parameter
from partita.layers.initial import ALIASES, INITIALISERS
from partita.partitioner import Cluster, RowSplit, partition


def network(**settings: Any) -> Network:
    net = Network("given")
    net.loss = HalfSquaredError()(Dense(4, name="d", **settings)(net.input("x", shape=3)), net.target("y"))
    return net


def first_of(net: Network, seed: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    return initialise(net.graph().parameters.values(), seed, dtype="float64")


def test_an_array_and_a_function_are_the_first_values() -> None:
    table = np.arange(12.0).reshape(4, 3)
    for given in (table, torch.from_numpy(table)):
        found = first_of(
            network(initialiser=given, bias_initialiser=lambda shape, rng: rng.uniform(size=shape))
        )
        np.testing.assert_array_equal(found["d.weight"], table)
        assert found["d.bias"].std() > 0
    table[:] = 0  # it was copied
    assert found["d.weight"].any()


@pytest.mark.parametrize("name", [*INITIALISERS, *ALIASES])
def test_every_name_has_the_spread_that_it_stands_for(name: str) -> None:
    spec = Parameter("w", (300, 200), name, fan_in=200, fan_out=300)
    values = initialise([spec], 5, dtype="float64")["w"]
    if name in ("zeros", "ones"):
        assert (values == (name == "ones")).all()
        return
    meant = {"normal": 0.05, "random_normal": 0.05}
    gain, fan = (
        (2.0 if "he" in name or "kai" in name else 1.0),
        250.0 if "gl" in name or "xa" in name else 200.0,
    )
    assert values.std() == pytest.approx(meant.get(name, (gain / fan) ** 0.5), rel=0.02)
    uniform = "uniform" in name or name == "glorot"
    assert (abs(values).max() < 1.8 * values.std()) == uniform


def test_any_cut_begins_with_the_same_values() -> None:
    """A function is called once, also where machines hold parts of the parameter."""
    calls = []

    def drawn(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        calls.append(shape)
        return rng.normal(size=shape) + len(calls)

    plan = partition(
        network(initialiser=drawn),
        Cluster.local(machines=2),
        batch=2,
        cuts={"d": RowSplit(2)},
        precision="float64",
    )
    with Session(plan, 3, train=True, optimizer=SGD(1e-30), hosts="threads") as session:
        batch = {"x": np.zeros((2, 3)), "y": np.zeros((2, 4))}
        found = session.step(batch, collect=("parameters",)).vectors["parameters"]
    assert calls == [(4, 3)]
    calls.clear()
    np.testing.assert_array_equal(found["d.weight"], first_of(network(initialiser=drawn))["d.weight"])


def test_a_pickled_network_has_the_digest_and_no_values() -> None:
    graph = network(initialiser=np.ones((4, 3)), bias_initialiser=lambda shape, rng: np.ones(shape)).graph()
    there = pickle.loads(pickle.dumps(graph))
    assert identity(there) == identity(graph)
    with pytest.raises(ValueError, match=r"initial values of 'd\.weight' are not here"):
        initialise(there.parameters.values(), 0)


def test_identity_knows_arrays_and_no_names() -> None:
    texts = [
        identity(network(initialiser=one).graph())["d"]
        for one in ("he", "glorot", np.ones((4, 3)), np.zeros((4, 3)), np.ones((4, 3)))
    ]
    assert texts[0] == texts[1] and texts[2] == texts[4] and len(set(texts)) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("glorott_uniform", "did you mean 'glorot_uniform'"),
        (np.ones((3, 4)), r"initial values of d.weight have the shape \(3, 4\), and it has \(4, 3\)"),
        (np.full((4, 3), np.nan), "give finite numbers"),
        (np.array([["a"]]), "give finite numbers"),
        (float("inf"), "there is no initialiser inf"),
        (None, "a function f"),
    ],
)
def test_wrong_values_are_refused_when_the_layer_is_made_or_placed(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network(initialiser=given)


def test_a_function_is_told_what_it_returned() -> None:
    def wrong(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        return np.ones(3)

    net = network(initialiser=wrong)
    with pytest.raises(
        ValueError, match=r"function wrong returned float64 \(3,\) for 'd\.weight'; .*\(4, 3\)"
    ):
        first_of(net)


def test_a_bias_that_is_not_there_has_no_values() -> None:
    with pytest.raises(ValueError, match="leave bias_initialiser out"):
        Dense(3, use_bias=False, bias_initialiser=1.0)


def test_other_layers_take_them_too() -> None:
    net = Network("n")
    table = np.arange(10.0).reshape(5, 2)
    Embedding(5, 2, initialiser=table, name="e")(net.input("words", shape=4, classes=5))
    Conv2D(2, 2, bias_initialiser=[0.5, 1.5] @ np.eye(2), name="c")(net.input("x", shape=(4, 4, 1)))
    found = first_of(net)
    np.testing.assert_array_equal(found["e.weight"], table)
    np.testing.assert_array_equal(found["c.bias"], [0.5, 1.5])
