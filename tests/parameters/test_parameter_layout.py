"""The layout covers everything once, whatever the cuts; vectors travel between whole, machine and shard."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import Layout, Slot, gather, scatter


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Random parameters, cut at random places, the pieces given to random machines in random order."""
    shapes = {
        f"layer.{index}": tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
        for index in range(draw(st.integers(0, 5)))
    }
    machines: list[list[Slot]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for name, shape in shapes.items():
        size = math.prod(shape)
        cuts = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))})
        for start, stop in pairwise(cuts):
            draw(st.sampled_from(machines)).append(Slot(name, start, stop))
    ordered = tuple(tuple(draw(st.permutations(slots))) for slots in machines)
    return Layout(ordered, shapes, shards=draw(st.integers(1, 6)))


@given(layouts())
def test_machines_and_shards_both_hold_every_number_once(layout: Layout) -> None:
    whole = {
        name: np.arange(math.prod(shape), dtype=np.float64).reshape(shape) + 1000 * index
        for index, (name, shape) in enumerate(layout.shapes.items())
    }
    by_machine = [gather(slots, whole, np.float64) for slots in layout.machines]
    by_shard = [gather(layout.slots_of(shard), whole, np.float64) for shard in range(layout.shards)]
    assert np.array_equal(np.concatenate(by_machine), np.concatenate(by_shard))
    again = {name: np.full_like(array, -1) for name, array in whole.items()}
    for shard, vector in enumerate(by_shard):
        scatter(layout.slots_of(shard), vector, again)
    assert all(np.array_equal(again[name], array) for name, array in whole.items())


@given(layouts())
def test_an_overlap_is_the_same_numbers_on_both_sides(layout: Layout) -> None:
    position = np.arange(layout.size)
    machines = [position[a:b] for a, b in pairwise(layout.machine_starts)]
    shards = [position[a:b] for a, b in pairwise(layout.shard_starts)]
    assert [vector.size for vector in machines] == [layout.machine_size(m) for m in range(len(machines))]
    assert [vector.size for vector in shards] == [layout.shard_size(k) for k in range(layout.shards)]
    for overlap in layout.overlaps:
        ours = machines[overlap.machine][overlap.machine_start : overlap.machine_stop]
        theirs = shards[overlap.shard][overlap.shard_start : overlap.shard_stop]
        assert ours.size > 0
        assert np.array_equal(ours, theirs)
    assert sum(overlap.machine_stop - overlap.machine_start for overlap in layout.overlaps) == layout.size
    assert layout.overlaps == tuple(o for m in range(len(machines)) for o in layout.shards_of(m))
    assert sorted(layout.overlaps) == sorted(o for k in range(layout.shards) for o in layout.machines_of(k))


@given(layouts())
def test_shards_differ_by_one_number_at_most(layout: Layout) -> None:
    sizes = [layout.shard_size(shard) for shard in range(layout.shards)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("machines", "shards", "says"),
    [
        ([[("a", 0, 6)]], 0, "use 1 or more"),
        ([[("b", 0, 6)]], 1, "parameter 'b', whose shape is not given"),
        ([[("a", 0, 7)]], 1, "leaves parameter 'a', which has 6 numbers"),
        ([[("a", 0, 3)], [("a", 4, 6)]], 1, r"no machine holds 'a' \[3:4\]"),
        ([[("a", 0, 3)]], 1, r"no machine holds 'a' \[3:6\]"),
        ([[]], 1, r"no machine holds 'a' \[0:6\]"),
        ([[("a", 0, 4)], [("a", 3, 6)]], 1, r"several machines hold 'a' \[3:4\]"),
        ([[("a", 0, 6)], [("a", 1, 2)]], 1, r"several machines hold 'a' \[1:6\]"),
    ],
)
def test_what_does_not_cover_is_refused(
    machines: list[list[tuple[str, int, int]]], shards: int, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Layout(tuple(tuple(Slot(*slot) for slot in slots) for slots in machines), {"a": (2, 3)}, shards)


def test_it_prints_who_keeps_what_where() -> None:
    layout = Layout(((Slot("a", 0, 4),), (Slot("a", 4, 6), Slot("b", 0, 3))), {"a": (2, 3), "b": (3,)}, 2)
    assert str(layout).splitlines() == [
        "9 parameters of 2 machines on 2 shards",
        "  machine 0 [0:4] = shard 0 [0:4]",
        "  machine 1 [0:5] = shard 1 [0:5]",
    ]
    assert layout.slots_of(1) == (Slot("a", 4, 6), Slot("b", 0, 3))
