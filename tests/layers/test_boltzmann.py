"""Boltzmann machines as declarations: names, parameters, gradients that stop, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from partita.layers import (
    Bernoulli,
    Bias,
    DeepBeliefNet,
    Dense,
    DenseTransposed,
    HalfSquaredError,
    Network,
    RestrictedBoltzmannMachine,
    ScoreSum,
)


def network(**settings: Any) -> Network:
    net = Network("n")
    machine = RestrictedBoltzmannMachine(5, name="rbm")
    net.loss = machine.contrastive_divergence(net.input("v", shape=(2, 3)), **settings)
    return net


def test_a_machine_has_one_weight_and_two_biases() -> None:
    graph = network(steps=2).graph()
    shapes = {name: one.shape for name, one in graph.parameters.items()}
    assert shapes == {"rbm.weight": (5, 6), "rbm.bias": (5,), "rbm_visible.bias": (2, 3)}
    assert graph["rbm_downward"].shape == (2, 3) and graph["rbm_downward"].has_input_rows
    assert graph.users["rbm.weight"] == ("rbm", "rbm_downward", "rbm_1", "rbm_downward_1", "rbm_2")
    assert len(graph.losses) == 2 and graph.targets == () and graph.classifiers == ()


def test_only_the_ends_of_the_chain_have_gradients() -> None:
    found = network(steps=2).graph().needs_gradient
    ends = {"rbm", "rbm_2", "rbm_hidden_energy", "rbm_visible_energy"}
    assert found == ends | {"rbm_hidden_loss", "rbm_visible_loss"}


def test_chains_are_a_parameter_of_the_visible_shape() -> None:
    graph = network(chains=7).graph()
    chains = graph.parameters["rbm_chains.states"]
    assert chains.shape == (2, 3, 7) and chains.averaged and chains.kept and not chains.trainable
    assert graph.users[chains.name] == ("rbm_chains", "rbm_visible_energy")


def test_the_levels_below_do_not_learn() -> None:
    net = Network("n")
    net.loss = DeepBeliefNet((5, 4, 3)).contrastive_divergence(net.input("v", shape=6), 3, chains=4)
    graph = net.graph()
    learning = {name for name, one in graph.parameters.items() if one.trainable}
    assert learning == {"belief_3.weight", "belief_3.bias", "belief_3_visible.bias"}


def test_a_network_of_energies_is_written_and_read() -> None:
    net = network(chains=7)
    again = Network.from_json(net.to_json())
    assert again.graph() == net.graph()


def test_what_no_gradient_reaches_is_refused() -> None:
    net = Network("n")
    drawn = Bernoulli()(Dense(3, name="below")(net.input("x", shape=4)))
    net.loss = HalfSquaredError()(Dense(2)(drawn), net.target("y"))
    with pytest.raises(ValueError, match=r"below.weight .* is to learn, but no gradient reaches it"):
        net.graph()
    net = Network("n")
    drawn = Bernoulli()(Dense(3, name="below", trainable=False)(net.input("x", shape=4)))
    net.loss = HalfSquaredError()(Dense(2)(drawn), net.target("y"))
    assert net.graph().needs_gradient == {"dense", "half_squared_error"}


def test_mistakes_are_refused() -> None:
    net = Network("n")
    v, machine = net.input("v", shape=4), RestrictedBoltzmannMachine(3, name="rbm")
    with pytest.raises(ValueError, match="does not know its visible units yet; give their shape"):
        machine.downward(v)
    with pytest.raises(ValueError, match="ScoreSum 'score_sum' takes scores alone"):
        ScoreSum()(Bias()(v), net.target("y"))
    with pytest.raises(ValueError, match="Machine 'rbm' needs the states of another layer"):
        machine(3)  # type: ignore[arg-type]
    dense = Dense(3, name="dense")
    with pytest.raises(ValueError, match=r"its weight has the shape \(3, 5\), but dense.weight has \(3, 4\)"):
        DenseTransposed(5, weight=dense.parameter("weight"))(dense(v))
    with pytest.raises(ValueError, match="there is no level 3; it has 2, from 1"):
        DeepBeliefNet((3, 2)).contrastive_divergence(v, 3)
    with pytest.raises(ValueError, match="the number of units is 0"):
        RestrictedBoltzmannMachine(0)
    with pytest.raises(ValueError, match="the number of steps is 0"):
        machine.gibbs(v, 0)
    with pytest.raises(TypeError, match="did you mean 'units'"):
        RestrictedBoltzmannMachine(n_components=3)  # type: ignore[call-arg]
    apart = Network("apart")
    RestrictedBoltzmannMachine(3, name="rbm")
    other = RestrictedBoltzmannMachine(3, name="rbm")
    other.downward(apart.input("h", shape=3), shape=4)
    with pytest.raises(ValueError, match="was called downward before it was called upward"):
        other.upward(apart.input("v", shape=4))
