"""The alpha-beta models: their formulas, and where a ring overtakes a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.exchange import (
    Fastest,
    Hierarchical,
    Link,
    Numbers,
    Ring,
    Server,
    Tree,
    bytes_sent,
    crossover_bytes,
    fastest,
)

LINK = Link(latency_s=1e-4, s_per_byte=1e-9)
LOCAL = Link(latency_s=1e-5, s_per_byte=1e-10)


def apart(members: int) -> list[str]:
    return [f"machine {rank}" for rank in range(members)]


@given(members=st.integers(4, 300), factor=st.sampled_from([0.5, 2.0]))
def test_a_tree_is_faster_below_the_crossover_and_a_ring_above(members: int, factor: float) -> None:
    size = crossover_bytes(members, LINK)
    ring, tree = (one.seconds(apart(members), round(size * factor), LINK) for one in (Ring(), Tree()))
    assert (ring < tree) == (factor > 1)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_for_few_members_a_tree_is_never_faster(members: int) -> None:
    assert crossover_bytes(members, LINK) == 0.0
    for size in (0, 4, 10**9):
        ring, tree = (one.seconds(apart(members), size, LINK) for one in (Ring(), Tree()))
        assert ring <= tree


def test_seconds_are_those_of_the_formulas() -> None:
    n_bytes, machines = 8_000_000, ["red", "blue", "red", "blue"]
    assert Ring().seconds(apart(4), n_bytes, LINK) == pytest.approx(6e-4 + 1.5 * 8e-3)
    assert Tree().seconds(apart(4), n_bytes, LINK) == pytest.approx(4 * (1e-4 + 8e-3))
    assert Server().seconds(apart(4), n_bytes, LINK) == pytest.approx(2 * (1e-4 + 3 * 8e-3))
    inside = 2 * (1e-5 + 8e-4)
    assert Hierarchical().seconds(machines, n_bytes, LINK, LOCAL) == pytest.approx(inside + 2e-4 + 8e-3)
    assert Hierarchical().seconds(apart(4), n_bytes, LINK, LOCAL) == Ring().seconds(apart(4), n_bytes, LINK)


def test_machines_of_one_label_use_the_local_link() -> None:
    for algorithm in (Ring(), Tree(), Server(), Hierarchical()):
        near = algorithm.seconds(["red"] * 4, 10**6, LINK, LOCAL)
        assert near < algorithm.seconds(apart(4), 10**6, LINK, LOCAL)
        assert algorithm.seconds(["red"], 10**6, LINK, LOCAL) == 0.0


@pytest.mark.parametrize("members", [2, 4, 16, 96])
def test_the_fastest_changes_from_tree_to_ring_at_the_crossover(members: int) -> None:
    machines = [str(n) for n in range(members)]
    size = int(crossover_bytes(members, LINK))
    for n_bytes in (size // 2, size - 1, size + 1, 2 * size, 1 << 30):
        expected = Tree() if n_bytes < size else Ring()
        assert fastest(machines, n_bytes, LINK) == expected, n_bytes


def test_the_fastest_is_the_hierarchy_where_computers_are_far_apart() -> None:
    machines, near = [str(n // 8) for n in range(32)], Link(1e-6, 1e-11)
    assert fastest(machines, 10_000_000, LINK, near) == Hierarchical()
    assert fastest(machines, 10_000_000, LINK) == Ring()


@given(members=st.integers(2, 40), computers=st.integers(1, 8), n_bytes=st.integers(4, 10**8))
def test_the_chosen_algorithm_has_the_routes_and_bytes_of_the_fastest(
    members: int, computers: int, n_bytes: int
) -> None:
    machines = [str(rank % computers) for rank in range(members)]
    found, chosen = fastest(machines, n_bytes, LINK, LOCAL), Fastest(n_bytes, LINK, LOCAL)
    assert chosen.among(machines) == found and chosen.segments(machines) == found.segments(machines)
    numbers = Numbers(n_bytes // 4)
    for rank in (0, members - 1):
        assert chosen.route(rank, 0, machines) == found.route(rank, 0, machines)
        assert bytes_sent(chosen, rank, machines, numbers) == bytes_sent(found, rank, machines, numbers)


def test_a_choice_says_what_it_was_made_of() -> None:
    assert Fastest(4_000, LINK, LOCAL).sentence(["red"] * 8) == (
        "all-reduce by Tree() for 8 replicas on 1 computer, 4,000 bytes; predicted: Ring() 0.141 ms, Tree() "
        "0.0624 ms, Hierarchical() 0.146 ms"
    )
