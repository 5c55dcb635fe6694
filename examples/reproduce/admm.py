"""Consensus ADMM on digits: its objective beside scikit-learn's, and replicas without duals, which fail.

    python -m examples.reproduce.admm [REPLICAS ...]        (about 20 seconds for each number of replicas)

Source: Boyd and others, "Distributed optimization and statistical learning via the alternating direction
method of multipliers", 2011, section 8.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from partita.engine import ADMM, Momentum, train
from partita.engine.drivers.driver import Driver
from partita.engine.protocol.actions import Combine, Program
from partita.engine.protocol.views import Member
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

L2 = 0.01
STEPS = Momentum(1.0, momentum=0.9, nesterov=True)


@dataclass(frozen=True)
class WithoutDuals(ADMM):
    """The ablation: the duals stay zeros."""

    def replica(self, me: Member) -> Program:
        """Leaves out what changes the duals."""
        program = super().replica(me)
        action = next(program, None)
        while action is not None:
            of_duals = isinstance(action, Combine) and action.into == "duals"
            result = None if of_duals else (yield action)
            try:
                action = program.send(result)
            except StopIteration:
                return


@dataclass(frozen=True)
class Problem:
    """Softmax regression: pictures `[example, 64]`, digits `[example]`."""

    x: Any
    y: Any

    def objective(self, weights: Any) -> float:
        """The mean loss and the penalty, at weights `[10, 65]` of which the last column is the bias."""
        scores = self.x @ weights[:, :-1].T + weights[:, -1]
        scores -= scores.max(axis=1, keepdims=True)
        right = scores[np.arange(len(self.y)), self.y]
        loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - right)
        return float(loss + L2 / 2 * (weights**2).sum())

    def best(self) -> float:
        """The objective of scikit-learn, for which the bias is the weight of a constant."""
        x = np.hstack([self.x, np.ones((len(self.x), 1))])
        fitted = LogisticRegression(C=1 / (len(x) * L2), fit_intercept=False, tol=1e-8, max_iter=2000)
        return self.objective(fitted.fit(x, self.y).coef_)

    def found(self, driver: Driver, epochs: int) -> float:
        """The objective of a driver, whose replicas have all of their examples in one batch."""
        net = Network("softmax")
        scores = Dense(10, name="scores")(net.input("x", shape=64))
        net.loss = SoftmaxCrossEntropy()(scores, net.target("y"))
        batch = -(-len(self.x) // driver.replicas)
        plan = partition(net, Cluster.local(machines=1), batch=batch, precision="float64")
        run = train(plan, {"x": self.x, "y": self.y}, driver=driver, epochs=epochs, show="nothing")
        parameters = [np.asarray(one) for one in run.parameters.values()]
        (matrix,) = (one for one in parameters if one.ndim == 2)
        (bias,) = (one for one in parameters if one.ndim == 1)
        return self.objective(np.hstack([matrix if len(matrix) == 10 else matrix.T, bias[:, None]]))


def problem() -> Problem:
    """Returns scikit-learn's digits."""
    digits = load_digits()
    return Problem(digits.data / 16, digits.target)


def main(replicas: list[int]) -> None:
    """Prints how far each is from the best objective; ends with an error where ADMM is further than 1e-4."""
    given = problem()
    best = given.best()
    print(f"scikit-learn {best:.6f}")
    for n in replicas:
        driver = ADMM(replicas=n, every=10, rho=0.02, l2=L2, optimizer=STEPS, absolute=1e-4, relative=1e-4)
        above = given.found(driver, epochs=500) - best
        print(f"ADMM, {n} replicas: {above:.1e} above", flush=True)
        if not abs(above) < 1e-4:
            raise SystemExit("that is further than 1e-4")
    ablated = WithoutDuals(replicas=replicas[-1], every=10, rho=0.02, l2=L2, optimizer=STEPS, relative=0.0)
    without = given.found(ablated, epochs=500) - best
    print(f"without duals: {without:.1e} above")
    if without < 1e-4:
        raise SystemExit("the ablation does not fail")


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or [2, 4])
