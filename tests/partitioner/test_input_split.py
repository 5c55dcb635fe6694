"""Dense layers cut by their inputs, and layers on several machines: who has what, what travels."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from partita.layers import (
    BoxSet,
    Conv2D,
    Dense,
    HalfSquaredError,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import (
    Cluster,
    InputSplit,
    Ownership,
    Piece,
    Plan,
    Replicated,
    RowSplit,
    StepKind,
    Whole,
    partition,
)
from partita.partitioner.assign.cuts import Cut


def layers_of_four() -> Network:
    net = Network("four")
    states = net.input("x", shape=6)
    for n in range(1, 5):
        states = Dense(8, activation="tanh", name=f"h{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(states), net.target("y"))
    return net


def planned(cuts: dict[str, Cut], *, machines: int = 2) -> Plan:
    return partition(layers_of_four(), Cluster.local(machines), batch=3, cuts=cuts, strategy="balanced")


def travelling(plan: Plan) -> Counter[tuple[str, str]]:
    """Messages by direction and buffer."""
    return Counter((message.direction, str(message.buffer)) for message in plan.messages)


def test_two_dense_layers_in_a_row_need_one_exchange_up_and_one_down() -> None:
    summed = InputSplit(2, replicated=True)
    plan = planned({"h1": RowSplit(2), "h2": summed, "h3": RowSplit(2), "h4": summed, "scores": RowSplit(2)})
    assert travelling(plan) == {
        ("forward", "h2.sums"): 2,
        ("forward", "h4.sums"): 2,
        ("forward", "loss.summary"): 2,
        ("backward", "h4.deltas"): 2,
        ("backward", "h2.deltas"): 2,
    }
    by_rows = planned({f"h{n}": RowSplit(2) for n in range(1, 5)})
    assert len(by_rows.messages) == 2 * (4 + 4 + 1)


def test_a_machine_without_a_copy_receives_the_first() -> None:
    plan = planned({"h1": RowSplit(2), "h2": InputSplit(2, replicated=True), "h3": Whole(2)}, machines=3)
    sent = [(str(m.buffer), m.source, m.destination) for m in plan.messages if m.layer == "h2"]
    assert ("h2", 0, 2) in sent and ("h2", 1, 2) not in sent
    assert ("h2<h3", 2, 0) in sent and ("h2<h3", 2, 1) not in sent
    assert ("h2.deltas", 0, 1) in sent and ("h2.deltas", 1, 0) not in sent  # no errors came to machine 1


def test_states_by_rows_are_sums_that_others_send() -> None:
    plan = planned({"h1": RowSplit(2), "h2": InputSplit(2), "h3": RowSplit(2)})
    sent = {(str(m.buffer), m.rows, m.source, m.destination) for m in plan.messages if m.layer == "h2"}
    assert {
        ("h2.sums", BoxSet.of_rows((4, 8)), 0, 1),
        ("h2.sums", BoxSet.of_rows((0, 4)), 1, 0),
        ("h2.deltas", BoxSet.of_rows((0, 4)), 0, 1),
        ("h2.deltas", BoxSet.of_rows((4, 8)), 1, 0),
    } <= sent
    assert not [m for m in plan.messages if m.layer == "h1"]


def test_inputs_follow_the_pieces_of_the_input() -> None:
    def inputs(cuts: dict[str, Cut]) -> list[tuple[int, tuple[int, int] | None]]:
        return [(piece.machine, piece.inputs) for piece in planned(cuts).ownership.of("h2")]

    assert inputs({"h1": RowSplit(2, sizes=(3, 5)), "h2": InputSplit(2)}) == [(0, (0, 3)), (1, (3, 8))]
    assert inputs({"h1": RowSplit((1, 0), (3, 5)), "h2": InputSplit((1, 0))}) == [(1, (0, 3)), (0, (3, 8))]
    assert inputs({"h1": RowSplit((1, 0), (3, 5)), "h2": InputSplit(2)}) == [(0, (0, 4)), (1, (4, 8))]
    assert inputs({"h1": Whole(1), "h2": InputSplit(2)}) == [(0, (0, 4)), (1, (4, 8))]
    assert inputs({"h1": RowSplit(2, sizes=(3, 5)), "h2": InputSplit(2, sizes=(7, 1))})[0] == (0, (0, 7))
    assert planned({"h2": InputSplit((1,))}).ownership.of("h2") == (Piece("h2", 0, 8, 1),)


def test_the_weights_of_columns_count_once() -> None:
    plan = planned({"h1": RowSplit(2, sizes=(3, 5)), "h2": InputSplit(2, replicated=True)})
    held = [[h.size for h in plan.ownership.parameter_slices("h2", machine)] for machine in (0, 1)]
    assert held == [[24, 8], [40, 0]]
    assert plan.n_parameters(0) + plan.n_parameters(1) == plan.graph.n_parameters
    flops = [plan.ownership.flops(piece, batch=1) for piece in plan.ownership.of("h2")]
    assert flops == pytest.approx([8 * 17 * 3 / 8, 8 * 17 * 5 / 8])


def picture(*, copies: Cut, shared: Cut) -> Plan:
    net = Network("picture")
    image = net.input("image", shape=(12, 4, 1))
    local = LocallyConnected2D(2, 3, padding="same", name="local")(image)
    conv = Conv2D(2, 3, padding="same", name="conv")(MaxPool2D(3, stride=1, name="pool")(local))
    net.loss = HalfSquaredError(name="loss")(Dense(4, name="scores")(conv), net.target("y"))
    cuts: dict[str, Cut] = {"local": RowSplit(2), "pool": copies, "conv": shared, "scores": RowSplit(2)}
    return partition(net, Cluster.local(2), batch=2, cuts=cuts, strategy="balanced")


def test_a_margin_spares_the_halo_above_and_its_errors() -> None:
    """Two rows that both machines pool are neither sent up, nor are their errors sent down."""
    cut, halo = (picture(copies=RowSplit(2, halo=n), shared=RowSplit(2)) for n in (0, 1))
    halos = [(str(m.buffer), m.rows) for m in cut.messages if m.layer == "pool"]
    down = [("pool<conv", BoxSet.of_rows((4, 6))), ("pool<conv", BoxSet.of_rows((4, 5)))]
    assert halos == [("pool", BoxSet.of_rows((5, 6))), ("pool", BoxSet.of_rows((4, 5))), *down]
    assert [(p.start, p.stop) for p in halo.ownership.of("pool")] == [(0, 6), (4, 10)]
    assert not [m for m in halo.messages if m.layer == "pool"]
    assert sum(m.n_bytes for m in halo.messages) > 0


def test_a_repeated_layer_is_sent_nowhere_where_it_is() -> None:
    plan = picture(copies=Replicated(2), shared=Replicated((1, 0)))
    assert not [
        m for m in plan.messages if str(m.buffer).startswith(("pool", "conv<")) or str(m.buffer) == "conv"
    ]
    assert [(str(m.buffer), m.source, m.destination) for m in plan.messages if m.layer == "conv"] == [
        ("conv.parameters", 0, 1),
        ("conv.gradient", 1, 0),
    ]


def test_a_repeated_loss_counts_once() -> None:
    for scores in (RowSplit(3), Whole(2)):
        plan = planned({"scores": scores, "loss": Replicated((0, 1))}, machines=3)
        assert plan.ownership.loss_owners("loss") == (0,)
        errors = [m.source for m in plan.messages if str(m.buffer) == "scores<loss"]
        assert set(errors) == {0}
        assert len([m for m in plan.messages if str(m.buffer) == "scores" and m.destination == 1]) > 0
    assert planned({"scores": InputSplit(2, replicated=True)}).ownership.of("loss") == (
        Piece("loss", 0, 1, 0),
    )


@pytest.mark.parametrize(
    ("layer", "cut", "sentence"),
    [
        (
            "h2",
            Replicated(2),
            "Dense 'h2' cannot be replicated: its nodes have weights of their own, and those of each replica "
            "would learn something else; cut it without, for example InputSplit(2, replicated=True)",
        ),
        ("h2", RowSplit(2, halo=1), "Dense 'h2' cannot be replicated: its nodes have weights of their own"),
        ("h2", RowSplit(2, halo=-1), "Dense 'h2': the halo is -1; write a whole number of at least 0"),
        (
            "h2",
            InputSplit(2, sizes=(1, 6)),
            "the input 'h1' of Dense 'h2' has 8 rows for 2 machines, but the",
        ),
        ("h1", InputSplit(7), "the input 'x' of Dense 'h1' has 6 rows and cannot be cut into 7 pieces"),
        ("scores", InputSplit(5), "Dense 'scores' has 4 rows and cannot be cut into 5 pieces"),
        ("h2", InputSplit((0, 9)), "is put on machine 9, but the cluster's machines are 0 to 7"),
        ("loss", InputSplit(2), "SoftmaxCrossEntropy 'loss' cannot be cut"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(layer: str, cut: Cut, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        planned({layer: cut}, machines=8)


def test_what_takes_no_sum_is_not_cut_by_its_inputs() -> None:
    with pytest.raises(ValueError, match=r"MaxPool2D 'pool' cannot be cut by its inputs, because its nodes"):
        picture(copies=InputSplit(2), shared=RowSplit(2))
    net = Network("local")
    LocallyConnected2D(2, 3, name="local")(net.input("image", shape=(6, 4, 1)))
    with pytest.raises(
        ValueError, match=r"LocallyConnected2D 'local' cannot be replicated: .* RowSplit\(2\)"
    ):
        partition(net, Cluster.local(2), batch=2, cuts={"local": Replicated(2)})


@pytest.mark.parametrize(
    "pieces",
    [
        [Piece("h2", 0, 4, 0, inputs=(0, 4)), Piece("h2", 4, 8, 1, inputs=(3, 8))],
        [Piece("h2", 0, 4, 0, inputs=(0, 4)), Piece("h2", 4, 8, 1)],
        [Piece("h2", 0, 5, 0, inputs=(0, 4)), Piece("h2", 4, 8, 1, inputs=(4, 8))],
        [Piece("h2", 0, 8, 0, inputs=(0, 8)), Piece("h2", 0, 8, 1, inputs=(8, 8))],
    ],
)
def test_inputs_that_are_no_partition_are_refused(pieces: list[Piece]) -> None:
    whole = planned({})
    others = [piece for piece in whole.pieces if piece.layer != "h2"]
    with pytest.raises(ValueError, match="the pieces of 'h2' do not cover"):
        Ownership(whole.graph, 2, (*others, *pieces))


def test_a_step_of_every_kind_ends() -> None:
    """The table of the plan prints what each machine has."""
    plan = planned(
        {"h1": RowSplit(2), "h2": InputSplit(2, replicated=True), "h3": RowSplit(2), "h4": InputSplit(2)}
    )
    for kind in (StepKind(), StepKind(norms=True), StepKind(gradients="whole"), StepKind(train=False)):
        assert all(len(program) for program in plan.programs_for(kind))
    assert plan.predicted_step_s > 0
    (row,) = [line for line in str(plan).splitlines() if line.split()[:1] == ["h2"]]
    assert row.split()[-2:] == ["0:8/0:4", "0:8/4:8"]
