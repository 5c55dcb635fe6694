"""The example of the belief net: a small share of it, and the whole beside scikit-learn's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import belief_net
from examples.reproduce import fine_tuning
from partita.engine import SGD, Downpour, Session, load_tensors, train
from partita.engine.parameters import initialise
from partita.layers import Network, RestrictedBoltzmannMachine
from partita.partitioner import Cluster, partition


def test_a_little_of_it_learns_and_dreams(on_threads: object, tmp_path: Path) -> None:
    """Two epochs of a few pictures restore better than the first weights; samples are probabilities."""
    pictures, _ = belief_net.data()
    run = belief_net.boltzmann(pictures[:160], epochs=2)
    assert not any(message.is_of_weights for message in run.plan.messages)
    error, score = belief_net.quality(run, pictures[:160])
    assert error < 0.2 and score > -38, "of the first weights: 0.25, and 64 log 0.5 = -44.4"
    draw, parameters = np.random.default_rng(0), {}
    for level in ("belief_1", "belief_2"):
        parameters[f"{level}.weight"] = draw.normal(size=(64, 64)) / 8
        parameters |= dict.fromkeys((f"{level}.bias", f"{level}_visible.bias"), np.zeros(64))
    samples = belief_net.dreams(parameters, count=4, steps=2)
    assert samples.shape == (4, 64) and (samples > 0).all() and (samples < 1).all()
    assert len(np.unique(samples, axis=0)) == 4
    pytest.importorskip("matplotlib", reason="draws a picture")
    belief_net.draw(tmp_path, {"samples": samples})
    assert (tmp_path / "belief_net.svg").stat().st_size > 1000


def test_persistent_chains_go_on_from_a_checkpoint(on_threads: object, tmp_path: Path) -> None:
    """A run that is resumed twice has the bits of an unbroken one: weights, and the states of all chains."""
    pictures = belief_net.data()[0][:24]
    net = Network("chains")
    machine = RestrictedBoltzmannMachine(6, name="rbm")
    net.loss = machine.contrastive_divergence(net.input("picture", shape=64), steps=2, chains=11)
    plan = partition(net, Cluster.local(machines=2), batch=8, strategy="balanced")
    settings: Any = {"driver": Downpour(optimizer=SGD(0.1)), "seed": 3, "show": "nothing"}
    whole = train(plan, {"picture": pictures}, epochs=3, checkpoints=tmp_path / "whole", **settings)
    folder = tmp_path / "broken"
    for epochs in (1, 2, 3):
        resume = epochs > 1
        data = {"picture": pictures}
        run = train(plan, data, epochs=epochs, checkpoints=folder, resume=resume, **settings)
        kept = load_tensors(folder)
        assert np.array_equal(kept["rbm_chains.states"], run.parameters["rbm_chains.states"])
    assert set(np.unique(run.parameters["rbm_chains.states"])) == {0, 1}
    for name, values in whole.parameters.items():
        assert np.array_equal(run.parameters[name], values), name


@pytest.mark.slow
def test_a_belief_net_is_fine_tuned_as_a_classifier(on_threads: object) -> None:
    """After an epoch of backpropagation, what the levels have learnt is ahead of drawn weights."""
    fine, drawn = fine_tuning.fine_tune(0, epochs=(12, 1))
    assert fine > drawn + 0.2 and fine > 0.6


def test_a_classifier_begins_with_what_the_levels_have_learnt() -> None:
    draw = np.random.default_rng(0)
    parameters = {}
    for level in ("belief_1", "belief_2"):
        parameters[f"{level}.weight"] = draw.normal(size=(64, 64)).astype(np.float32) / 8
        parameters[f"{level}.bias"] = draw.normal(size=64).astype(np.float32)
        parameters[f"{level}_visible.bias"] = np.zeros(64, np.float32)
    plan = fine_tuning.classifier(parameters)
    start = initialise(plan.graph.parameters.values(), 0)
    pictures = belief_net.data()[0][: plan.batch].astype(np.float64)
    digits = np.arange(plan.batch) % 10
    with Session(plan, start, train=True) as session:
        step = session.step({"picture": pictures, "digit": digits}, collect=("scores", "gradient"))
    states = pictures
    for level in ("belief_1", "belief_2"):
        sums = states @ parameters[f"{level}.weight"].T + parameters[f"{level}.bias"]
        states = 1 / (1 + np.exp(-sums))
    known = states @ start["scores.weight"].T + start["scores.bias"]
    np.testing.assert_allclose(step.collected["scores"].T, known, rtol=1e-4, atol=1e-4)
    assert all(values.any() for name, values in step.vectors["gradient"].items()), "every level learns"


@pytest.mark.slow
def test_the_example_ends_where_scikit_learn_does(
    on_threads: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="draws a picture")
    belief_net.main(str(tmp_path))
    assert "scikit-learn  reconstruction error" in capsys.readouterr().out
