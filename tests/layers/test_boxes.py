"""Sets of boxes behave as sets of places, and each set is written in one way."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Patch, Region, rows

Box = tuple[int, ...]
CORNER = Region(((0, 1), (5, 7), (0, 4)))
ends = st.tuples(st.integers(0, 7), st.integers(0, 7))
boxes = st.lists(st.tuples(ends, ends).map(lambda axes: (*axes[0], *axes[1])), max_size=6)


def members(of: rows.Rows) -> set[tuple[int, int]]:
    return {place for a, b, c, d in of for place in product(range(a, b), range(c, d))}


def is_normal(of: rows.Rows) -> bool:
    """Bands that begin where columns change, and in each band runs that do not touch."""
    bands = [(band, [box[2:] for box in of if box[:2] == band]) for band in dict.fromkeys(b[:2] for b in of)]
    ascending = list(of) == sorted(of) and all(a < b and c < d for a, b, c, d in of)
    apart = all(one[1] < other[0] for _, runs in bands for one, other in pairwise(runs))
    differ = all(
        one[1] < other[0] or (one[1] == other[0] and runs != more)
        for (one, runs), (other, more) in pairwise(bands)
    )
    return ascending and apart and differ


@given(boxes, boxes)
def test_operations_are_those_of_sets(some: list[Box], others: list[Box]) -> None:
    left, right = rows.union(some), rows.union(others)
    for found, expected in (
        (left, members(tuple(some))),
        (rows.union(left, right), members(left) | members(right)),
        (rows.intersection(left, right), members(left) & members(right)),
        (rows.difference(left, right), members(left) - members(right)),
    ):
        assert members(found) == expected
        assert is_normal(found)
    assert rows.overlap(left, right) == bool(members(left) & members(right))
    assert rows.count(left) == len(members(left))
    assert members((rows.bounds(left),)) >= members(left) if left else rows.bounds(left) == (0, 0)


@given(boxes)
def test_equal_sets_are_equal_tuples(drawn: list[Box]) -> None:
    of = rows.union(drawn)
    assert rows.union((row, row + 1, column, column + 1) for row, column in members(of)) == of
    assert rows.parse(rows.text(of)) == of


def test_text_is_what_programs_print() -> None:
    assert rows.text(((0, 3, 4, 8), (3, 5, 0, 2))) == "0:3x4:8,3:5x0:2"
    with pytest.raises(ValueError, match="write start:stop, for example 0:3 or 0:3x4:8"):
        rows.parse("0:3x4")


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
    heard = patch.source_rows((0, shape[0], left, right), shape, source, boxes=True)
    low, high = (rows.bounds(heard)[2], rows.bounds(heard)[3]) if heard else (0, extent[1])
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
