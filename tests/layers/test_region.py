"""Boxes of nodes."""

from __future__ import annotations

from partita.layers import Region


def test_counts_its_nodes_and_prints_itself() -> None:
    region = Region(((2, 5), (0, 4)))
    assert region.shape == (3, 4)
    assert region.size == 12
    assert region.rows == (2, 5)
    assert str(region) == "[2:5, 0:4]"


def test_whole_and_rows() -> None:
    assert Region.whole((3, 2)) == Region(((0, 3), (0, 2)))
    assert Region.of_rows(1, 2, shape=(3, 2)) == Region(((1, 2), (0, 2)))


def test_an_empty_region_has_no_rows() -> None:
    for empty in (Region(((4, 2), (0, 3))), Region(((1, 2), (3, 3)))):
        assert empty.size == 0
        assert empty.rows == (0, 0)
