"""Networks as JSON: what was written is read again, and what cannot be is refused in a sentence."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.engine.parameters import initialise
from partita.layers import (
    L1L2,
    L2,
    Activation,
    Dense,
    Dropout,
    Edges,
    Embedding,
    Full,
    Graph,
    HalfSquaredError,
    Linear,
    Network,
    Node,
    SoftmaxCrossEntropy,
    node,
    per_edge,
    per_node,
)
from partita.layers.architecture import VERSION, from_json, to_json
from partita.partitioner import Cluster, partition
from tests.draws import examples
from tests.networks import LEARNS, energy, leaky_sum, networks

CUSTOM = {function.__name__: function for pair in LEARNS.items() for function in (pair[0], pair[1][0])}


def ramp(shape: Any, rng: Any) -> Any:
    return np.arange(np.prod(shape)).reshape(shape) / 7


@node(Full(), weight=per_edge("he"), gain=per_node(0.5))
def weighed(incoming, weight, gain):  # type: ignore[no-untyped-def]
    return gain * (weight * incoming).sum()


@weighed.downward
def weighed_errors(incoming, weight, gain, state, error):  # type: ignore[no-untyped-def]
    return error * gain * weight, error * gain * incoming, error * (weight * incoming).sum()


@dataclass(frozen=True)
class Doubled(Activation):
    """A class of the user, with a setting of its own."""

    factor: float = field(default=2.0, kw_only=True)


def digits(layer: Any = None) -> Network:
    net = Network("digits")
    found = (layer or Dense(5, name="hidden"))(net.input("x", shape=4))
    net.loss = SoftmaxCrossEntropy()(Dense(3)(found), net.target("y"))
    return net


def changed(change: Callable[[dict[str, Any]], None]) -> str:
    document = json.loads(digits().to_json())
    change(document)
    return json.dumps(document)


@settings(
    max_examples=examples(16),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(graph=networks(shared=True))
def test_any_network_is_read_as_it_was_written(graph: Graph) -> None:
    """Equal plans, and initial parameters equal to the bit."""
    written = to_json(graph.name, graph.grids, graph.losses)
    again = Network.from_json(written, custom=CUSTOM)
    assert again.to_json() == written
    assert again.graph() == graph
    first, second = (initialise(one.parameters.values(), 3) for one in (graph, again.graph()))
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])


@pytest.mark.parametrize(
    "layer",
    [
        Dense(5, regulariser=L2(0.5), trainable=False, bias_initialiser=0.25),
        Dense(5, regulariser=L1L2(0.1, 0.2), initialiser=ramp),
        Dense(5, initialiser=np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)),
        Dense(np.int64(5), initialiser="kaiming_normal"),  # type: ignore[arg-type]
        Node(Edges([(0, 1), (3, 0)], nodes=(2, 2)), leaky_sum, LEARNS[leaky_sum][0], LEARNS[leaky_sum][1]),
        weighed(3),
        Doubled("relu", factor=3.0, name="mine"),
    ],
)
def test_settings_of_every_kind(layer: Any) -> None:
    net = digits(layer)
    custom = {
        **CUSTOM,
        "ramp": ramp,
        "weighed": weighed,
        "weighed_errors": weighed_errors,
        "Doubled": Doubled,
    }
    again = Network.from_json(net.to_json(), custom=custom)
    assert again.graph() == net.graph()
    plans = [partition(one, Cluster.local(machines=2), batch=4) for one in (net, again)]
    assert str(plans[0]) == str(plans[1])
    arrays = [initialise(one.graph().parameters.values(), 3) for one in (net, again)]
    assert all(np.array_equal(values, arrays[1][name]) for name, values in arrays[0].items())


def test_the_text_is_for_reading() -> None:
    net = Network("words")
    words = net.input("word", shape=3, classes=50)
    net.loss = HalfSquaredError(name="miss")(Embedding(50, 4)(words), net.target("y"))
    document = json.loads(net.to_json())
    assert document["format"] == "partita architecture" and document["version"] == VERSION
    assert document["layers"][0] == {"name": "word", "kind": "Input", "shape": [3], "classes": 50}
    looked_up = document["layers"][1]
    assert looked_up["kind"] == "Embedding" and looked_up["inputs"] == ["word"]
    assert looked_up["settings"]["units"] == 4 and "name" not in looked_up["settings"]
    assert document["losses"] == ["miss"]


def test_a_layer_without_parameters_is_called_twice() -> None:
    net, twice = Network("twice"), Dropout(0.5)
    twice(twice(net.input("x", shape=4)))
    document = json.loads(net.to_json())
    assert document["layers"][2] == {"name": "dropout_1", "layer": "dropout", "inputs": ["dropout"]}
    again = Network.from_json(net.to_json()).graph()
    assert again["dropout"].layer is again["dropout_1"].layer


def test_shared_parameters_stay_shared() -> None:
    net = Network("ties")
    table, twice = Embedding(7, 4, name="table"), Linear(4)
    found = twice(twice(table(net.input("word", shape=3, classes=7))))
    Linear(7, weight=table.weight, name="scores")(found)
    again = Network.from_json(net.to_json()).graph()
    assert again == net.graph() and again.tied == {"table", "linear", "linear_1", "scores"}
    broken = net.to_json().replace('"of": "table"', '"of": "tables"')
    with pytest.raises(
        ValueError, match="layer 'scores' of the file: it uses layer 'tables', which does not"
    ):
        Network.from_json(broken)


@dataclass(frozen=True)
class Opaque:
    """A regulariser whose setting JSON cannot hold."""

    what: object = frozenset({1})

    def __call__(self, values: Any) -> Any:
        return 0 * values.sum()


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (Dense(5, initialiser=lambda shape, rng: np.zeros(shape)), "initialiser of Dense 'dense' is "),
        (
            Dense(5, regulariser=Opaque()),
            "what of regulariser of Dense 'dense' is frozenset({1}), which JSON",
        ),
        (
            Dense(50_000, initialiser=np.zeros((50_000, 4), np.float32)),
            "initialiser of Dense 'dense' is an array of 200,000 numbers; a file holds at most 100,000. Save",
        ),
    ],
)
def test_what_cannot_be_written(layer: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        digits(layer).to_json()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "the architecture is no JSON, or damaged: "),
        ("[" * 100_000, "the architecture is no JSON, or damaged: "),
        ("[1]", "this is no architecture of a network; give what net.to_json() returned"),
        (changed(lambda d: d.update(format="keras")), "this is no architecture"),
        (
            changed(lambda d: d.update(version=VERSION + 1)),
            f"the architecture is of version {VERSION + 1}, and this Partita reads up to {VERSION}; update",
        ),
        (changed(lambda d: d.update(version="1")), "the architecture is damaged: its version is '1'"),
        (changed(lambda d: d.update(layer=[])), "there is no 'layer' in an architecture; it has format"),
        (changed(lambda d: d.update(layers=3)), "the architecture is damaged: its layers are 3"),
        (changed(lambda d: d.update(losses=["hidden"])), "<states of hidden (5,)> is not a loss"),
        (changed(lambda d: d.update(losses=["lost"])), "the file names 'lost', which does not stand before"),
        (changed(lambda d: d.update(name="my net")), "'my net' cannot name a network"),
        (
            changed(lambda d: d["layers"][1].update(kind="Densee")),
            "layer 'hidden' of the file: there is no layer 'Densee'; did you mean 'Dense'?",
        ),
        (
            changed(lambda d: d["layers"][1].update(kind="os.system")),
            "layer 'hidden' of the file: it needs os.system, and a file holds no code; pass it: "
            "custom={'system': system}",
        ),
        (
            changed(lambda d: d["layers"][1].update(inputs=["z"])),
            "layer 'hidden' of the file: the file names 'z'",
        ),
        (
            changed(lambda d: d["layers"][1]["settings"].update(units=2.5)),
            "layer 'hidden' of the file: Dense: the number of nodes is 2.5",
        ),
        (
            changed(lambda d: d["layers"][1]["settings"].update(colour="red")),
            "layer 'hidden' of the file: Dense has no argument 'colour'; it takes",
        ),
        (
            changed(lambda d: d["layers"][1]["settings"].update(name="other")),
            "layer 'hidden' of the file: a network would call it 'other'; write \"name\": 'hidden'",
        ),
        (
            changed(lambda d: d["layers"][1].update(kind="Full", settings={})),
            "layer 'hidden' of the file: 'Full' is no kind of layer",
        ),
    ],
)
def test_what_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        Network.from_json(text)


def test_functions_of_the_user_are_passed_in() -> None:
    learns = (("gain", per_node(0.5)),)
    written = digits(Node(Full(), energy, None, learns, (2,))).to_json()
    with pytest.raises(
        ValueError, match=re.escape("it needs tests.networks.energy, and a file holds no code")
    ):
        Network.from_json(written)
    for name in ("energy", "tests.networks.energy"):
        assert Network.from_json(written, custom={name: energy}).graph()["energy"].layer.kind == "Node energy"


damage = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.text(max_size=3) | st.just("Full"),
    lambda some: (
        st.lists(some, max_size=2) | st.dictionaries(st.sampled_from(["kind", "a"]), some, max_size=2)
    ),
    max_leaves=3,
)


@settings(
    max_examples=examples(24),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(graph=networks(shared=True, max_layers=3), draw=st.data())
def test_damage_anywhere_is_a_sentence(graph: Graph, draw: st.DataObject) -> None:
    """Any value of the file, left out or replaced by another one, gives a network or a ValueError."""
    found = json.loads(to_json(graph.name, graph.grids, graph.losses))
    place: Any = found
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.draw(st.sampled_from(keys))
        if not place[key] or not isinstance(place[key], dict | list) or draw.draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    if isinstance(place, dict) and draw.draw(st.booleans()):
        del place[key]
    else:
        place[key] = draw.draw(damage)
    with contextlib.suppress(ValueError):
        from_json(json.dumps(found), Network, CUSTOM)
