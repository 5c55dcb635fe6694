"""Local contrast normalisation as it is declared."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from partita.layers import Box, GroupNorm, LocalContrastNormalisation2D, Network

lcn: Any = LocalContrastNormalisation2D
grouped: Any = GroupNorm


def test_a_node_reads_itself_and_all_channels_around_it() -> None:
    layer = LocalContrastNormalisation2D(3)
    picture = Network("declared").input("picture", shape=(4, 5, 2))
    assert layer(picture).shape == (4, 5, 2)
    offsets, senders = layer.connectivity.edges((1, 2), (4, 5, 2), (4, 5, 2))
    assert np.diff(offsets).tolist() == [19] * 10
    senders_read = senders[19:38]  # of the second channel in row 1, column 0
    assert senders_read[0] == 11
    assert senders_read[1:].reshape(3, 3, 2).tolist() == [
        [[-1, -1], [0, 1], [2, 3]],
        [[-1, -1], [10, 11], [12, 13]],
        [[-1, -1], [20, 21], [22, 23]],
    ]
    assert layer.connectivity.source_rows(Box.of_rows(1, 2), (4, 5, 2), (4, 5, 2)).spans == ((0, 3),)


def test_weights_of_the_window_add_up_to_one_and_are_a_gaussian() -> None:
    rows, columns = LocalContrastNormalisation2D((5, 1), sigma=2.0).windows
    assert sum(rows) == pytest.approx(1.0)
    assert columns == (1.0,)
    assert rows[0] / rows[2] == pytest.approx(math.exp(-0.5))
    assert rows == rows[::-1]
    default, _ = LocalContrastNormalisation2D(8 + 1).windows
    assert default[0] / default[4] == pytest.approx(math.exp(-0.5 * (4 / 2.25) ** 2))


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: lcn(4), "LocalContrastNormalisation2D: the kernel size is 4; make it odd"),
        (lambda: lcn((3, 2)), "LocalContrastNormalisation2D: the kernel size is (3, 2); make it odd"),
        (lambda: lcn(0), "LocalContrastNormalisation2D: the size of a patch is 0; write"),
        (lambda: lcn(3, sigma=0), "LocalContrastNormalisation2D: sigma is 0; write a number above 0"),
        (lambda: lcn(3, floor="1"), "LocalContrastNormalisation2D: the floor is '1'; write"),
        (lambda: lcn(3, floor=math.nan), "LocalContrastNormalisation2D: the floor is nan; write"),
        (
            lambda: lcn(3)(Network("flat").input("row", shape=7)),
            "LocalContrastNormalisation2D 'local_contrast_normalisation_2d': the input has shape (7,);",
        ),
    ],
)
def test_mistakes_are_refused(declare: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        declare()


@pytest.mark.parametrize(
    ("layer", "shape", "sentence"),
    [
        (lambda: GroupNorm(0), (4, 6), "GroupNorm: the number of groups is 0; write a whole number"),
        (lambda: GroupNorm(2, epsilon=-1), (4, 6), "GroupNorm: epsilon is -1; write a number above 0"),
        (lambda: GroupNorm(4), (4, 6), "GroupNorm 'group_norm': 4 groups do not divide the 6 channels"),
        (
            lambda: GroupNorm(2),
            (6,),
            "GroupNorm 'group_norm': the input has shape (6,); it takes places with",
        ),
        (
            lambda: grouped(num_groups=2),
            (4, 6),
            "GroupNorm has no argument 'num_groups'; did you mean 'groups'?",
        ),
    ],
)
def test_groups_that_cannot_be(layer: Any, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(sentence)):
        layer()(Network("wrong").input("x", shape=shape))
