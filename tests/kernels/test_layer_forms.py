"""Layers by their `forward`: against their definitions, PyTorch's modules, and themselves in pieces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import ThreadPool
from partita.engine.kernels.dropout import DropoutKernel
from partita.engine.kernels.kernel import MicroBatch
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.layers import Activation, Dropout, Layer, LayerNorm, OneToOne, RMSNorm
from partita.layers.activations import BY_INPUT
from tests.draws import examples
from tests.kernels.cases import Case, batches, case, cut_points, play, seeds
from tests.properties.kernels import assert_true

LAYERS = [*map(Activation, BY_INPUT), LayerNorm(), RMSNorm(), LayerNorm(scale=False), RMSNorm(scale=False)]
SHAPES = st.sampled_from([(5,), (4, 3), (3, 2, 2)])


@given(st.data(), st.sampled_from([*LAYERS, Dropout(0.3)]), SHAPES, batches, seeds)
@settings(max_examples=examples(40))
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject, layer: Layer, shape: tuple[int, ...], batch: int, seed: int
) -> None:
    given_case = case(layer, shape, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


MODULES: dict[str, Any] = {
    "LayerNorm": lambda n: torch.nn.LayerNorm(n, eps=1e-5, dtype=torch.float64),
    "RMSNorm": lambda n: torch.nn.RMSNorm(n, eps=1e-5, dtype=torch.float64),
    "gelu": lambda n: torch.nn.GELU(),
    "silu": lambda n: torch.nn.SiLU(),
    "leaky_relu": lambda n: torch.nn.LeakyReLU(),
    "elu": lambda n: torch.nn.ELU(),
    "softplus": lambda n: torch.nn.Softplus(),
}


@pytest.mark.parametrize("layer", LAYERS[:7], ids=lambda layer: getattr(layer, "function", layer.kind))
def test_equals_the_module_of_pytorch(layer: Layer) -> None:
    """In float64 over three machines: output, gradient of the input and of the parameters."""
    given_case = case(layer, (6, 4), batch=3)
    module = MODULES[getattr(layer, "function", layer.kind)](4)
    for parameter, values in zip(module.parameters(), given_case.parameters, strict=True):
        parameter.data = torch.from_numpy(values)
    x = torch.from_numpy(given_case.inputs[0]).permute(2, 0, 1).contiguous().requires_grad_()
    expected = module(x)
    expected.backward(torch.from_numpy(given_case.error).permute(2, 0, 1))
    found = play(given_case, 2, 3)
    close = {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(found.state, expected.detach().permute(1, 2, 0), **close)
    np.testing.assert_allclose(found.errors[0], x.grad.permute(1, 2, 0), **close)
    for gradient, parameter in zip(found.gradients, module.parameters(), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad, **close)


@pytest.mark.parametrize("layer", [*LAYERS, Dropout(0.3)], ids=lambda layer: layer.kind)
def test_bfloat16_is_rounded_once(layer: Layer) -> None:
    given_case = case(layer, (6, 4), batch=5, dtype=np.float32).rounded
    assert_true(given_case, play(given_case, 2), rtol=0.02, atol=0.02)


class Data:
    """Examples of an epoch of a run."""

    def __init__(self, numbers: list[int], *, visit: int = 0, seed: int = 0) -> None:
        self.step, self.visit, self.seed, self._numbers = 0, visit, seed, np.array(numbers)
        self.position = 0

    def numbers(self, first: int, count: int) -> np.ndarray:
        return self._numbers[first : first + count]


def mask(given_case: Case, rows: tuple[int, int], data: Data, *, first: int = 0, **site: Any) -> np.ndarray:
    """The output of ones, in training, for some rows and the examples of a micro-batch; by both kernels."""
    context = replace(given_case.context(rows), training=True, **site)
    found = []
    for kind in (LayerFormKernel, DropoutKernel):
        kernel = kind(context, given_case.arrays(context), ThreadPool())
        kernel.begin(MicroBatch(data, first_example=first))
        kernel.forward()()
        found.append(kernel.arrays.output)
        kernel.backward_input(0, (rows,), accumulate=False)()
        kernel.backward_input(0, (rows,), accumulate=True)()
        twice = 2 * kernel.arrays.output * kernel.arrays.own_grad
        np.testing.assert_allclose(kernel.arrays.grad_input(0), twice, rtol=1e-12)
    np.testing.assert_array_equal(*found)
    return found[0]


def ones(shape: tuple[int, ...], batch: int, rate: float = 0.25) -> Case:
    found = case(Dropout(rate, name="drop"), shape, batch=batch)
    return replace(found, inputs=(np.ones_like(found.inputs[0]),))


def test_masks_are_equal_to_the_bit_for_any_rows_tiles_and_micro_batches() -> None:
    data = Data([9, 4, 7, 1, 3, 2], visit=2, seed=5)
    whole = mask(ones((5, 6, 3), 6), (0, 5), data)
    np.testing.assert_array_equal(np.unique(whole), [0, 1 / 0.75])
    for rows in ((0, 2), (2, 3), (3, 5)):
        np.testing.assert_array_equal(mask(ones((5, 6, 3), 6), rows, data), whole[slice(*rows)])
    for first in (0, 2, 4):
        found = mask(ones((5, 6, 3), 2), (0, 5), data, first=first)
        np.testing.assert_array_equal(found, whole[..., first : first + 2])
    tile = mask(ones((5, 2, 3), 6), (1, 4), data, columns=(3, 6))
    np.testing.assert_array_equal(tile, whole[1:4, 3:5])
    permuted = mask(ones((5, 6, 3), 6), (0, 5), Data([4, 9, 7, 1, 3, 2], visit=2, seed=5))
    np.testing.assert_array_equal(permuted[..., [1, 0, 2, 3, 4, 5]], whole)


def test_masks_change_with_epochs_and_seeds_and_drop_their_share() -> None:
    numbers = list(range(500))
    one = mask(ones((40, 5), 500), (0, 40), Data(numbers))
    assert abs((one == 0).mean() - 0.25) < 0.007  # 5 standard deviations of 100,000
    for other in (Data(numbers, visit=1), Data(numbers, seed=1)):
        assert abs(((one == 0) & (mask(ones((40, 5), 500), (0, 40), other) == 0)).mean() - 1 / 16) < 0.004


def test_an_evaluation_drops_nothing() -> None:
    given_case = ones((4, 3), 2)
    context = given_case.context()
    for kind in (LayerFormKernel, DropoutKernel):
        kernel = kind(context, given_case.arrays(context), ThreadPool())
        kernel.forward()()
        assert (kernel.arrays.output == 1).all()


@dataclass(frozen=True)
class Wrong(Layer):
    name: str | None = None
    definition = None
    connectivity = OneToOne()

    def shape(self, sources):
        return sources[0]

    def forward(self, step, inputs, parameters):
        return inputs[0].sum(0)


def test_an_output_of_another_shape_is_refused() -> None:
    message = r"Wrong 'mine': forward returned a tensor of shape \(3, 2\) for rows \(0, 4\); .*\(4, 3, 2\)"
    with pytest.raises(ValueError, match=message):
        play(case(Wrong(name="mine"), (4, 3), batch=2))
