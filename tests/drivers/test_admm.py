"""ADMM against scikit-learn, and its residuals against section 8 of Boyd and others, 2011."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge

from partita.engine import ADMM, Momentum
from partita.engine.drivers import admm
from partita.engine.drivers.admm import Residuals
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition
from tests.runtime.members import Members

EXAMPLES, INPUTS, OUTPUTS, L2, REPLICAS = 24, 3, 2, 0.1, 2


def network() -> Network:
    net = Network("linear")
    scores = Dense(OUTPUTS, name="scores")(net.input("x", shape=(INPUTS,)))
    net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


def objective(weights: Any, x: Any, y: Any) -> float:
    """The mean loss and the penalty, at weights `[output, input]` of which the last input is a constant."""
    return float(((x @ weights.T - y) ** 2).sum() / 2 / len(x) + L2 / 2 * (weights**2).sum())


def test_the_objective_is_scikit_learns_and_the_residuals_fall(tmp_path: Path, monkeypatch: Any) -> None:
    """Two replicas, each with half of the data; rho begins too high."""
    random = np.random.default_rng(1)
    x = random.normal(size=(EXAMPLES, INPUTS))
    y = x @ random.normal(size=(INPUTS, OUTPUTS)) + random.normal(size=(EXAMPLES, OUTPUTS)) + 0.5
    found: list[tuple[float, Residuals]] = []
    adapted = ADMM._adapted

    def noted(self: ADMM, rho: float, residuals: Residuals) -> float:
        found.append((rho, residuals))
        return adapted(self, rho, residuals)

    monkeypatch.setattr(admm.ADMM, "_adapted", noted)
    steps = Momentum(0.2, momentum=0.5, nesterov=True)
    driver = ADMM(replicas=REPLICAS, every=5, rho=4.0, l2=L2, optimizer=steps, relative=1e-3)
    batch = EXAMPLES // REPLICAS
    plan = partition(network(), Cluster.local(machines=1), batch=batch, precision="float64")
    members = Members(
        plan,
        {"x": x, "y": y},
        tmp_path,
        by=driver.by,
        optimizer=steps,
        replicas=REPLICAS,
        driver=driver,
    )
    members.publish(1, range(REPLICAS), until=300 * EXAMPLES)
    members.run()
    parameters = members.parameters(0).values()
    members.close()
    (matrix,) = (one for one in parameters if one.ndim == 2)
    (bias,) = (one for one in parameters if one.ndim == 1)
    ours = np.hstack([matrix if matrix.shape == (OUTPUTS, INPUTS) else matrix.T, bias[:, None]])
    whole = np.hstack([x, np.ones((EXAMPLES, 1))])
    best = Ridge(alpha=EXAMPLES * L2, fit_intercept=False, tol=1e-10).fit(whole, y).coef_
    assert -1e-9 < objective(ours, whole, y) - objective(best, whole, y) < 1e-4

    rounds = found[::REPLICAS]
    assert len(rounds) < 60, "the residuals were within their tolerances before the work was done"
    assert rounds[-1][1].are_small and not any(one.are_small for _, one in rounds[:-1])
    assert rounds[-1][1].primal < 1e-2 * max(one.primal for _, one in rounds)
    assert rounds[-1][1].dual < 1e-2 * max(one.dual for _, one in rounds)
    for (rho, one), (after, _) in pairwise(rounds):
        factor = 2.0 if one.primal > 10 * one.dual else 0.5 if one.dual > 10 * one.primal else 1.0
        assert after == rho * factor, "section 3.4.1"
    assert rounds[-1][0] < 4.0, "rho was too high"
