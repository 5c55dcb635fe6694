"""The automatic strategy: operations by speed, small layers to the idle, cuts where patches begin."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from partita.layers import (
    Dense,
    HalfSquaredError,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    Patch,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Machine, Plan, RowSplit, Whole, partition
from partita.partitioner.assign.piece import boundaries, row_flops
from tests.networks import networks
from tests.plans import clusters


def uneven(*speeds: float, threads: tuple[int, ...] | None = None) -> Cluster:
    kernels = threads or (1,) * len(speeds)
    return Cluster(
        tuple(
            Machine(f"m{n}", threads=k, flops_per_s=s)
            for n, (s, k) in enumerate(zip(speeds, kernels, strict=True))
        )
    )


def sizes(plan: Plan, layer: str) -> dict[int, int]:
    return {piece.machine: piece.stop - piece.start for piece in plan.pieces if piece.layer == layer}


def dense(units: int) -> Network:
    net = Network("dense")
    net.loss = HalfSquaredError(name="loss")(
        Dense(units, name="wide")(net.input("x", shape=16)), net.target("y")
    )
    return net


def test_pieces_are_proportional_to_speed_times_threads() -> None:
    assert sizes(partition(dense(100), uneven(1e9, 1e9), batch=1, strategy="balanced"), "wide") == {
        0: 50,
        1: 50,
    }
    assert sizes(partition(dense(100), uneven(3e9, 1e9), batch=1, strategy="balanced"), "wide") == {
        0: 75,
        1: 25,
    }
    plan = partition(dense(100), uneven(1e9, 1e9, 2e9, threads=(4, 1, 1)), batch=1, strategy="balanced")
    assert abs(sizes(plan, "wide")[0] - 100 * 4 / 7) <= 1
    assert abs(sizes(plan, "wide")[2] - 100 * 2 / 7) <= 1


@given(speeds=st.lists(st.integers(1, 20), min_size=1, max_size=6), units=st.integers(50, 400))
def test_no_machine_is_a_row_away_from_its_share(speeds: list[int], units: int) -> None:
    found = sizes(partition(dense(units), uneven(*map(float, speeds)), batch=1, strategy="balanced"), "wide")
    for machine, speed in enumerate(speeds):
        assert abs(found[machine] - units * speed / sum(speeds)) <= max(1, len(speeds) - 1)


def test_what_is_too_small_to_share_goes_to_the_least_busy() -> None:
    net = Network("small")
    hidden = Dense(30, name="hidden")(net.input("x", shape=16))
    net.loss = HalfSquaredError(name="loss")(Dense(2, name="scores")(hidden), net.target("y"))
    cluster = Cluster.local(3)
    plan = partition(net, cluster, batch=1, cuts={"loss": Whole(1)}, strategy="balanced")
    assert set(sizes(plan, "scores")) == {0, 2}  # machine 1 has the loss already
    assert set(sizes(plan, "hidden")) == {0, 1, 2}


def test_a_loss_lies_where_its_scores_do() -> None:
    net = Network("evaluated")
    scores = Dense(2, name="scores")(Dense(30, name="hidden")(net.input("x", shape=16)))
    net.loss = SoftmaxCrossEntropy(name="loss")(scores, net.target("y"))
    plan = partition(net, Cluster.local(3), batch=1, cuts={"scores": RowSplit((2, 1))}, strategy="balanced")
    assert plan.ownership.loss_shards("loss") == (2, 1)
    assert {(p.start, p.stop, p.machine) for p in plan.ownership.of("loss")} == {(0, 1, 1), (0, 1, 2)}
    plan = partition(net, Cluster.local(3), batch=1, cuts={"scores": Whole(2)}, strategy="balanced")
    assert [piece.machine for piece in plan.ownership.of("loss")] == [2]
    assert not plan.ownership.loss_shards("loss")
    by_hand = {"scores": RowSplit((2, 1)), "loss": Whole(0)}
    plan = partition(net, Cluster.local(3), batch=1, cuts=by_hand, strategy="balanced")
    assert not plan.ownership.loss_shards("loss")
    sent = [(str(m.buffer), m.source, m.destination) for m in plan.messages if m.layer == "scores"]
    assert sorted(sent) == [("scores", 1, 0), ("scores", 2, 0), ("scores<loss", 0, 1), ("scores<loss", 0, 2)]


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    same=st.booleans(),
    machines=st.integers(2, 4),
    height=st.integers(16, 30),
)
def test_a_cut_under_patches_lies_where_the_patches_begin(
    kernel: int, stride: int, same: bool, machines: int, height: int
) -> None:
    net = Network("picture")
    below = LocallyConnected2D(1, 3, name="below")(net.input("image", shape=(height, 4, 1)))
    padding = "same" if same else "valid"
    above = LocallyConnected2D(1, (kernel, 1), stride=(stride, 1), padding=padding, name="above")(below)
    net.loss = HalfSquaredError(name="loss")(above, net.target("y"))
    plan = partition(net, Cluster.local(machines), batch=1, strategy="balanced")
    patch = plan.graph["above"].layer.connectivity
    assert isinstance(patch, Patch)
    axis = patch.axes(plan.graph["below"].shape)[0]
    axis_rows = plan.graph["below"].n_rows
    lower, upper = plan.ownership.of("below"), plan.ownership.of("above")
    assume(len(lower) == len(upper) == machines)
    starts = [piece.start * axis.stride - axis.before for piece in upper[1:]]
    fair = [b - a for a, b in pairwise(boundaries(dict.fromkeys(range(machines), 1.0), axis_rows))]
    wanted = [b - a for a, b in pairwise([0, *starts, axis_rows])]
    assume(all(0 < size <= max(share + 1, 1.1 * share) for size, share in zip(wanted, fair, strict=True)))
    assert [piece.start for piece in lower[1:]] == starts
    halo = [m for m in plan.messages if m.layer == "below" and m.direction == "forward"]
    assert all(m.source > m.destination for m in halo), "activations of a halo are sent one way"
    errors = [m for m in plan.messages if m.layer == "below" and m.direction == "backward"]
    assert all(m.source < m.destination for m in errors), "and its errors the other"


def test_states_of_a_halo_travel_one_way_and_their_errors_the_other() -> None:
    """One case of the above that is surely cut where the patches begin."""
    net = Network("picture")
    below = LocallyConnected2D(1, 3, name="below")(net.input("image", shape=(22, 4, 1)))  # 20 rows
    above = LocallyConnected2D(1, (3, 1), name="above")(below)  # 18 rows
    net.loss = HalfSquaredError(name="loss")(above, net.target("y"))
    plan = partition(net, Cluster.local(2), batch=1, strategy="balanced")
    assert [piece.box[0] for piece in plan.ownership.of("above")] == [(0, 9), (9, 18)]
    assert [piece.box[0] for piece in plan.ownership.of("below")] == [(0, 9), (9, 20)]
    halo = [(m.direction, m.source, m.destination, str(m.rows)) for m in plan.messages if m.layer == "below"]
    assert halo == [("forward", 1, 0, "9:11"), ("backward", 0, 1, "9:11")]


def test_cuts_do_not_drift_through_a_deep_stack_of_patches() -> None:
    net = Network("deep")
    states = net.input("image", shape=(64, 4, 1))
    for n in range(20):
        states = LocallyConnected2D(1, 3, padding="same", name=f"local{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    plan = partition(net, Cluster.local(4), batch=1, strategy="balanced")
    for n in range(20):
        assert max(sizes(plan, f"local{n}").values()) <= 17


def test_a_pool_without_overlap_needs_no_message() -> None:
    net = Network("pooled")
    picture = LocallyConnected2D(2, 3, name="below")(net.input("image", shape=(18, 6, 1)))
    net.loss = HalfSquaredError(name="loss")(MaxPool2D(2, name="pool")(picture), net.target("y"))
    plan = partition(net, Cluster.local(4), batch=1, strategy="balanced")
    assert len(plan.ownership.of("pool")) == len(plan.ownership.of("below")) == 4
    assert not [message for message in plan.messages if message.layer == "below"]


@given(graph=networks(shared=True), cluster=clusters())
def test_every_layer_that_can_be_cut_is_shared_by_as_many_as_have_a_row(
    graph: object, cluster: Cluster
) -> None:
    plan = partition(graph, cluster, batch=1, strategy="balanced")  # type: ignore[arg-type]
    for grid in plan.graph.computed:
        expected = min(len(cluster), grid.n_rows) if grid.layer.cuttable else 1
        if grid.name in plan.graph.losses:
            expected = len(plan.ownership.of(grid.sources[0]))
        assert len(plan.ownership.of(grid.name)) == expected
        whole = grid.n_rows * row_flops(grid, batch=2)
        parts = sum(plan.ownership.flops(piece, batch=2) for piece in plan.ownership.of(grid.name))
        assert abs(parts - whole) <= 1e-9 * whole
