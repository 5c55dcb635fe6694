"""The tables of senders and receivers: against the edges of the connectivity, without repetitions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from partita.engine.kernels.nodes import wiring as module
from partita.engine.kernels.nodes.wiring import Wiring
from partita.layers import Edges, Full, Node, OneToOne, Patch
from partita.layers.connectivity import PADDING
from tests.kernels.cases import case


def first_of(incoming: Any) -> Any:
    return incoming[0]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize(
    ("wiring", "nodes", "shape", "n_lists"),
    [
        (Full(), (3, 2), (4,), 1),
        (Patch(2, padding=1), (3,), (3, 4, 2), None),
        (Patch(2, per_channel=True), None, (3, 4, 2), None),
        (OneToOne(), None, (4, 2), None),
        (Edges([(0, 1), (3, 1), (2, 4)], nodes=5), None, (4,), None),
    ],
)
def test_each_node_reads_its_edges(
    monkeypatch: pytest.MonkeyPatch, at_once: int, wiring: Any, nodes: Any, shape: Any, n_lists: int | None
) -> None:
    monkeypatch.setattr(module, "_EDGES_AT_ONCE", at_once)
    given_case = case(Node(wiring, first_of, nodes=nodes), shape, batch=1)
    for rows in ((0, given_case.grid.n_rows), (1, given_case.grid.n_rows)):
        context = given_case.context(rows)
        found, first = Wiring.of(context), context.windows[0][0] * given_case.sources[0].nodes_per_row
        offsets, senders = wiring.edges(rows, given_case.grid.shape, shape)
        assert found.edges.tolist() == offsets[:-1].tolist()
        assert found.width == np.diff(offsets).max()
        for n, (start, stop) in enumerate(pairwise(offsets)):
            begin = found.firsts[n]
            senders_read = found.senders[begin : begin + found.counts[n]]
            expected = [s - first if s != PADDING else PADDING for s in senders[start:stop]]
            assert senders_read.tolist() == expected
            there = [s for s in expected if s != PADDING]
            assert (found.least[n], found.most[n]) == (min(there, default=2**31 - 1), max(there, default=-1))
        if n_lists is not None and at_once > 1:
            assert len(found.senders) == n_lists * found.width


def test_filters_at_a_place_share_a_list() -> None:
    given_case = case(Node(Patch(2), first_of, nodes=(8,)), (4, 4, 2), batch=1)
    assert len(Wiring.of(given_case.context()).senders) == 9 * 8
