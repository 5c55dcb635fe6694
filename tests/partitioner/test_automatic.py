"""The automatic plan: the best of small networks, never worse than simple cuts, within memory."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks._every_plan import every_plan, small
from partita.layers import Dense, Graph, HalfSquaredError, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Link, Machine, Ownership, Plan, RowSplit, Tiles, Whole, partition
from partita.partitioner.assign.cuts import Cut, follows_input
from partita.partitioner.gc_paused import gc_paused
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.elimination import minimum
from partita.partitioner.search.groups import FEWEST, groups
from partita.partitioner.search.layouts import choices
from partita.partitioner.search.moves import swapped
from partita.partitioner.search.spread import balanced, equal
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Evaluator, Trials
from tests.draws import examples
from tests.networks import networks
from tests.plans import clusters, cuts


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(graph=networks(max_layers=4, shared=True), cluster=clusters(max_machines=3), data=st.data())
def test_it_is_never_slower_than_simple_cuts(graph: Graph, cluster: Cluster, data: st.DataObject) -> None:
    by_hand = data.draw(cuts(graph, len(cluster)))
    plan = partition(graph, cluster, batch=2, cuts=by_hand)
    task = Task(graph, cluster, 2, "float32", by_hand)
    others = [partition(graph, cluster, batch=2, cuts=by_hand, strategy=s) for s in ("balanced", "layers")]
    simple = min(other.predicted_step_s for other in [*others, task.plan(equal(task))])
    assert plan.lower_bound_s * (1 - 1e-9) <= plan.predicted_step_s <= simple * (1 + 1e-9)
    for layer, cut in by_hand.items():
        found, expected = (
            [replace(p, inputs=None) if follows_input(cut) else p for p in one.ownership.of(layer)]
            for one in (plan, others[0])
        )
        assert found == expected, f"{layer} was cut as {cut}"
    assert plan == partition(graph, cluster, batch=2, cuts=by_hand)


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_it_is_the_best_of_every_possible_plan(seed: int) -> None:
    graph, cluster = small(random.Random(seed), least=50, most=200)
    evaluator = Evaluator(Task(graph, cluster, 32))
    best = min(evaluator.score(evaluator.task.plan(found)).step_s for found in every_plan(graph, cluster))
    plan = partition(graph, cluster, batch=32)
    assert plan.lower_bound_s <= min(best, plan.predicted_step_s)
    assert plan.predicted_step_s <= 1.02 * best


@st.composite
def whole_cuts(draw: st.DrawFn, *, rows_only: bool = False) -> tuple[Task, dict[str, Cut]]:
    """A drawn network and cluster, and a cut for every layer: some by hand, the others over all machines."""
    graph = draw(networks(max_layers=5, shared=True))
    cluster = draw(clusters(max_machines=4))
    task = Task(graph, cluster, 2, by_hand=drawn_cuts(draw, graph, cluster, rows_only=rows_only))
    return task, balanced(task)


def drawn_cuts(draw: st.DrawFn, graph: Graph, cluster: Cluster, *, rows_only: bool) -> dict[str, Cut]:
    found = draw(cuts(graph, len(cluster)))
    return {
        layer: cut
        for layer, cut in found.items()
        if not rows_only or isinstance(cut, Whole) or (isinstance(cut, RowSplit) and not cut.halo)
    }


@settings(max_examples=examples(12))
@given(whole_cuts(), st.data())
def test_what_is_played_again_takes_what_it_takes_anew(
    found: tuple[Task, dict[str, Cut]], data: st.DataObject
) -> None:
    """Programs and costs of machines that a change leaves alone are kept; the step must be the same."""
    task, cut = found
    evaluator = Evaluator(task)
    for _ in range(3):
        cut = {**cut, **data.draw(cuts(task.graph, len(task.cluster)))}
        fresh = task.plan(cut)
        assert evaluator.score(fresh).step_s == fresh.predicted_step_s
        assert evaluator.programs == fresh.programs


@settings(max_examples=examples(12))
@given(whole_cuts(rows_only=True))
def test_the_model_counts_the_messages_that_are_sent(found: tuple[Task, dict[str, Cut]]) -> None:
    """Exact, where the rows that a machine receives are one range."""
    task, cut = found
    plan, additive = task.plan(cut), Additive(task)
    counted = [
        (grid, listeners)
        for grid in plan.graph.computed
        if (listeners := dict.fromkeys(name for name, _ in plan.graph.consumers(grid.name)))
        and are_runs(plan.ownership, grid.name)
    ]
    assume(counted)
    for grid, listeners in counted:
        sent = [m for m in plan.messages if m.direction == "forward" and str(m.buffer) == grid.name]
        up, _ = additive.moved(grid, {name: cut.get(name) for name in (grid.name, *listeners)})
        for machine in range(len(plan.cluster)):
            out = [m for m in sent if m.source == machine]
            came = [m for m in sent if m.destination == machine]
            assert (up.sent[machine], up.received[machine]) == (len(out), len(came))
            assert up.sent_rows[machine] == sum(m.rows.size for m in out)
            assert up.received_rows[machine] == sum(m.rows.size for m in came)


def are_runs(owned: Ownership, layer: str) -> bool:
    return all(len(owned.needed_by_all(layer, m)) <= 1 for m in range(owned.machines))


@settings(max_examples=examples(8))
@given(networks(max_layers=4), clusters(max_machines=3))
def test_the_additive_model_is_minimised_over_branches(graph: Graph, cluster: Cluster) -> None:
    task = Task(graph, cluster, 2)
    additive = Additive(task)
    available = {layer: found[:2] for layer, found in choices(task, groups(task)).items()}
    tables = additive.tables(available)
    best = minimum(tables)
    assert best.exact
    chosen = {layer: available[layer][n] for layer, n in best.choices.items()}
    assert additive.cost_s(chosen) == pytest.approx(best.cost)


@settings(max_examples=examples(12))
@given(whole_cuts())
def test_no_machine_is_busier_than_the_step_is_long(found: tuple[Task, dict[str, Cut]]) -> None:
    task, cut = found
    plan = task.plan(cut)
    assume(all(are_runs(plan.ownership, grid.name) for grid in plan.graph.computed))
    assert Additive(task).lanes_s(cut) <= plan.predicted_step_s * (1 + 1e-9)


def speech_like(units: int = 512) -> Network:
    net = Network("speech_like")
    states = net.input("frames", shape=128)
    for n in range(3):
        states = Dense(units, activation="sigmoid", name=f"hidden{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(256, name="scores")(states), net.target("y"))
    return net


@pytest.mark.slow
def test_uneven_machines_get_uneven_pieces() -> None:
    machines = tuple(Machine(f"m{n}", flops_per_s=(4e8 if n == 2 else 1e8)) for n in range(4))
    plan = partition(speech_like(), Cluster(machines, Link(1e-5, 1e10)), batch=32)
    rows = {piece.machine: piece.stop - piece.start for piece in plan.ownership.of("hidden1")}
    assert rows[2] > 3 * rows[0] and len(rows) == 4
    task = Task(plan.graph, plan.cluster, 32)
    in_order = partition(speech_like(), plan.cluster, batch=32, strategy="layers")
    assert (
        min(task.plan(equal(task)).predicted_step_s, in_order.predicted_step_s) > 1.5 * plan.predicted_step_s
    )


def test_a_small_network_stays_on_the_fastest_machine_and_the_others_are_reported_empty() -> None:
    net = Network("small")
    net.loss = HalfSquaredError(name="loss")(
        Dense(4, name="scores")(net.input("x", shape=4)), net.target("y")
    )
    slow = Machine("slow", flops_per_s=1e7, bytes_per_s=1e8)
    plan = partition(net, Cluster((slow, Machine("fast"), slow2 := replace(slow, name="slow2"))), batch=8)
    assert {piece.machine for piece in plan.pieces} == {1}
    assert [len(program) for program in plan.programs][::2] == [0, 0]
    assert plan.memory_bytes(0) == 0
    assert f"left empty (too few nodes, or no shorter step with them): slow, {slow2.name}" in str(plan)


def test_layers_keeps_layers_whole_and_in_order() -> None:
    plan = partition(speech_like(), Cluster.local(3), batch=32, strategy="layers")
    owners = [plan.ownership.of(grid.name)[0].machine for grid in plan.graph.computed]
    assert owners == sorted(owners) and set(owners) == {0, 1, 2}
    assert all(len(plan.ownership.of(grid.name)) == 1 for grid in plan.graph.computed)


def limited(*mebibytes: float) -> Cluster:
    return Cluster(tuple(Machine(f"m{n}", memory_bytes=int(mib * 2**20)) for n, mib in enumerate(mebibytes)))


@pytest.mark.parametrize("sizes", [(9, 9), (12, 5), (3, 12), (6, 6, 6)])
def test_every_part_fits_where_parts_can(sizes: tuple[float, ...]) -> None:
    """The network takes about 14 MiB."""
    plan = partition(speech_like(), limited(*sizes), batch=32)
    for m, machine in enumerate(plan.cluster.machines):
        assert machine.memory_bytes is not None and plan.memory_bytes(m) <= machine.memory_bytes


@pytest.mark.parametrize(
    ("cluster", "batch", "sentence"),
    [
        (limited(5, 5), 32, r"MiB of its 5.0 MiB; [3-6] machines of 5.0 MiB would do$"),
        (limited(2, 6), 32, r"MiB; [1-4] more machines of 6.0 MiB would do$"),
        (limited(15.5), 640, r"; 2 machines of 15.5 MiB, or batch 160 would do$"),
        (limited(0.01), 32, "neither 64 machines nor batch 1 nor another precision would do"),
    ],
)
def test_a_plan_that_cannot_fit_names_what_would(cluster: Cluster, batch: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        partition(speech_like(), cluster, batch=batch)
    assert re.match(r"the part of machine 'm\d' takes ", str(caught.value))


def test_effort_is_counted_and_the_promised_candidates_are_played_even_without() -> None:
    task = Task(speech_like().graph(), Cluster.local(2), 32)
    trials = Trials(task, Additive(task), effort=0)
    both: Mapping[str, Cut] = equal(task)
    score = trials.try_out(both)
    assert (
        score is not None and trials.best_cuts == both and trials.best == task.plan(both) and trials.left < 0
    )
    assert trials.try_out({**both, "scores": Whole(7)}) is None
    assert trials.mistake is not None and "machines are 0 to 1" in str(trials.mistake)


def test_a_horizontal_cut_is_given_micro_batches_and_their_number_is_chosen() -> None:
    """Layers that must stay whole on two machines, one after the other: work in portions, or wait in turn."""
    machines = tuple(Machine(f"m{n}", flops_per_s=1e8, bytes_per_s=1e9) for n in range(2))
    by_hand = {f"hidden{n}": Whole(n // 2) for n in range(3)} | {"scores": Whole(1)}
    cluster = Cluster(machines, Link(1e-5, 1e10))
    chosen = partition(speech_like(), cluster, batch=32, cuts=by_hand)
    whole = partition(speech_like(), cluster, batch=32, cuts=by_hand, micro_batches=1)
    assert chosen.micro_batches > 1 == whole.micro_batches
    assert chosen.lower_bound_s <= chosen.predicted_step_s < 0.9 * whole.predicted_step_s
    assert partition(speech_like(), cluster, batch=31, cuts=by_hand).micro_batches == 1


def stack(layers: int, units: int) -> Graph:
    net = Network("stack")
    states = net.input("x", shape=16)
    for n in range(layers):
        states = Dense(units, name=f"hidden{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(states, net.target("y"))
    return net.graph()


def test_what_a_candidate_counts_is_at_least_what_it_has() -> None:
    """Candidates that are skipped because of their size have that size, and small ones are small."""
    task = Task(stack(3, 24), Cluster.local(8), 4)
    for candidate in (equal(task), {f"hidden{n}": Whole(n) for n in range(3)}):
        found = sum(map(len, task.plan(candidate).programs))
        assert 0.5 * found <= Additive(task).size(candidate) <= 3 * found


@pytest.mark.slow
def test_of_many_machines_only_so_much_is_played_as_can_be_afforded() -> None:
    """Equal pieces have millions of messages here: they are counted, not played."""
    task = Task(stack(4, 1000), Cluster.local(500), 8, micro_batches=1)
    assert Additive(task).size(equal(task)) > 5_000_000
    plan = partition(task.graph, task.cluster, batch=8, micro_batches=1)
    assert sum(map(len, plan.programs)) < 200_000


def test_groups_are_thinned_until_few_are_left() -> None:
    task = Task(stack(1, 24), Cluster.local(20), 4)
    numbers = [len(groups(task, thinned=n)) for n in range(FEWEST + 1)]
    assert numbers == sorted(numbers, reverse=True) and numbers[-1] == 2
    for n in range(FEWEST + 1):
        found = groups(task, thinned=n)
        assert tuple(range(20)) in found and any(len(group) == 1 for group in found)


def test_swapped_machines_do_what_the_other_did_or_as_much_as_before() -> None:
    plan = {"a": RowSplit((0, 1, 2), (3, 4, 5)), "b": Whole(1)}
    both = [{**move} for move in swapped(plan, ["a", "b"], [1, 2])]
    assert {"a": RowSplit((0, 2, 1), (3, 4, 5)), "b": Whole(2)} in both
    assert {"a": RowSplit((0, 2, 1), (3, 5, 4)), "b": Whole(2)} in both


def test_the_collector_works_again_after_a_search() -> None:
    with gc_paused():
        assert not gc.isenabled()
        partition(stack(1, 2), Cluster.local(2), batch=4)
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="cannot be cut"):
        partition(stack(1, 2), Cluster.local(4), batch=4, cuts={"hidden0": RowSplit(4)})
    assert gc.isenabled()


def picture(*, link: Link) -> tuple[Network, Cluster]:
    net = Network("picture")
    states = net.input("x", shape=(16, 16, 4))
    for n in range(2):
        states = LocallyConnected2D(4, 3, padding="same", name=f"local{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    return net, Cluster(tuple(Machine(f"m{n}", flops_per_s=1e8) for n in range(16)), link)


def test_pictures_on_many_machines_with_slow_links_are_cut_into_tiles() -> None:
    net, cluster = picture(link=Link(1e-6, 1e6))
    plan = partition(net, cluster, batch=2)
    assert plan.ownership.tiled and plan.predicted_step_s >= plan.lower_bound_s
    assert plan.predicted_step_s < partition(net, cluster, batch=2, strategy="balanced").predicted_step_s


def test_rows_beside_tiles_play() -> None:
    """Errors of a picture in rows are summed in order, also where another picture is in tiles."""
    net, cluster = picture(link=Link())
    cuts = {"local0": RowSplit(4), "local1": RowSplit(3), "loss": Whole(0)}
    plan = partition(net, cluster, batch=2, cuts=cuts)
    third = LocallyConnected2D(2, 3, name="tiled")
    net = Network("beside")
    states = net.input("x", shape=(16, 16, 4))
    for n in range(2):
        states = LocallyConnected2D(4, 3, padding="same", name=f"local{n}")(states)
    net.loss = HalfSquaredError(name="loss")(third(states), net.target("y"))
    beside = partition(net, cluster, batch=2, cuts={**cuts, "tiled": Tiles(4, across=(2, 2))})

    def sent(found: Plan) -> list[tuple[int, int, int]]:
        return [
            (m.source, m.destination, m.n_bytes) for m in found.messages if str(m.buffer) == "local0<local1"
        ]

    assert sent(beside) == sent(plan) and sent(plan)
