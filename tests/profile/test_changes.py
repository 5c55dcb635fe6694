"""Suggested changes with the largest gain, against plans made by hand with the change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.engine.profile import Change
from partita.engine.profile.changes import best_changes
from partita.engine.profile.trials import GIGABITS, trials
from partita.layers import Activation, Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import (
    Cluster,
    InputSplit,
    Link,
    Machine,
    Plan,
    Replicated,
    RowSplit,
    Tiles,
    Whole,
    partition,
)
from partita.partitioner.assign.cuts import Cut


def network() -> Network:
    net = Network("wide")
    states = net.input("x", shape=(400,))
    for n in (1, 2, 3):
        states = Dense(500, activation="tanh", name=f"h{n}")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(300, name="scores")(states), net.target("label"))
    return net


def made(cluster: Cluster, **cuts: Cut) -> Plan:
    return partition(network(), cluster, batch=512, cuts=cuts, strategy="balanced")


WHOLE: dict[str, Cut] = {
    "h1": Whole(0),
    "h2": Whole(0),
    "h3": Whole(1),
    "scores": Whole(1),
}


def test_a_layer_in_the_wrong_place_is_moved() -> None:
    """All but the scores lie on one machine. Every other place of every layer is tried here by hand."""
    cluster = Cluster.local(2)
    cuts = {**WHOLE, "h3": Whole(0)}
    plan = made(cluster, **cuts)
    places = {
        **{f"moving {n} to machine 1": made(cluster, **{**cuts, n: Whole(1)}) for n in ("h1", "h2", "h3")},
        "moving scores to machine 0": made(cluster, **{**cuts, "scores": Whole(0)}),
        **{f"cutting {n} over 2 machines": made(cluster, **{**cuts, n: RowSplit(2)}) for n in cuts},
    }
    tried = {trial.what: trial.plan for trial in trials(plan) if trial.family == "place"}
    assert tried.keys() == places.keys()
    for what, expected in places.items():
        assert sorted(tried[what].pieces) == sorted(expected.pieces)
        assert tried[what].predicted_step_s == expected.predicted_step_s
    best = max(places, key=lambda what: -places[what].predicted_step_s)
    (changes,) = (change for change in best_changes(plan, most=9) if change.what in places)
    assert changes.step_s <= places[best].predicted_step_s / 0.98
    assert changes.gain == pytest.approx(plan.predicted_step_s / changes.step_s)


def test_rows_go_from_the_busiest_machine_to_the_idlest() -> None:
    cluster = Cluster.local(2)
    cuts = {f"h{n}": RowSplit((0, 1), sizes=(400, 100)) for n in (1, 2, 3)}
    plan = made(cluster, **cuts)
    tried = {trial.what: trial.plan for trial in trials(plan)}
    found = tried["moving 100 rows of h2 from machine 0 to machine 1"]
    expected = made(cluster, **{**cuts, "h2": RowSplit((0, 1), sizes=(300, 200))})
    assert sorted(found.pieces) == sorted(expected.pieces)
    assert found.predicted_step_s < plan.predicted_step_s


@pytest.mark.parametrize("bytes_per_s", [1e6, 2e8, 2e10])
@pytest.mark.parametrize("cut", [True, False])
def test_the_slowest_link_that_gains_nearly_all_is_reported(bytes_per_s: float, cut: bool) -> None:
    plan = made(
        Cluster((Machine("a"), Machine("b")), link=Link(bytes_per_s=bytes_per_s)), **({} if cut else WHOLE)
    )
    gains = {
        gigabits: plan.predicted_step_s / with_link(plan, gigabits * 1e9 / 8).predicted_step_s
        for gigabits in GIGABITS
        if gigabits * 1e9 / 8 > bytes_per_s
    }
    changes = [change for change in best_changes(plan, most=9) if "Gbit/s" in change.what]
    enough = [g for g, gain in gains.items() if gain >= 0.98 * max(gains.values())]
    assert cut or bytes_per_s > 1e6 or gains[enough[0]] > 2  # there is something to find
    if not gains or gains[enough[0]] < 1.02:
        assert changes == []
    else:
        assert changes == [
            Change(f"a link of {enough[0]} Gbit/s", pytest.approx(gains[enough[0]]), changes[0].step_s)
        ]


def with_link(plan: Plan, bytes_per_s: float) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, link=Link(bytes_per_s=bytes_per_s)))


def test_machines_are_planned_for_again() -> None:
    """A faster machine of two gains next to nothing while both have half of the work; cut anew, it does."""
    plan = made(Cluster.local(2))
    changes = {change.what: change for change in best_changes(plan, made, most=9)}
    (faster,) = (change for what, change in changes.items() if what.endswith("twice as fast"))
    assert 1.2 < faster.gain < 1.5
    assert changes["one machine more"].step_s == made(Cluster.local(3)).predicted_step_s
    assert all(change.gain < 1.1 for change in best_changes(plan) if "twice" in change.what)


def test_each_family_is_reported_once_and_the_best_first() -> None:
    changes = best_changes(made(Cluster.local(3), **WHOLE), made)
    assert len(changes) == 3
    gains = [change.gain for change in changes]
    assert gains == sorted(gains, reverse=True) and min(gains) >= 1.02


def test_what_does_not_fit_into_memory_is_not_reported() -> None:
    plan = made(Cluster.local(2), **{**WHOLE, "h3": Whole(0)})
    limits = [plan.memory_bytes(m) for m in range(2)]
    machines = tuple(
        replace(machine, memory_bytes=limit)
        for machine, limit in zip(plan.cluster.machines, limits, strict=True)
    )
    tight = replace(plan, cluster=replace(plan.cluster, machines=machines))
    places = ("moving", "cutting")
    assert [change.what for change in best_changes(tight) if change.what.startswith(places)] == []
    assert [change.what for change in best_changes(plan) if change.what.startswith(places)] != []


def test_one_machine_has_no_links_and_no_other_places() -> None:
    families = {trial.family for trial in trials(made(Cluster.local(1)), made)}
    assert families == {"machine", "more", "precision"}


def test_pictures_are_cut_into_tiles_and_batches_into_micro_batches() -> None:
    net = Network("pictures")
    states = net.input("picture", shape=(24, 24, 2))
    for n in (1, 2):
        states = LocallyConnected2D(4, kernel_size=5, name=f"filters{n}")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(states), net.target("label"))
    plan = partition(net, Cluster.local(4), batch=12, strategy="balanced")
    tried = {trial.what: trial.plan for trial in trials(plan)}
    tiles = {f"filters{n}": Tiles(4, across=(2, 2)) for n in (1, 2)}
    expected = partition(net, Cluster.local(4), batch=12, strategy="balanced", cuts=tiles)
    found = tried["cutting pictures into 2 by 2 tiles"]
    assert set(found.pieces) == set(expected.pieces)
    assert found.predicted_step_s == expected.predicted_step_s
    assert [what for what in tried if "micro-batches" in what] == ["2 micro-batches", "4 micro-batches"]
    halves = partition(net, Cluster.local(4), batch=12, strategy="balanced", micro_batches=2)
    assert tried["2 micro-batches"].predicted_step_s == halves.predicted_step_s


WIDELY = ", their activations on every machine"


@pytest.mark.parametrize("begun", [{}, {"h1": InputSplit(2), "h2": Whole(0)}])
@pytest.mark.parametrize(
    ("what", "cuts"),
    [
        ("cutting h2 by its inputs", {"h2": InputSplit(2)}),
        ("cutting h2 and scores by their inputs", {"h2": InputSplit(2), "scores": InputSplit(2)}),
        (
            f"cutting h2 and scores by their inputs{WIDELY}",
            {"h2": InputSplit(2, replicated=True), "scores": InputSplit(2, replicated=True)},
        ),
    ],
)
def test_dense_layers_in_a_row_are_cut_by_inputs(
    begun: dict[str, Cut], what: str, cuts: dict[str, Cut]
) -> None:
    """The layer before one that is cut by its inputs is cut by its rows, as it is or from now on."""
    plan = made(Cluster.local(2), **begun)
    tried = {trial.what: trial.plan for trial in trials(plan) if trial.family == "inputs"}
    expected = made(Cluster.local(2), **{**begun, "h1": RowSplit(2), **cuts})
    assert set(tried[what].pieces) == set(expected.pieces)
    assert tried[what].predicted_step_s == expected.predicted_step_s


def test_two_dense_layers_over_a_slow_link_gain_most_by_inputs() -> None:
    """Every batch of states is large, so that one exchange less is worth much."""
    net = Network("two")
    hidden = Dense(2000, activation="tanh", name="hidden")(net.input("x", shape=(400,)))
    net.loss = SoftmaxCrossEntropy()(Dense(40, name="scores")(hidden), net.target("label"))
    slow = Cluster((Machine("a"), Machine("b")), link=Link(bytes_per_s=1e7))
    plan = partition(net, slow, batch=128, strategy="balanced")
    best = best_changes(plan, most=9)
    (changes,) = (change for change in best if "by its inputs" in change.what)
    cuts = {"scores": InputSplit(2, replicated=True)}
    by_hand = partition(net, slow, batch=128, strategy="balanced", cuts=cuts)
    assert changes.step_s <= by_hand.predicted_step_s / 0.98 and changes.gain > 2


def test_what_learns_nothing_is_repeated_where_its_states_travel() -> None:
    net = Network("copies")
    squashed = Activation("tanh", name="squash")(Dense(64, name="below")(net.input("x", shape=(32,))))
    net.loss = SoftmaxCrossEntropy()(Dense(40, name="scores")(squashed), net.target("label"))
    cuts: dict[str, Cut] = {"below": Whole(0), "squash": Whole(0)}
    plan = partition(net, Cluster.local(2), batch=32, strategy="balanced", cuts=cuts)
    tried = {trial.what: trial.plan for trial in trials(plan) if trial.family == "copies"}
    cuts["squash"] = Replicated(2)
    expected = partition(net, Cluster.local(2), batch=32, strategy="balanced", cuts=cuts)
    found = tried["repeating squash on every machine"]
    assert set(found.pieces) == set(expected.pieces)
    assert found.predicted_step_s == expected.predicted_step_s
    assert not any("below" in what or "scores" in what for what in tried)  # their weights are of their own


def test_a_change_is_a_sentence() -> None:
    assert str(Change("a link of 10 Gbit/s", 1.44, 0.1)) == "a link of 10 Gbit/s: 1.4x"
    assert str(Change("bfloat16", 1.0349, 0.1)) == "bfloat16: 1.03x"
