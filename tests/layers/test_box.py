"""Boxes, and sets of them, which behave as sets of places and are written in one way each."""

from __future__ import annotations

import pickle
from itertools import groupby, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Box, BoxSet, Patch
from partita.layers.box import NOTHING

CORNER = Box(((0, 1), (5, 7), (0, 4)))
ends = st.tuples(st.integers(0, 7), st.integers(0, 7))


def boxes_of(axes: int) -> st.SearchStrategy[list[Box]]:
    return st.lists(st.tuples(*[ends] * axes).map(Box), max_size=6)


drawn = st.integers(1, 3).flatmap(boxes_of)
pairs = st.integers(1, 3).flatmap(
    lambda axes: st.tuples(*[st.lists(st.tuples(*[ends] * axes).map(Box), max_size=6)] * 2)
)


def members(boxes: BoxSet) -> set[tuple[int, ...]]:
    return {place for box in boxes for place in product(*(range(*span) for span in box))}


def is_normal(boxes: BoxSet) -> bool:
    """Ascending; bands that begin where the cross-section changes; spans of the last axis do not touch."""
    if not boxes:
        return True
    bands = [
        (span, BoxSet(Box(box[1:]) for box in band)) for span, band in groupby(boxes, lambda box: box[0])
    ]
    ascending = list(boxes) == sorted(boxes) and all(start < stop for (start, stop), _ in bands)
    if len(boxes[0]) == 1:
        return ascending and all(one[0][1] < other[0][0] for one, other in pairwise(boxes))
    differ = all(
        one[1] < other[0] or (one[1] == other[0] and section != more)
        for (one, section), (other, more) in pairwise(bands)
    )
    return ascending and differ and all(is_normal(section) for _, section in bands)


@given(pairs)
def test_operations_are_those_of_sets(boxes: tuple[list[Box], list[Box]]) -> None:
    left, right = (BoxSet.union(some) for some in boxes)
    one, other = (members(BoxSet(some)) for some in boxes)
    for found, expected in (
        (left, one),
        (left | right, one | other),
        (left & right, one & other),
        (left - right, one - other),
        (left.rows, {place[:1] for place in one}),
    ):
        assert members(found) == expected
        assert is_normal(found)
    assert left.overlaps(right) == bool(one & other)
    assert left.size == len(one)
    assert left.spans == tuple(box[0] for box in left.rows)
    if left:
        assert left.hull == Box((min(axis), max(axis) + 1) for axis in zip(*one, strict=True))


