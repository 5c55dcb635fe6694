"""Slurm's lists of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.launch.symmetric.node_list import MOST, nodes_of, tasks_per_node


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("alone", ["alone"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("gpu[08-11],login", ["gpu08", "gpu09", "gpu10", "gpu11", "login"]),
        ("r[1-2]n[0,7]-ib", ["r1n0-ib", "r1n7-ib", "r2n0-ib", "r2n7-ib"]),
        ("a.example.org,b.example.org", ["a.example.org", "b.example.org"]),
        ("n[001,099-101]", ["n001", "n099", "n100", "n101"]),
    ],
)
def test_a_list_is_its_nodes_in_order(text: str, nodes: list[str]) -> None:
    assert nodes_of(text) == tuple(nodes)


@pytest.mark.parametrize(
    "text", ["", "n[1-", "n[a-b]", "n[3-1]", "n]1[", "a,,b", "n[]", "a b", ",a", "n[1-1000000]"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a list of nodes|names more than"):
        nodes_of(text)


@given(
    st.text("abc-.", min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_written_ranges_are_read_back(prefix: str, ranges: list[tuple[int, int]], width: int) -> None:
    text = ",".join(
        f"{low:0{width}d}-{low + more:0{width}d}" if more else f"{low:0{width}d}" for low, more in ranges
    )
    expected = [
        f"{prefix}{number:0{max(width, len(str(low)))}d}"
        for low, more in ranges
        for number in range(low, low + more + 1)
    ]
    assert nodes_of(f"{prefix}[{text}]") == tuple(expected)


@given(st.text("n[]-,0123456789", max_size=12))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        found = nodes_of(text)
    except ValueError:
        return
    assert 1 <= len(found) <= MOST and not any(set("[], ") & set(name) for name in found)


def test_tasks_on_each_node() -> None:
    assert tasks_per_node("2(x3),1") == (2, 2, 2, 1) and tasks_per_node("64") == (64,)
    for text in ("", "x", "2(x)", "1(x99999999)"):
        with pytest.raises(ValueError, match="tasks on each node"):
            tasks_per_node(text)
