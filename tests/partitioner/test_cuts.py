"""Cuts by hand: what they give, and the sentence with which an impossible one is refused."""

from __future__ import annotations

import re

import pytest

from partita.layers import Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Machine, Piece, RowSplit, Whole, partition


def digits() -> Network:
    net = Network("digits")
    image = net.input("image", shape=(8, 8, 1))
    hidden = LocallyConnected2D(4, kernel_size=3, name="hidden")(image)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(hidden), net.target("digit"))
    return net


def pieces_of(layer: str, cut: RowSplit | Whole, *, machines: int = 3) -> list[tuple[int, int, int]]:
    plan = partition(digits(), Cluster.local(machines), batch=4, cuts={layer: cut}, strategy="balanced")
    return [(piece.start, piece.stop, piece.machine) for piece in plan.pieces if piece.layer == layer]


def test_pieces_follow_the_machines_in_the_order_given() -> None:
    assert pieces_of("scores", RowSplit(3)) == [(0, 3, 0), (3, 7, 1), (7, 10, 2)]
    assert pieces_of("scores", RowSplit((2, 0))) == [(0, 5, 2), (5, 10, 0)]
    assert pieces_of("scores", RowSplit((2, 0), sizes=(1, 9))) == [(0, 1, 2), (1, 10, 0)]
    assert pieces_of("hidden", RowSplit(2)) == [(0, 3, 0), (3, 6, 1)]
    assert pieces_of("loss", Whole(2)) == [(0, 1, 2)]
    assert pieces_of("loss", RowSplit((1,))) == [(0, 1, 1)]


def test_the_other_layers_are_cut_automatically() -> None:
    plan = partition(digits(), Cluster.local(2), batch=4, cuts={"hidden": Whole(1)}, strategy="balanced")
    assert Piece("hidden", 0, 6, 1) in plan.pieces
    assert {piece.layer for piece in plan.pieces} == {"hidden", "scores", "loss"}


@pytest.mark.parametrize(
    ("layer", "cut", "sentence"),
    [
        (
            "scores",
            RowSplit(16),
            "Dense 'scores' has 10 nodes and cannot be cut into 16 pieces; "
            "cut it into at most 10, or leave it whole",
        ),
        ("hidden", RowSplit(7), "LocallyConnected2D 'hidden' has 6 rows and cannot be cut into 7 pieces"),
        ("scores", Whole(16), "Dense 'scores' is put on machine 16, but the cluster's machines are 0 to 15"),
        ("scores", Whole(-1), "Dense 'scores' is put on machine -1"),
        ("scores", RowSplit((0, 16)), "is put on machine 16"),
        (
            "scores",
            RowSplit((1, 1)),
            "Dense 'scores' names a machine twice, (1, 1); give each machine one piece",
        ),
        ("scores", RowSplit(()), "Dense 'scores': the machines are (); write"),
        ("scores", RowSplit(0), "Dense 'scores': the number of machines is 0; write"),
        (
            "scores",
            RowSplit(2, sizes=(5, 6)),
            "has 10 rows for 2 machines, but the sizes are (5, 6); give each machine at least 1, 10 in all",
        ),
        ("scores", RowSplit(2, sizes=(0, 10)), "the sizes are (0, 10)"),
        ("scores", RowSplit(2, sizes=(10,)), "the sizes are (10,)"),
        ("scores", RowSplit(2, sizes=()), "the sizes are ()"),
        (
            "loss",
            RowSplit(2),
            "SoftmaxCrossEntropy 'loss' cannot be cut; put it on one machine, for example Whole(0)",
        ),
        (
            "score",
            RowSplit(2),
            "there is no layer 'score' to cut in network 'digits'; it has hidden, scores, loss",
        ),
        ("image", Whole(0), "there is no layer 'image' to cut"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(layer: str, cut: RowSplit | Whole, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        partition(digits(), Cluster.local(16), batch=4, cuts={layer: cut})


def test_a_part_that_does_not_fit_is_refused_naming_its_machine() -> None:
    machines = (Machine("large"), Machine("small", memory_bytes=1024))
    with pytest.raises(
        ValueError, match=r"'small' takes \S+ KiB of its 1.0 KiB; the strategy 'automatic' finds a plan"
    ):
        partition(digits(), Cluster(machines), batch=4, strategy="balanced")
    plan = partition(
        digits(), Cluster((machines[0], Machine("exact", memory_bytes=10**6))), batch=4, strategy="balanced"
    )
    exact = Machine("exact", memory_bytes=plan.memory_bytes(1))
    assert (
        partition(digits(), Cluster((machines[0], exact)), batch=4, strategy="balanced").pieces == plan.pieces
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch": 0}, "the number of examples in a batch is 0; write a whole"),
        (
            {"precision": "float8"},
            "there is no precision 'float8'; choose one of float32, float64, bfloat16, float16",
        ),
        ({"strategy": "magic"}, "there is no strategy 'magic'; choose one of automatic, balanced, layers"),
    ],
)
def test_settings_that_are_not_there_are_refused(settings: dict[str, object], sentence: str) -> None:
    arguments = {"batch": 4, **settings}
    with pytest.raises(ValueError, match=re.escape(sentence)):
        partition(digits(), Cluster.local(2), **arguments)  # type: ignore[arg-type]


def test_clusters_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="a cluster needs at least one machine"):
        Cluster(())
    with pytest.raises(ValueError, match="the number of machines is 0; write a whole number of at least 1"):
        Cluster.local(0)
    for broken in ({"threads": 0}, {"flops_per_s": 0.0}, {"bytes_per_s": -1.0}):
        with pytest.raises(ValueError, match=r"machine 'm': the number of .* is .*; write"):
            Machine("m", **broken)  # type: ignore[arg-type]
