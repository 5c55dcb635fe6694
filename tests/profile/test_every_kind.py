"""`partita profile` of networks that have every kind of layer between them, and of each kind by itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from partita.engine.profile import Profile, Report, profile_network
from partita.partitioner import Cluster, Link, Machine
from tests.every_kind import examples_of, pictures, sequences

NETWORKS = {"sequences": sequences, "pictures": pictures}
CLUSTER = Cluster(tuple(Machine(f"m{n}") for n in range(3)), link=Link(5e-5, 1e9))
LAYERS = [(name, grid.name) for name, declare in NETWORKS.items() for grid in declare().graph().computed]


@cache
def profiled(name: str) -> Profile:
    return profile_network(NETWORKS[name](), (1, 3), batch=8, strategy="balanced", cluster=CLUSTER)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_described_cluster_is_simulated(name: str) -> None:
    report = profiled(name).report()
    assert [(point.machines, point.source) for point in report.points] == [(1, "simulated"), (3, "simulated")]
    assert all(point.step_s > 0 for point in report.points)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize(("name", "layer"), LAYERS, ids=[layer for _, layer in LAYERS])
def test_every_layer_takes_time_on_each_machine_that_has_rows(name: str, layer: str) -> None:
    for point in profiled(name).points:
        step, owners = point.predicted, {piece.machine for piece in point.plan.ownership.of(layer)}
        taken = dict.fromkeys(owners, 0.0)
        for bar in step.bars:
            target = step.instruction(bar).target.buffer
            if step.kind(bar) == "forward" and target.layer == layer:
                taken[bar.machine] += bar.stop_s - bar.start_s
        assert all(seconds > 0 for seconds in taken.values()), taken


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_of_one_and_two_machines_are_measured(name: str) -> None:
    net = NETWORKS[name]()
    data = examples_of(net.graph(), 8)
    settings: Any = {"batch": 8, "strategy": "balanced", "hosts": "threads", "cores": 2, "steps": 2}
    report = profile_network(net, (1, 2), data=data, calibrated=False, **settings).report()
    assert [point.source for point in report.points] == ["measured", "measured"]
    assert all(point.prediction_error is not None for point in report.points)
