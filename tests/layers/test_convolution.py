"""Convolutions as they are declared."""

from __future__ import annotations

import re
from typing import Any

import pytest

from partita.layers import Conv2D, Grid, Network

conv: Any = Conv2D


def placed(layer: Conv2D, shape: tuple[int, ...]) -> Grid:
    net = Network("declared")
    states = layer(net.input("picture", shape=shape))
    return net.graph()[states.name]


def test_its_nodes_share_one_weight_for_each_filter() -> None:
    grid = placed(Conv2D(64, 11, stride=4, padding=2), (224, 224, 3))
    assert (grid.name, grid.shape) == ("conv_2d", (55, 55, 64))
    weight, bias = grid.parameters
    assert (weight.name, weight.shape, weight.shared) == ("conv_2d.weight", (64, 11, 11, 3), True)
    assert (bias.name, bias.shape, bias.shared) == ("conv_2d.bias", (64,), True)
    assert weight.fan_in == 11 * 11 * 3
    assert grid.shares_weights
    assert weight.span((0, 3)) == (0, weight.size)
    assert weight.span((3, 55)) == (0, 0)
    assert grid.flops_per_node == 2 * 363 + 1


def test_groups_divide_the_channels_of_a_filter() -> None:
    grid = placed(Conv2D(6, (3, 1), groups=2, use_bias=False, dilation=(2, 1)), (9, 4, 8))
    assert grid.shape == (5, 4, 6)
    assert [parameter.shape for parameter in grid.parameters] == [(6, 3, 1, 4)]


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: conv(0, 3), "Conv2D: the number of filters is 0; write a whole number of at least 1"),
        (lambda: conv(4, "3"), "Conv2D: the size of a patch is '3'; write"),
        (lambda: conv(4, 3, dilation=0), "Conv2D: the dilation of a patch is 0; write"),
        (lambda: conv(4, 3, groups=1.5), "Conv2D: the number of groups of a patch is 1.5; write"),
        (lambda: conv(4, 3, activation="swish"), "Conv2D: there is no activation 'swish'; choose"),
        (
            lambda: placed(conv(4, 3, groups=2), (8, 8, 3)),
            "Conv2D 'conv_2d': 3 channels and 4 filters do not fall into 2 equal groups; choose",
        ),
        (lambda: placed(conv(4, 3), (8,)), "Conv2D 'conv_2d': the input has shape (8,); a picture is"),
        (
            lambda: placed(conv(4, 3, dilation=4), (8, 8, 1)),
            "Conv2D 'conv_2d': a patch of 3 does not fit into an input of shape (8, 8, 1)",
        ),
    ],
)
def test_mistakes_are_refused(declare: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        declare()
