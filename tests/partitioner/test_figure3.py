"""The example that simulates Figure 3: its networks are the paper's, its steps follow what is assumed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from examples import figure3
from partita.layers import Network
from partita.partitioner import Link
from partita.partitioner.drawing.curves import draw_curves


def small() -> Network:
    return figure3.image(2, size=36, last=2, classes=12)


def test_the_networks_have_about_as_many_parameters_as_the_papers() -> None:
    assert figure3.speech().graph().n_parameters == 41_777_152
    for filters, millions in ((8, 80), (16, 330), (36, 1700)):
        assert figure3.image(filters).graph().n_parameters == pytest.approx(millions * 1e6, rel=0.25)


def test_every_number_of_machines_is_simulated_and_drawn() -> None:
    points = figure3.simulated(small(), (1, 2, 4), seeds=2)
    assert [point.machines for point in points] == [1, 2, 4]
    assert points == figure3.simulated(small(), (1, 2, 4), seeds=2)  # the same seeds, the same steps
    varying, steady = figure3.curves("small", points)
    assert varying.points[0] == steady.points[0] == (1, 1)
    picture = draw_curves("figure", "", [varying, steady], axes=("x", "y"), ticks=(1, 2, 4))
    ElementTree.fromstring(picture)


def test_a_better_link_never_makes_a_step_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for latency_s, bytes_per_s, handling_s in ((1e-2, 1e6, 1e-3), (1e-3, 1e8, 1e-4), (1e-6, 1e10, 1e-6)):
        link = Link(latency_s, bytes_per_s, send_s=handling_s, receive_s=handling_s)
        monkeypatch.setattr(figure3, "LINK", link)
        steps.append(figure3.simulated(small(), (4,), seeds=1)[0].steady_s)
    assert steps == sorted(steps, reverse=True) and steps[0] > 2 * steps[-1]


def test_machines_vary_around_their_mean() -> None:
    slower = [1 / m.speed for seed in range(200) for m in figure3.cluster(4, seed=seed).machines]
    mean = sum(slower) / len(slower)
    spread = (sum((found - mean) ** 2 for found in slower) / len(slower)) ** 0.5
    assert mean == pytest.approx(1, abs=0.03) and spread == pytest.approx(figure3.SPREAD, abs=0.03)
    assert [m.speed for m in figure3.cluster(4).machines] == [1.0] * 4
