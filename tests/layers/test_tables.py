"""Tables of text: whatever the width, every cell is there, and no word is broken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Dense, HalfSquaredError, Network
from partita.layers.tables import columns, wrapped
from partita.partitioner import Cluster, partition
from partita.partitioner.table import plan_table

words = st.text("abcxyz019.,%", min_size=1, max_size=12)
cells = st.lists(words, min_size=1, max_size=3).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    n = draw(st.integers(2, 6))
    return draw(st.lists(st.lists(cells, min_size=n, max_size=n), min_size=2, max_size=5))


@given(rows=tables(), keys=st.integers(1, 2), width=st.none() | st.integers(20, 120))
def test_every_word_is_there_and_whole(rows: list[list[str]], keys: int, width: int | None) -> None:
    keys = min(keys, len(rows[0]) - 1)
    lines = columns(rows, left={0, 1}, keys=keys, width=width)
    printed = [word.rstrip(",") for line in lines for word in line.split()]
    for row in rows[1:]:
        assert {word.rstrip(",") for cell in row for word in cell.split()} <= set(printed)
    longest = max(len(word) for row in rows for cell in row for word in cell.split())
    assert width is None or max(map(len, lines)) <= max(width, longest + len("    ,"))


def test_a_table_that_fits_is_one_block() -> None:
    rows = [["layer", "kind", "a", "b"], ["h", "Dense", "0:512", "-"]]
    lines = ["layer  kind       a  b", "h      Dense  0:512  -"]
    assert columns(rows, left={0, 1}) == columns(rows, left={0, 1}, width=22) == lines


def test_a_table_that_is_too_wide_is_printed_in_blocks_that_name_their_rows() -> None:
    rows = [["layer", "kind", "a", "b"], ["h", "Dense", "0:512", "-"]]
    assert columns(rows, left={0, 1}, width=19) == [
        *("layer  kind       a", "h      Dense  0:512"),
        "",
        *("layer  b", "h      -"),
    ]


def test_wide_characters_count_as_the_two_columns_that_they_take() -> None:
    assert columns([["layer", "a"], ["層一", "1"]]) == ["layer  a", "層一   1"]


def test_a_row_whose_name_is_too_long_is_a_paragraph() -> None:
    rows = [["kernel", "alone", "rate"], ["forward of a layer with a name", "5.2 us", "77 Gflop/s"]]
    assert columns(rows, width=24) == [
        "forward of a layer with",
        "  a name",
        "    alone 5.2 us, rate",
        "    77 Gflop/s",
    ]


def test_a_line_of_words_goes_on_below() -> None:
    assert wrapped("  machine 0 waits for h", 14) == ["  machine 0", "    waits for", "    h"]
    assert wrapped("as it is") == wrapped("as it is", 8) == ["as it is"]


@given(width=st.sampled_from([60, 80, 120]), length=st.sampled_from([1, 20, 70]), machines=st.integers(1, 9))
def test_a_plan_fits_every_terminal(width: int, length: int, machines: int) -> None:
    net = Network("n" * 8)
    states = net.input("x", shape=16)
    for n in range(2):
        states = Dense(16, name=f"{'h' * length}{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    plan = partition(net, Cluster.local(machines), batch=4, strategy="balanced")
    lines = plan_table(plan, width=width).splitlines()
    assert max(len(line) for line in lines) <= max(width, length + len("    's'") + 4)
    assert plan_table(plan).split() == str(plan).split()
    text = " ".join(lines)
    for name in (*(grid.name for grid in plan.graph.computed), "peak memory", "critical path"):
        assert name in text
