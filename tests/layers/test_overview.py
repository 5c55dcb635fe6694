"""The table of a network's layers: every number in it, for a terminal and for a notebook."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.layers import (
    LSTM,
    BatchNorm,
    Conv2D,
    Dense,
    Embedding,
    Graph,
    Linear,
    Network,
    SoftmaxCrossEntropy,
)
from partita.layers.overview import summary_of
from partita.partitioner import Cluster, partition
from tests.draws import examples
from tests.networks import networks


def pictures() -> Network:
    net = Network("pictures")
    found = Conv2D(4, 3, name="conv")(net.input("picture", shape=(8, 8, 3)))
    found = Dense(10, trainable=False, name="scores")(BatchNorm(name="norm")(found))
    net.loss = SoftmaxCrossEntropy(name="loss")(found, net.target("label"))
    return net


def row(text: str, name: str) -> list[str]:
    """The cells of a layer, where the table is one block."""
    return next(re.split(r"  +", line) for line in text.splitlines() if line.startswith(name))


def test_every_number_is_there() -> None:
    """Numbers that are counted by hand: 4 filters of 27 and a bias over 36 places of 8 x 8 pictures."""
    text = pictures().summary().text(None)
    assert text.splitlines()[0] == (
        "network pictures: 1,578 parameters (6.2 KiB), 1,458 of them not trainable; 11.8 kflop for an "
        "example, forward"
    )
    assert row(text, "picture") == ["picture", "Input", "8x8x3"]
    assert row(text, "conv") == ["conv", "Conv2D", "6x6x4", "112", "448 B", "yes", "7.9 k"]
    assert row(text, "norm") == ["norm", "BatchNorm", "6x6x4", "16", "64 B", "partly", "864"]
    assert row(text, "scores") == ["scores", "Dense", "10", "1,450", "5.7 KiB", "no", "2.9 k"]
    assert row(text, "loss") == ["loss", "SoftmaxCrossEntropy", "1", "80"]


def test_a_plan_says_where_the_rows_are_and_counts_its_bytes() -> None:
    for precision, n_bytes in (("float32", "448 B"), ("bfloat16", "448 B"), ("float64", "896 B")):
        plan = partition(
            pictures(), Cluster.local(machines=2), batch=4, strategy="balanced", precision=precision
        )
        conv = row(plan.summary().text(None), "conv")
        assert conv[4] == n_bytes and conv[-1] == "local0, local1"
    wide = partition(pictures(), Cluster.local(machines=5), batch=4, strategy="balanced")
    assert row(wide.summary().text(None), "scores")[-1] == "0-4, 2 rows each"


def test_shared_parameters_count_once() -> None:
    net = Network("ties")
    table = Embedding(7, 4, name="table")
    found = table(net.input("word", shape=3, classes=7))
    Linear(7, weight=table.weight, name="scores")(found)
    summary = net.summary()
    assert summary.n_parameters == 28 + 7 and summary.n_trainable == 35
    assert "scores shares table.weight" in str(summary).splitlines()
    alone = Network("twice")
    twice = Linear(3, name="twice")
    twice(twice(alone.input("x", shape=(2, 3))))
    assert row(str(alone.summary()), "twice_1")[3] == "shared"


def test_names_are_shortened_where_the_table_then_fits() -> None:
    net = Network("long")
    LSTM(4, name="the_longest_name_that_anybody_gives_a_layer")(net.input("x", shape=(5, 2)))
    name = "the_longest_name_that_anybody_gives_a_layer"
    assert name in net.summary().text(100)
    lines = net.summary().text(60).splitlines()
    assert max(map(len, lines)) <= 60 and name not in "".join(lines)
    assert any(line.startswith("the_longe…es_a_layer ") for line in lines)
    assert any(line.startswith(name) for line in net.summary().text(30).splitlines())


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(graph=networks(shared=True), width=st.sampled_from([40, 80, None]))
def test_any_network_fits_and_adds_up(graph: Graph, width: int | None) -> None:
    """Lines are within the width; totals are those of the graph; a notebook gets a row for each layer."""
    summary = summary_of(graph)
    assert summary.n_parameters == graph.n_parameters
    if width is not None:
        assert max(map(len, summary.text(width).splitlines())) <= width
    html = summary._repr_html_()
    assert html.count("<tr>") == len(graph.grids) + 1
    assert repr(summary) == str(summary) == summary.text(80)
