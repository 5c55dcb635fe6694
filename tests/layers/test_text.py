"""Numbers in sentences."""

from __future__ import annotations

import pytest

from partita.layers import Network
from partita.layers.text import counted
from partita.partitioner import Cluster, partition
from tests.faults import toy


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [
        (0, ("machine",), "0 machines"),
        (1, ("machine",), "1 machine"),
        (2000, ("machine",), "2,000 machines"),
        (1, ("push", "pushes"), "1 push"),
        (3, ("push", "pushes"), "3 pushes"),
    ],
)
def test_one_thing_is_not_several(count: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(count, *words) == expected


def test_no_plan_or_network_says_one_machines() -> None:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=1)
    net = Network("one")
    net.input("x", shape=1)
    shown = "\n".join(map(str, (plan, plan.cluster, repr(net), plan.graph)))
    assert "plan of toy: 1 machine, " in shown and "1 thread)" in shown and "1 layer)" in shown
    assert not [
        line for line in shown.splitlines() if f" {line}".count(" 1 machines") or " 1 threads" in line
    ]
