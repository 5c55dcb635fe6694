"""A Boltzmann machine in NumPy and float64, which takes the same random bits: what the layers are held to."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.numerics.philox import counted_bits, key_of

Array = npt.NDArray[Any]


def logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def drawn(sums: Array, layer: str, *, seed: int = 0, visit: int = 0) -> Array:
    """Samples `[example, node]` of units with these sums, by the bits of a layer."""
    bits = np.empty(sums.T.shape, np.uint32)
    counted_bits(key_of(seed, layer), visit, np.arange(len(sums)), 0, bits)
    return (logistic(sums) * 2.0**32 - 2.0**31 > bits.view(np.int32).T).astype(float)


class Reference:
    """Weights `[hidden, visible]` and biases of a machine `name` among a network's parameters."""

    def __init__(self, parameters: Any, name: str = "rbm") -> None:
        names = (f"{name}.weight", f"{name}.bias", f"{name}_visible.bias")
        weight, hidden, visible = (np.asarray(parameters[one], np.float64) for one in names)
        self.weight, self.hidden, self.visible = weight, hidden, visible.reshape(-1)

    def up(self, visible: Array) -> Array:
        """Sums of the hidden units."""
        return visible @ self.weight.T + self.hidden

    def down(self, hidden: Array) -> Array:
        """Sums of the visible units."""
        return hidden @ self.weight + self.visible

    def free_energy(self, visible: Array) -> Array:
        """The free energy of each example."""
        return -(visible @ self.visible) - np.logaddexp(0, self.up(visible)).sum(1)

    def gradients(self, data: Array, chain: Array) -> dict[str, Array]:
        """Those of the mean of `F(data) - F(chain)`."""
        one, other = logistic(self.up(data)), logistic(self.up(chain))
        n = len(data)
        return {
            "weight": (other.T @ chain - one.T @ data) / n,
            "bias": (other - one).sum(0) / n,
            "visible": (chain - data).sum(0) / n,
        }

    def states(self) -> Array:
        """All states of the visible units, `[2 ** visible, visible]`."""
        return np.array(list(itertools.product((0.0, 1.0), repeat=len(self.visible))))

    def log_probabilities(self) -> Array:
        """The exact logarithm of the probability of each state."""
        energies = -self.free_energy(self.states())
        return energies - np.logaddexp.reduce(energies)

    def log_likelihood(self, data: Array) -> float:
        """The exact mean over examples of two values."""
        energies = -self.free_energy(self.states())
        return float(np.mean(-self.free_energy(data)) - np.logaddexp.reduce(energies))

    def reconstruction_error(self, data: Array) -> float:
        """The mean squared error of a unit."""
        return float(np.square(data - logistic(self.down(logistic(self.up(data))))).mean())

    def pseudo_likelihood(self, data: Array, seed: int = 0) -> float:
        """The mean, by one unit of each example that is turned over, as scikit-learn's `score_samples`."""
        turned, rows = data.copy(), np.arange(len(data))
        chosen = np.random.default_rng(seed).integers(0, data.shape[1], len(data))
        turned[rows, chosen] = 1 - turned[rows, chosen]
        gain = self.free_energy(turned) - self.free_energy(data)
        return float(-data.shape[1] * np.logaddexp(0, -gain).mean())
