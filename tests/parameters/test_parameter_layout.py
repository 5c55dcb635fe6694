"""The layout covers everything once, whatever the cuts; vectors travel between whole, machine and shard."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import Layout, Slot, gather, scatter
from partita.engine.parameters.slots import common


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
    return Layout(ordered, shapes, shards=draw(st.integers(1, 6)), fragments=draw(st.integers(1, 6)))


@st.composite
def matrices(draw: st.DrawFn) -> Layout:
    """A matrix cut by columns, or by rows whose columns are cut, among vectors."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    met = [
        0,
        *sorted(draw(st.sets(st.integers(1, rows), max_size=2)) - {rows}),
        rows,
    ]
    slots: list[Slot] = [Slot("a", 0, 3)]
    for low, high in pairwise(met):
        cuts = sorted({0, columns, *draw(st.lists(st.integers(0, columns), max_size=3))})
        for start, stop in pairwise(cuts):
            first, last = low * columns + start, (high - 1) * columns + stop
            slots.append(Slot("m", first, last, stop - start, columns))
    slots.append(Slot("b", 0, 2))
    machines: list[list[Slot]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for slot in draw(st.permutations(slots)):
        draw(st.sampled_from(machines)).append(slot)
    shapes = {"a": (3,), "m": (rows, columns), "b": (2,)}
    return Layout(tuple(map(tuple, machines)), shapes, shards=draw(st.integers(1, 7)))


@given(layouts() | matrices())
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


@given(matrices(), matrices())
def test_what_two_layouts_have_in_common_is_found_run_by_run(one: Layout, other: Layout) -> None:
    """Numbers of one layout come where they belong in another, for any columns that these cut."""
    size = math.prod(one.shapes["m"])
    if one.shapes != other.shapes:
        return
    found, position = np.full(size, -1), np.arange(size)
    ours = [slot for slots in one.machines for slot in slots if slot.parameter == "m"]
    for slot in ours:
        vector = gather([slot], {"m": position}, np.int64)
        for theirs in (slot for slots in other.machines for slot in slots):
            place = np.full(theirs.size, -1)
            for shared in common(theirs, slot):
                place[shared.here : shared.here + shared.size] = vector[
                    shared.there : shared.there + shared.size
                ]
            if theirs.parameter == "m":
                numbers = theirs.of(found)
                numbers[...] = np.maximum(numbers, place.reshape(numbers.shape))
            else:
                assert (place == -1).all()
    assert np.array_equal(found, position)


@given(layouts() | matrices())
def test_an_overlap_is_the_same_numbers_on_both_sides(layout: Layout) -> None:
    position = np.arange(layout.size)
    machines = [position[a:b] for a, b in pairwise(layout.machine_starts)]
    shards = [position[a:b] for a, b in pairwise(layout.shard_starts)]
    assert [vector.size for vector in machines] == [layout.machine_size(m) for m in range(len(machines))]
    for overlap in layout.shared_ranges:
        ours = machines[overlap.machine][overlap.machine_start : overlap.machine_stop]
        theirs = shards[overlap.shard][overlap.shard_start : overlap.shard_stop]
        assert ours.size > 0
        assert np.array_equal(ours, theirs)
        low, high = layout.fragment_starts[overlap.fragment : overlap.fragment + 2]
        assert low <= ours[0] and ours[-1] < high
    places = [(one.machine, one.shard, one.fragment) for one in layout.shared_ranges]
    assert len({*places}) == len(places), "a machine has one range of a fragment on a shard"
    assert (
        sum(overlap.machine_stop - overlap.machine_start for overlap in layout.shared_ranges) == layout.size
    )
    assert layout.shared_ranges == tuple(o for m in range(len(machines)) for o in layout.shards_of(m))
    assert sorted(layout.shared_ranges) == sorted(
        o for k in range(layout.shards) for o in layout.machines_of(k)
    )


@given(layouts() | matrices())
def test_shards_and_fragments_differ_by_one_number_at_most(layout: Layout) -> None:
    for starts in (layout.shard_starts, layout.fragment_starts):
        sizes = [stop - start for start, stop in pairwise(starts)]
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


@pytest.mark.parametrize(
    ("slot", "says"),
    [
        (Slot("a", 0, 5, 2, 3), ""),
        (Slot("a", 0, 6, 2, 3), r"slot \[0:6\] by 2 of 3 leaves"),
        (Slot("a", 2, 6, 2, 3), "leaves"),
        (Slot("a", 0, 4, 4, 3), "leaves"),
        (Slot("a", 0, 6, 2, 4), "leaves"),
        (Slot("a", 3, 8, 2, 3), "leaves"),
        (Slot("a", 0, 6, 2, 0), "leaves"),
    ],
)
def test_invalid_columns_are_refused(slot: Slot, says: str) -> None:
    rest = Slot("a", 2, 6, 1, 3)
    if not says:
        assert Layout(((slot,), (rest,)), {"a": (2, 3)}, 1).size == 6
        return
    with pytest.raises(ValueError, match=says):
        Layout(((slot,), (rest,)), {"a": (2, 3)}, 1)


def test_columns_are_few_slots_on_any_shard() -> None:
    """The number of slots does not grow with the number of runs."""
    columns = [Slot("m", 0, 2559 * 2560 + 1280, 1280, 2560), Slot("m", 1280, 2560 * 2560, 1280, 2560)]
    layout = Layout(((columns[0],), (columns[1],)), {"m": (2560, 2560)}, shards=5)
    assert max(len(layout.slots_of(shard)) for shard in range(5)) <= 6
    assert sum(slot.size for shard in range(5) for slot in layout.slots_of(shard)) == 2560 * 2560


def test_a_layout_prints_its_ranges() -> None:
    layout = Layout(((Slot("a", 0, 4),), (Slot("a", 4, 6), Slot("b", 0, 3))), {"a": (2, 3), "b": (3,)}, 2)
    assert str(layout).splitlines() == [
        "9 parameters of 2 machines on 2 shards",
        "  machine 0 [0:4] = shard 0 [0:4]",
        "  machine 1 [0:5] = shard 1 [0:5]",
    ]
    assert layout.slots_of(1) == (Slot("a", 4, 6), Slot("b", 0, 3))
