"""`sources`, `source_rows` and `edges` agree, for any connectivity, region and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Box, Connectivity, Edges, Full, OneToOne, Patch
from partita.layers.connectivity import PADDING
from partita.layers.linear import Along
from partita.layers.parts import shifted
from partita.layers.reshape import AxesOf, SameOrder
from partita.layers.resize import Framed, Repeating

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Wired:
    """A connectivity between a grid and its input."""

    wiring: Connectivity
    source: Shape
    shape: Shape

    def senders(self, region: Box) -> set[int]:
        """Flat positions that the nodes of a region listen to, from the edges of the whole layer."""
        offsets, indices = self.wiring.edges((0, self.shape[0]), self.shape, self.source)
        axes = (range(start, stop) for start, stop in region.bounds)
        nodes = [np.ravel_multi_index(place, self.shape) for place in np.ndindex(*[len(a) for a in axes])]
        shifts = np.array([start for start, _ in region.bounds])
        nodes = [
            int(np.ravel_multi_index(tuple(np.array(place) + shifts), self.shape))
            for place in np.ndindex(*region.shape)
        ]
        senders_read = {int(i) for n in nodes for i in indices[offsets[n] : offsets[n + 1]]}
        return senders_read - {PADDING}


def positions(regions: tuple[Box, ...], shape: Shape) -> set[int]:
    flat = np.arange(math.prod(shape)).reshape(shape)
    return {
        int(i) for region in regions for i in flat[tuple(slice(*bounds) for bounds in region.bounds)].ravel()
    }


@st.composite
def patches(draw: st.DrawFn) -> Wired:
    n_axes = draw(st.integers(1, 2))
    spatial = tuple(draw(st.integers(1, 8)) for _ in range(n_axes))
    groups, per_channel = draw(st.sampled_from([(1, True), (1, False), (2, False), (3, False)]))
    source = (*spatial, groups * draw(st.integers(1, 2)))
    size = tuple(draw(st.integers(1, min(3, extent))) for extent in spatial)
    dilation = tuple(
        draw(st.integers(1, max(1, (extent - 1) // max(1, s - 1))))
        for extent, s in zip(spatial, size, strict=True)
    )
    stride = draw(st.one_of(st.integers(1, 4), st.tuples(*[st.integers(1, 4)] * n_axes)))
    reach = [(s - 1) * d for s, d in zip(size, dilation, strict=True)]
    padding = draw(
        st.one_of(st.sampled_from(["valid", "same"]), st.tuples(*(st.integers(0, r) for r in reach)))
    )
    wiring = Patch(
        size, stride=stride, padding=padding, per_channel=per_channel, dilation=dilation, groups=groups
    )
    filters = None if per_channel else (groups * draw(st.integers(1, 2)),)
    return Wired(wiring, source, wiring.shape(source, filters))


@st.composite
def edges(draw: st.DrawFn) -> Wired:
    source = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    nodes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    pairs = st.tuples(st.integers(0, math.prod(source) - 1), st.integers(0, math.prod(nodes) - 1))
    wiring = Edges(draw(st.lists(pairs, unique=True, max_size=12)), nodes=nodes)
    return Wired(wiring, source, wiring.shape(source, None))


@st.composite
def plain(draw: st.DrawFn) -> Wired:
    source = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    wiring = draw(st.sampled_from([OneToOne(), Along(0), Along(-1), Full()]))
    if isinstance(wiring, OneToOne):
        nodes = None if type(wiring) is OneToOne else (draw(st.integers(1, 3)),)
        return Wired(wiring, source, wiring.shape(source, nodes))
    return Wired(Full(), source, tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))))


@st.composite
def copied(draw: st.DrawFn) -> Wired:
    source = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    kind, axis = draw(st.integers(0, 4)), draw(st.integers(0, len(source) - 1))
    if kind == 0:
        order = tuple(draw(st.permutations(range(len(source)))))
        wiring: Connectivity = AxesOf(order)
    elif kind == 1:
        wiring = SameOrder(draw(st.sampled_from([(-1,), (source[-1], -1), (-1, source[0])])))
    elif kind == 2:
        wiring = Repeating(draw(st.integers(1, 3)))
    elif kind == 3:
        pair = st.tuples(st.integers(0, 2), st.integers(0, 2))
        wiring = Framed(1, per_channel=True, margins=tuple(draw(pair) for _ in source[1:]))
    else:
        shape = list(source)
        shape[axis] = draw(st.integers(1, 6))
        by, step = draw(st.integers(-3, 3)), draw(st.integers(1, 3))
        return Wired(shifted(axis, by, step), source, tuple(shape))
    return Wired(wiring, source, wiring.shape(source, None))


anything = st.one_of(patches(), edges(), plain(), copied())


def regions(shape: Shape) -> st.SearchStrategy[Box]:
    axes = [
        st.tuples(st.integers(0, extent), st.integers(0, extent)).map(lambda pair: (min(pair), max(pair)))
        for extent in shape
    ]
    return st.tuples(*axes).map(Box)


@given(st.data(), anything)
def test_source_rows_are_those_of_the_edges(data: st.DataObject, wired: Wired) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, wired.shape[0])] * 2)))
    senders_read = wired.senders(Box.of_rows(start, stop, shape=wired.shape))
    stride = math.prod(wired.source[1:])
    found = wired.wiring.source_rows(Box.of_rows(start, stop), wired.shape, wired.source)
    rows = {row for a, b in found.spans for row in range(a, b)}
    assert rows == {i // stride for i in senders_read}


@given(st.data(), anything)
def test_sources_hold_every_sender_of_a_region(data: st.DataObject, wired: Wired) -> None:
    region = data.draw(regions(wired.shape))
    found = wired.wiring.sources(region, wired.source)
    senders_read, held = wired.senders(region), positions(found, wired.source)
    assert senders_read <= held
    assert all(box.size for box in found)
    if isinstance(wired.wiring, OneToOne | Full):
        assert senders_read == held
    starts = [box.bounds[0] for box in found]
    assert starts == sorted(starts)


@given(st.data(), anything)
def test_edges_of_some_rows_are_a_slice_of_those_of_all(data: st.DataObject, wired: Wired) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, wired.shape[0])] * 2)))
    offsets, indices = wired.wiring.edges((0, wired.shape[0]), wired.shape, wired.source)
    stride = math.prod(wired.shape[1:])
    some_offsets, some = wired.wiring.edges((start, stop), wired.shape, wired.source)
    assert some_offsets[0] == 0
    expected = offsets[start * stride : stop * stride + 1]
    np.testing.assert_array_equal(some_offsets, expected - expected[0])
    np.testing.assert_array_equal(some, indices[expected[0] : expected[-1]])


@given(anything)
def test_fan_in_is_the_most_edges_of_a_node(wired: Wired) -> None:
    offsets, indices = wired.wiring.edges((0, wired.shape[0]), wired.shape, wired.source)
    assert len(offsets) == math.prod(wired.shape) + 1
    assert offsets[-1] == len(indices)
    assert int(np.diff(offsets).max()) == wired.wiring.fan_in(wired.source)
    assert ((indices >= PADDING) & (indices < math.prod(wired.source))).all()


def test_a_patch_sees_rows_columns_then_channels() -> None:
    _, indices = Patch(2).edges((0, 1), (2, 2, 1), (3, 3, 2))
    assert indices[:8].tolist() == [0, 1, 2, 3, 6, 7, 8, 9]


def test_same_padding_keeps_places_at_each_stride() -> None:
    assert Patch(3, padding="same").shape((5, 7, 1), (4,)) == (5, 7, 4)
    assert Patch(3, stride=2, padding="same").shape((5, 7, 1), (4,)) == (3, 4, 4)
    assert Patch(3, dilation=2, padding="same").shape((5, 7, 1), (4,)) == (5, 7, 4)


def test_a_dilated_patch_leaves_nodes_out() -> None:
    wiring = Patch(2, dilation=(2, 3))
    _, indices = wiring.edges((0, 1), (1, 1, 1), (3, 4, 1))
    assert indices.tolist() == [0, 3, 8, 11]
    assert wiring.source_rows(Box.of_rows(0, 1), (1, 1, 1), (3, 4, 1)).spans == ((0, 1), (2, 3))


def test_a_box_leaves_nothing_out() -> None:
    assert Patch(3, stride=2, padding=1).is_box
    assert Patch((3, 1), dilation=(1, 1)).is_box
    for holed in (Patch(2, dilation=(1, 2)), Patch(2, groups=2), Patch(2, per_channel=True)):
        assert not holed.is_box


def test_a_filter_reads_the_channels_of_its_group() -> None:
    _, indices = Patch(1, groups=2).edges((0, 1), (1, 1, 4), (1, 1, 6))
    assert indices.reshape(4, 3).tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]


def test_edges_by_sender_whatever_their_order() -> None:
    wiring = Edges([(2, 0), (0, 0), (1, 2)], nodes=3)
    offsets, indices = wiring.edges((0, 3), (3,), (3,))
    assert offsets.tolist() == [0, 2, 2, 3]
    assert indices.tolist() == [0, 2, 1]
    assert wiring.row_offsets == (0, 2, 2, 3)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Patch(0), "size of a patch is 0; write a whole number of at least 1"),
        (lambda: Patch(2, stride=0), "stride of a patch is 0"),
        (lambda: Patch(2, padding=2).shape((4, 4, 1), None), "must be 'valid', 'same' or 0 to 1"),
        (lambda: Patch((2, 2, 2)).shape((4, 4, 1), None), "does not name the 2 spatial axes"),
        (lambda: Patch(5).shape((4, 4, 1), None), "does not fit into an input of shape"),
        (lambda: Patch(1).shape((4,), None), r"declare it as \(4, 1\)"),
        (lambda: Patch(1, per_channel=True).shape((4, 1), (2,)), "keeps the channels"),
        (lambda: Patch(2, dilation=0), "dilation of a patch is 0"),
        (lambda: Patch(2, dilation=3, padding=4).shape((9, 1), None), "must be 'valid', 'same' or 0 to 3"),
        (lambda: Patch(1, groups=0), "number of groups of a patch is 0"),
        (lambda: Patch(1, groups=2, per_channel=True), "leave one of the two out"),
        (lambda: Patch(1, groups=2).shape((4, 3), (2,)), "3 channels and 2 filters do not fall into 2"),
        (lambda: Patch(1, groups=2).shape((4, 4), (3,)), "a number of groups that divides both"),
        (lambda: Patch(1).shape((4, 1), (2, 2)), "takes a number of filters"),
        (lambda: Full().shape((4,), None), "needs its number of nodes"),
        (lambda: OneToOne().shape((4,), (5,)), "has the grid of its input"),
        (lambda: Edges([(0, 0), (0, 0)], nodes=1), "given twice"),
        (lambda: Edges([(0, 1)], nodes=1), "receivers are 0 to 0"),
        (lambda: Edges([(-1, 0)], nodes=1), "starts at node -1; senders are counted from 0"),
        (lambda: Edges([(0, -1)], nodes=1), "leads to node -1; receivers are 0 to 0"),
        (lambda: Edges([(5, 0)], nodes=1).shape((4,), None), "starts at node 5, but the input has 4"),
        (lambda: Edges([(0, 0)], nodes=1).shape((4,), (1,)), "leave the number out"),
    ],
)
def test_mistakes_are_refused(declare: object, message: str) -> None:
    assert callable(declare)
    with pytest.raises(ValueError, match=message):
        declare()
