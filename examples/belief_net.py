"""A Boltzmann machine and a deep belief net that draw handwritten digits, on two machines under Downpour SGD.

    python -m examples.belief_net [FOLDER]

It trains a restricted Boltzmann machine by persistent contrastive divergence, beside scikit-learn's on the
same work, and a belief net of two levels by CD-1. It prints how well each restores pictures that it has not
seen, and draws filters and samples to FOLDER/belief_net.svg (with matplotlib, of the extra `view`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import BernoulliRBM

from partita.engine import SGD, Downpour, Run, predict, train
from partita.layers import DeepBeliefNet, Network, RestrictedBoltzmannMachine
from partita.partitioner import Cluster, Plan, partition

UNITS, BATCH, RATE = 64, 20, 0.05


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's digits in black and white: 1,400 pictures `[example, 64]` to learn, the rest to test."""
    pictures = load_digits().data[np.random.default_rng(seed).permutation(1797)]
    states = (pictures > 7.5).astype(np.float32)
    return states[:1400], states[1400:]


def cut(net: Network) -> Plan:
    """A plan over two machines: each has half of the units, and no weight ever travels."""
    return partition(net, Cluster.local(machines=2), batch=BATCH, strategy="balanced")


def boltzmann(pictures: np.ndarray, *, epochs: int, seed: int = 0, chains: int | None = BATCH) -> Run:
    """Trains a machine by persistent contrastive divergence; without `chains`, by CD-1."""
    net = Network("boltzmann")
    machine = RestrictedBoltzmannMachine(UNITS, initialiser=small, name="rbm")
    net.loss = machine.contrastive_divergence(net.input("picture", shape=64), chains=chains)
    driver = Downpour(optimizer=SGD(RATE))
    return train(cut(net), {"picture": pictures}, driver=driver, epochs=epochs, seed=seed, show="nothing")


def belief(pictures: np.ndarray, *, epochs: int, seed: int = 0) -> dict[str, Any]:
    """Trains a belief net, one level after the other; returns the parameters of both."""
    found: dict[str, Any] = {}
    for level in (1, 2):
        net = Network(f"level_{level}")
        stack = DeepBeliefNet((UNITS, UNITS), initialiser=small)
        net.loss = stack.contrastive_divergence(net.input("picture", shape=64), level)
        net.initialise({name: found[name] for name in found if name in net.graph().parameters})
        driver = Downpour(replicas=2, shards=2, optimizer=SGD(4 * RATE))
        given = {"picture": pictures}
        run = train(cut(net), given, driver=driver, epochs=epochs, seed=seed, show="nothing")
        found |= run.parameters
    return found


def dreams(parameters: dict[str, Any], *, count: int, steps: int) -> np.ndarray:
    """Draws pictures, `[count, 64]`: Gibbs sampling in the upper level, then one pass down."""
    net, stack = Network("dreams"), DeepBeliefNet((UNITS, UNITS))
    stack.dream(net.input("middle", shape=UNITS), steps=steps, shape=64)
    plan = partition(net, Cluster.local(machines=2), batch=count, strategy="balanced")
    begin = np.random.default_rng(0).integers(0, 2, (count, UNITS)).astype(np.float32)
    known = {name: parameters[name] for name in plan.graph.parameters}
    found = predict(Run(plan, known), {"middle": begin}, show="nothing")
    assert isinstance(found, np.ndarray)
    return found


def small(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Scikit-learn's initial weights."""
    return rng.normal(0, 0.01, shape)


def weights_of(model: Run | BernoulliRBM) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight, biases of the hidden units and of the visible ones, in float64."""
    found = (
        (model.parameters["rbm.weight"], model.parameters["rbm.bias"], model.parameters["rbm_visible.bias"])
        if isinstance(model, Run)
        else (model.components_, model.intercept_hidden_, model.intercept_visible_)
    )
    weight, hidden, visible = (np.asarray(one, np.float64) for one in found)
    return weight, hidden, visible


def quality(model: Run | BernoulliRBM, pictures: np.ndarray) -> tuple[float, float]:
    """The reconstruction error of a pixel, and the pseudo-likelihood of a picture (as `score_samples`)."""
    weight, hidden, visible = weights_of(model)
    states = pictures.astype(np.float64)
    units = 1 / (1 + np.exp(-(states @ weight.T + hidden)))
    restored = 1 / (1 + np.exp(-(units @ weight + visible)))

    def free_energy(v: np.ndarray) -> np.ndarray:
        found: np.ndarray = -(v @ visible) - np.logaddexp(0, v @ weight.T + hidden).sum(1)
        return found

    flipped, rows = states.copy(), np.arange(len(states))
    chosen = np.random.default_rng(0).integers(0, states.shape[1], len(states))
    flipped[rows, chosen] = 1 - flipped[rows, chosen]
    score = -states.shape[1] * np.logaddexp(0, free_energy(states) - free_energy(flipped))
    return float(np.square(states - restored).mean()), float(score.mean())


def draw(folder: Path, pictures: dict[str, np.ndarray]) -> None:
    """Draws rows of pictures, each with its title."""
    from matplotlib.figure import Figure

    figure = Figure((8, 1.1 * len(pictures)))
    for row, (title, images) in enumerate(pictures.items()):
        axes = figure.add_subplot(len(pictures), 1, row + 1)
        axes.imshow(np.hstack([np.pad(image.reshape(8, 8), 1) for image in images]), cmap="gray")
        axes.set_title(title, fontsize=8)
        axes.axis("off")
    figure.savefig(folder / "belief_net.svg")


def main(folder: str = ".", epochs: int = 15) -> None:
    """Trains, compares and draws."""
    training, held_out = data()
    ours = boltzmann(training, epochs=epochs)
    print(ours.plan)
    theirs = BernoulliRBM(UNITS, learning_rate=RATE, batch_size=BATCH, n_iter=epochs, random_state=0)
    models = {"partita": ours, "scikit-learn": theirs.fit(training)}
    found = {name: quality(model, held_out) for name, model in models.items()}
    for name, (error, score) in found.items():
        print(f"{name:<13} reconstruction error {error:.4f}   pseudo-likelihood {score:.2f}")
    parameters = belief(training, epochs=12)
    samples = dreams(parameters, count=16, steps=30)
    filters = weights_of(ours)[0][:16]
    draw(Path(folder), {"digits": held_out[:16], "filters": filters, "samples of the belief net": samples})
    (error, score), (their_error, their_score) = found.values()
    if abs(error - their_error) > 0.01 or abs(score - their_score) > 1.0:
        raise SystemExit("that is not what scikit-learn's machine reaches")


if __name__ == "__main__":
    main(*sys.argv[1:])
