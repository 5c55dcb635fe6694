"""Cuts as text: what is written is read, and what is no cut is refused in one sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.partitioner import InputSplit, Replicated, RowSplit, Tiles, Whole
from partita.partitioner.assign.cut_text import format_cut, parse_cut
from partita.partitioner.assign.cuts import Cut

EXAMPLES: list[tuple[str, Cut]] = [
    ("scores=1", Whole(1)),
    ("hidden=0,1", RowSplit((0, 1))),
    ("hidden=0:3,1:5", RowSplit((0, 1), sizes=(3, 5))),
    ("pool=halo:2:1,0", RowSplit((1, 0), halo=2)),
    ("pool=halo:1:0:3,1:5", RowSplit((0, 1), (3, 5), halo=1)),
    ("pool=replicate:0,1,2", Replicated((0, 1, 2))),
    ("h2=inputs:0,1", InputSplit((0, 1))),
    ("h2=inputs:0:640,3:1920", InputSplit((0, 3), (640, 1920))),
    ("h2=summed:0,1", InputSplit((0, 1), replicated=True)),
    ("conv=tiles:2x2:0,1,2,3", Tiles((0, 1, 2, 3), (2, 2))),
    ("conv=tiles:3+5x8:1,0", Tiles((1, 0), (2, 1), ((3, 5), (8,)))),
]


@pytest.mark.parametrize(("written", "cut"), EXAMPLES)
def test_each_way_to_cut_has_a_text(written: str, cut: Cut) -> None:
    layer = written.partition("=")[0]
    assert parse_cut(written) == (layer, cut)
    assert format_cut(layer, cut) == written
    assert parse_cut(written.replace("=", " = ").replace(",", ", ")) == (layer, cut)


def test_a_number_of_machines_is_written_out() -> None:
    assert format_cut("hidden", RowSplit(3)) == "hidden=0,1,2"
    assert format_cut("hidden", InputSplit(2, replicated=True)) == "hidden=summed:0,1"


machines = st.lists(st.integers(0, 99), min_size=2, max_size=5, unique=True).map(tuple)
sized = machines.flatmap(
    lambda on: st.tuples(st.just(on), st.none() | st.tuples(*(st.integers(1, 9) for _ in on)))
)
any_cut: st.SearchStrategy[Cut] = st.one_of(
    st.builds(Whole, st.integers(0, 99)),
    st.builds(Replicated, machines),
    st.builds(lambda on, halo: RowSplit(*on, halo=halo), sized, st.integers(0, 3)),
    st.builds(lambda on, replicated: InputSplit(*on, replicated=replicated), sized, st.booleans()),
)


@given(any_cut)
def test_what_is_written_is_read(cut: Cut) -> None:
    assert parse_cut(format_cut("layer_1", cut)) == ("layer_1", cut)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("hidden", "name a layer and its machines"),
        ("=0,1", "name a layer and its machines"),
        ("hidden=", "'' is not a whole number"),
        ("hidden=0,", "'' is not a whole number"),
        ("hidden=0,-1", "'-1' is not a whole number"),
        ("hidden=0:3,1", "give rows to each machine, or to none"),
        ("hidden=0:,1:4", "'' is not a whole number"),
        ("hidden=0:1:2", "'1:2' is not a whole number"),
        (
            "hidden=outputs:0,1",
            "there is no way 'outputs' to cut, only halo, replicate, inputs, summed, tiles",
        ),
        ("conv=tiles:2x2:0:1,1:3", "the sizes of tiles are rows and columns, for example"),
        ("conv=tiles:2:0,1", "'2' is no number of tiles down and across, for example 2x2"),
        ("conv=tiles:ax2:0,1", "'a' is not a whole number"),
        ("hidden=replicate", "'' is not a whole number"),
        ("hidden=replicate:0:4,1:4", "every machine has the whole layer, so leave the sizes out"),
        ("hidden=halo:0", "'' is not a whole number"),
        ("hidden=halo:x:0,1", "'x' is not a whole number"),
    ],
)
def test_what_is_no_cut_is_refused(written: str, why: str) -> None:
    sentence = f"'{written}' is not a cut ({why}"
    with pytest.raises(ValueError, match=re.escape(sentence) + ".*; write LAYER=MACHINE"):
        parse_cut(written)


@pytest.mark.parametrize(
    ("earlier", "now"), [("pool=repeat:0,1", "pool=replicate:0,1"), ("pool=margin:2:0,1", "pool=halo:2:0,1")]
)
def test_words_of_earlier_versions_are_read(earlier: str, now: str) -> None:
    assert parse_cut(earlier) == parse_cut(now)
