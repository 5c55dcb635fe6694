"""The example that simulates Figure 3: its networks are the paper's, its steps follow what is assumed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from examples.reproduce.figure3 import ACROSS, Assumed, chosen, image, plan_of, speech, speed_ups, step_s
from partita.layers import Network
from partita.partitioner import Piece


def small() -> Network:
    return image(2, size=36, last=2, classes=12)


def curve(network: Network, *counts: int) -> dict[int, float]:
    """Speed-ups with variance."""
    return {round(machines): up for machines, _, up, _ in speed_ups(network, (1, *counts))}


def test_the_networks_have_about_as_many_parameters_as_the_papers() -> None:
    assert speech().graph().n_parameters == 41_777_152
    for filters, millions in ((8, 80), (16, 330), (36, 1700)):
        assert image(filters).graph().n_parameters == pytest.approx(millions * 1e6, rel=0.25)


@pytest.mark.parametrize("machines", ACROSS)
def test_every_machine_has_its_tile_and_its_share(machines: int) -> None:
    plan = plan_of(image(2, classes=200), machines, Assumed())
    of_layer = {name: [p for p in plan.pieces if p.layer == name] for name in ("filters1", "pool3", "scores")}
    down, right = ACROSS[machines]
    places = min(down, 6) * min(right, 6)  # the last picture is one of 6 x 6
    for name, expected in (("filters1", machines), ("pool3", places), ("scores", machines)):
        assert len({piece.machine for piece in of_layer[name]}) == expected
    areas = [area(piece) for piece in of_layer["filters1"]]
    assert sum(areas) == 91 * 91 and max(areas) <= 1.25 * min(areas)


def area(piece: Piece) -> int:
    left, right = piece.columns or (0, 91)
    return (piece.stop - piece.start) * (right - left)


def test_machines_are_chosen_evenly() -> None:
    assert chosen(4, 9) == [0, 1, 2, 3]
    assert chosen(9, 6) == [0, 2, 3, 5, 6, 8]
    assert chosen(3, 1) == [0]


def test_speed_ups_are_over_one_machine_and_the_same_every_time() -> None:
    found = list(speed_ups(small(), (1, 2, 4)))
    assert found == list(speed_ups(small(), (1, 2, 4)))
    assert found[0][2:] == (1, 1)
    for machines, took, up, steady in found:
        plan = plan_of(small(), round(machines), Assumed())
        assert steady == found[0][1] / plan.predicted_step_s
        assert up == found[0][1] / took and took == step_s(plan, Assumed())


def test_a_better_link_never_makes_a_step_longer() -> None:
    steps = [
        plan_of(
            small(), 4, replace(Assumed(), latency_s=latency_s, link_bytes_per_s=rate, message_s=message_s)
        ).predicted_step_s
        for latency_s, rate, message_s in ((1e-2, 1e6, 1e-3), (1e-3, 1e8, 1e-4), (1e-6, 1e10, 1e-6))
    ]
    assert steps == sorted(steps, reverse=True) and steps[0] > 2 * steps[-1]


def test_machines_vary_around_their_mean() -> None:
    assumed = Assumed()
    times = [1 / machine.speed for seed in range(200) for machine in assumed.cluster(4, seed=seed).machines]
    mean = sum(times) / len(times)
    spread = math.sqrt(sum((time - mean) ** 2 for time in times) / len(times))
    assert mean == pytest.approx(1, abs=0.03) and spread == pytest.approx(assumed.spread, abs=0.03)
    assert {machine.speed for machine in assumed.cluster(4).machines} == {1.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_speech_network_is_fastest_near_eight_machines() -> None:
    found = curve(speech(), 2, 4, 8, 16, 32, 64, 81)
    peak = max(found, key=lambda machines: found[machines])
    assert 4 <= peak <= 16
    falling = [up for machines, up in found.items() if machines >= peak]
    assert falling == sorted(falling, reverse=True) and falling[-1] < 0.75 * falling[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_image_networks_rise_further_the_larger_they_are() -> None:
    counts = (8, 16, 32, 64, 81)
    found = [curve(network, *counts) for network in (image(8), image(16), image(36))]
    for rising in found:
        assert list(rising.values()) == sorted(rising.values())
    for machines in counts:
        assert [rising[machines] for rising in found] == sorted(rising[machines] for rising in found)
    assert max(curve(speech(), 8).values()) < found[0][81] and found[2][81] > 12