@given(drawn)
def test_equal_sets_are_equal_tuples(boxes: list[Box]) -> None:
    found = BoxSet.union(boxes)
    assert BoxSet.union(Box((n, n + 1) for n in place) for place in members(found)) == found
    assert BoxSet.parse(str(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_empty_set_has_no_rows() -> None:
    assert NOTHING == BoxSet.of_rows() == BoxSet.of_rows((2, 2)) == BoxSet.parse("")
    assert NOTHING.hull == Box(((0, 0),))
    assert NOTHING.size == 0 and str(NOTHING) == ""


def test_text_is_what_programs_print() -> None:
    assert str(BoxSet.of_rows((0, 3), (5, 8))) == "0:3,5:8"
    assert (
        str(BoxSet.of_rows((0, 3)).across((4, 8)) | BoxSet.of_rows((3, 5)).across((0, 2)))
        == "0:3x4:8,3:5x0:2"
    )


@pytest.mark.parametrize("written", ["3", "1:2,7", "a:b", "1:", "0:3x4"])
def test_what_is_no_set_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"is not a run of rows; write start:stop|invalid literal"):
        BoxSet.parse(written)


def test_a_box_counts_its_nodes_and_prints_itself() -> None:
    box = Box(((2, 5), (0, 4)))
    assert box.shape == (3, 4) and box.size == 12
    assert box.rows == (2, 5) and box.columns == (0, 4)
    assert box.bounds == ((2, 5), (0, 4))
    assert str(box) == "[2:5, 0:4]" and box.text == "2:5x0:4"
    assert repr(box) == "Box(((2, 5), (0, 4)))"


def test_a_box_of_some_axes_is_whole_on_the_others() -> None:
    assert Box.whole((3, 2)) == Box(((0, 3), (0, 2)))
    assert Box.of_rows(1, 2, shape=(3, 2)) == Box.of_rows(1, 2).over((3, 2)) == Box(((1, 2), (0, 2)))
    assert Box.of_rows(1, 2, shape=(3, 2)).on(1) == Box.of_rows(1, 2)


def test_an_empty_box_has_no_rows() -> None:
    for empty in (Box(((4, 2), (0, 3))), Box(((1, 2), (3, 3)))):
        assert empty.size == 0
        assert empty.rows == (0, 0)
        assert empty.on(2) == Box(((0, 0), (0, 0)))


extents = st.tuples(st.integers(3, 9), st.integers(3, 9))


@given(st.data(), extents, st.booleans())
def test_a_part_of_a_picture_is_wired_as_it_is_in_the_whole(
    data: st.DataObject, extent: tuple[int, int], per_channel: bool
) -> None:
    """Node by node: the senders of a tile's node are those of the whole, counted from the tile's input on."""
    draw = data.draw
    size = tuple(draw(st.integers(1, 3)) for _ in extent)
    dilation = tuple(
        draw(st.integers(1, max(1, (e - 1) // max(1, n - 1)))) for e, n in zip(extent, size, strict=True)
    )
    reach = [(n - 1) * step for n, step in zip(size, dilation, strict=True)]
    pairs = tuple((draw(st.integers(0, most)), draw(st.integers(0, most))) for most in reach)
    padding = draw(st.sampled_from([0, "same", pairs]))
    stride = tuple(draw(st.integers(1, 3)) for _ in extent)
    patch = Patch(size, stride, padding, per_channel, dilation)
    source = (*extent, 2)
    shape = patch.shape(source, None if per_channel else (3,))
    left = draw(st.integers(0, shape[1] - 1))
    right = draw(st.integers(left + 1, shape[1]))
    senders_read = patch.source_rows(Box(((0, shape[0]), (left, right))), shape, source, columns=True)
    low, high = senders_read.hull.columns or (0, extent[1])
    window = draw(st.integers(0, low)), draw(st.integers(high, extent[1]))
    part = patch.within((left, right), window, shape, source)
    local, width = (shape[0], right - left, shape[2]), window[1] - window[0]
    _, found = part.edges((0, shape[0]), local, (extent[0], width, 2))
    _, whole = patch.edges((0, shape[0]), shape, source)
    expected = whole.reshape(*shape, -1)[:, left:right].reshape(-1)
    row, column, channel = expected // (2 * extent[1]), expected // 2 % extent[1], expected % 2
    moved = (row * width + column - window[0]) * 2 + channel
    assert ((found == -1) == (expected == -1)).all()
    assert (found[found >= 0] == moved[expected >= 0]).all()


def test_padding_may_differ_at_the_ends_of_an_axis() -> None:
    patch = Patch(3, padding=((1, 0), (0, 2)))
    assert patch.shape((5, 7, 1), (4,)) == (4, 7, 4)
    assert Patch(3, padding=((1, 1), 0)).shape((5, 7, 1), (4,)) == Patch(3, padding=(1, 0)).shape(
        (5, 7, 1), (4,)
    )
    assert [str(region) for region in patch.sources(CORNER, (5, 7, 1))] == ["[0:2, 5:7, 0:1]"]
    for wrong in (((1, 0), (0, -2)), ((1, 0, 0), (0, 2)), ((1, 0), (0, "same"))):
        with pytest.raises(ValueError, match=r"write a pair of whole numbers of at least 0 for each axis"):
            Patch(3, padding=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the padding of a patch is \(0, 3\); it must be"):
        Patch(3, padding=((1, 0), (0, 3))).shape((5, 7, 1), (4,))
