"""The example that simulates Figure 3: its networks are the paper's, its steps follow what is assumed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from examples import figure3
from partita.layers import Network
from partita.partitioner import Link, partition
from partita.partitioner.drawing.curves import draw_curves
from partita.partitioner.simulate import play


def small() -> Network:
    return figure3.image(2, size=36, last=2, classes=12)


def test_the_networks_have_about_as_many_parameters_as_the_papers() -> None:
    assert figure3.speech().graph().n_parameters == 41_777_152
    for filters, millions in ((8, 80), (16, 330), (36, 1700)):
        assert figure3.image(filters).graph().n_parameters == pytest.approx(millions * 1e6, rel=0.25)


def test_every_number_of_machines_is_simulated_and_drawn() -> None:
    points = figure3.measured(small(), (1, 2, 4), seeds=2)
    assert [point.machines for point in points] == [1, 2, 4]
    assert points == figure3.measured(small(), (1, 2, 4), seeds=2)  # the same seeds, the same steps
    varying, steady = figure3.curves("small", points)
    assert varying.points[0] == steady.points[0] == (1, 1)
    picture = draw_curves("figure", "", [varying, steady], axes=("x", "y"), ticks=(1, 2, 4))
    ElementTree.fromstring(picture)


def test_a_better_link_never_makes_a_step_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small().graph()
    plan = partition(graph, figure3.cluster(4), batch=figure3.BATCH, strategy="balanced")
    steps = []
    for latency_s, bytes_per_s, handling_s in ((1e-2, 1e6, 1e-3), (1e-3, 1e8, 1e-4), (1e-6, 1e10, 1e-6)):
        monkeypatch.setattr(figure3, "LINK", Link(latency_s, bytes_per_s))
        monkeypatch.setattr(figure3, "HANDLING_S", handling_s)
        steps.append(play(plan.programs, figure3.OfItsDay(plan, None), plan.sizes).step_s)
    assert steps == sorted(steps, reverse=True) and steps[0] > 2 * steps[-1]


def test_machines_vary_around_their_mean() -> None:
    plan = partition(small().graph(), figure3.cluster(4), batch=1, strategy="balanced")
    drawn = [slower for seed in range(200) for slower in figure3.OfItsDay(plan, seed).slower]
    mean = sum(drawn) / len(drawn)
    spread = (sum((slower - mean) ** 2 for slower in drawn) / len(drawn)) ** 0.5
    assert mean == pytest.approx(1, abs=0.03) and spread == pytest.approx(figure3.SPREAD, abs=0.03)
    assert figure3.OfItsDay(plan, None).slower == [1.0] * 4
