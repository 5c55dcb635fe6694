"""Links as tables: between sizes, below and above them; never shorter for more bytes; and what is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Dense, Graph, HalfSquaredError, Network
from partita.partitioner import Between, Cluster, Costs, Link, Machine, MessageTimes
from tests.plans import clusters, links


def _network() -> Graph:
    net = Network("small")
    net.loss = HalfSquaredError()(Dense(3)(net.input("x", shape=4)), net.target("y"))
    return net.graph()


TABLE = MessageTimes(100, 1e-5, 0.0, 2e-5), MessageTimes(300, 3e-5, 1e-3, 4e-5)
sizes = st.integers(1, 1 << 28)


@pytest.mark.parametrize(
    ("n_bytes", "times"),
    [
        (1, (1e-5, 0.0, 2e-5)),
        (100, (1e-5, 0.0, 2e-5)),
        (200, (2e-5, 5e-4, 3e-5)),
        (300, (3e-5, 1e-3, 4e-5)),
        (500, (5e-5, 2e-3, 6e-5)),
    ],
)
def test_times_lie_between_those_of_the_table(n_bytes: int, times: tuple[float, float, float]) -> None:
    assert Link(1e-4, table=TABLE).times(n_bytes) == pytest.approx(times)


def test_above_a_table_the_steeper_of_its_end_and_its_mean_goes_on() -> None:
    flat = MessageTimes(600, 3e-5, 1e-3, 4e-5)
    assert Link(table=(*TABLE, flat)).times(1100)[1] == pytest.approx(1e-3 + 500 * 1e-3 / 500)
    steep = MessageTimes(400, 3e-5, 2e-3, 4e-5)
    assert Link(table=(*TABLE, steep)).times(500)[1] == pytest.approx(3e-3)


def test_a_straight_line_and_its_table_agree() -> None:
    line = Link(2e-5, 1e9, send_s=1e-5, receive_s=2e-5, send_bytes_per_s=8e9, receive_bytes_per_s=4e9)
    table = Link(line.latency_s, table=tuple(MessageTimes(n, *line.times(n)) for n in (1, 4096, 1 << 26)))
    for n_bytes in (1, 1000, 4096, 70_000, 1 << 26, 1 << 28):
        assert table.times(n_bytes) == pytest.approx(line.times(n_bytes), rel=1e-9)
    assert table.bytes_per_s == pytest.approx(line.bytes_per_s)


@given(links, sizes, sizes)
def test_more_bytes_never_take_less_time(link: Link, one: int, other: int) -> None:
    less, more = sorted((one, other))
    for a, b in zip(link.times(less), link.times(more), strict=True):
        assert 0.0 <= a <= b * (1 + 1e-9)


@given(links, st.sampled_from([1e5, 1e8, 1e11]), sizes)
def test_a_faster_link_is_no_slower(link: Link, bytes_per_s: float, n_bytes: int) -> None:
    faster = link.at_least(bytes_per_s)
    (send, wire, receive), before = faster.times(n_bytes), link.times(n_bytes)
    assert (send, receive) == (before[0], before[2]) and wire <= before[1] * (1 + 1e-9)


@given(clusters(min_machines=2), sizes)
def test_no_message_costs_less_than_the_least(cluster: Cluster, n_bytes: int) -> None:
    costs = Costs(_network(), cluster, batch=4)
    least = costs.least_message
    assert least is not None
    for a in range(len(cluster)):
        for b in range(len(cluster)):
            if a != b:
                cost = costs.message(n_bytes, a, b)
                assert least.send_s <= cost.send_s * (1 + 1e-9)
                assert least.receive_s <= cost.receive_s * (1 + 1e-9)
                assert costs.least_message_s <= cost.total_s * (1 + 1e-9)


def test_the_least_message_may_be_that_of_two_machines_alone() -> None:
    """Machines of one kind, of which only the first two have a fast link."""
    machines = tuple(Machine(name) for name in "abcd")
    fast = Between("a", "b", Link(1e-6, send_s=1e-6, receive_s=1e-6))
    costs = Costs(_network(), Cluster(machines, Link(1.0), (fast,)), batch=4)
    assert costs.least_message_s == pytest.approx(costs.message(1, 0, 1).total_s)
