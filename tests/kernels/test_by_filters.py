"""Convolutions whose filters threads divide: the results of one thread, and PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from partita.engine.kernels import Array
from partita.engine.kernels.convolution.by_filters import ConvolutionByFilters
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Conv2D
from partita.partitioner.cluster.threads import ThreadShares
from tests.kernels.cases import Case, case

SETTINGS: dict[str, dict[str, Any]] = {
    "by a product": {"stride": 2, "padding": 1},  # more filters than places
    "uneven padding": {"padding": ((0, 2), (1, 0)), "dilation": (1, 2), "activation": "tanh"},
}


def results(given: Case, threads: int) -> tuple[list[Array], int]:
    """Output, gradient of the input and gradients of the parameters; and how many threads divided them."""
    context = given.context(threads=threads)
    arrays, pool = given.arrays(context), ThreadPool(threads, shares=ThreadShares(product=1))
    kernel = ConvolutionByFilters(context, arrays, pool)
    gradients = [np.full(one.shape, np.nan, one.dtype) for one in arrays.parameters]
    last = given.sources[0].n_rows
    calls = (
        kernel.forward(),
        kernel.backward_activation(),
        kernel.backward_input(0, ((2, last),), accumulate=False),  # rows for another machine come first
        kernel.backward_parameters(gradients),
        kernel.backward_input(0, ((0, 2),), accumulate=False),
    )
    kernel.backward_calls = 3
    for call in (*calls, *calls):
        if call is calls[0]:
            arrays.own_grad[...] = given.error
        call()
    pool.close()
    assert kernel._kept is None, "the last call frees what the forward pass keeps"
    return [arrays.output, arrays.grad_input(0), *gradients], kernel.gradient_shares


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_equals_pytorch(settings: dict[str, Any], threads: int) -> None:
    given = case(Conv2D(40, 3, **settings), (8, 7, 19), batch=3)
    found, shares = results(given, threads)
    assert shares == min(threads, 2)  # of 16 filters and more
    plain = dict(settings)
    function = plain.pop("activation", "linear")
    x = torch.from_numpy(given.inputs[0].transpose(3, 2, 0, 1).copy()).requires_grad_()
    weight = torch.from_numpy(given.parameters[0].transpose(0, 3, 1, 2).copy()).requires_grad_()
    bias = torch.from_numpy(given.parameters[1].copy()).requires_grad_()
    padded = x
    if not isinstance(plain["padding"], int):
        above, right = plain.pop("padding")
        padded = torch.nn.functional.pad(x, (*right, *above))
    output = torch.nn.functional.conv2d(padded, weight, bias, **plain)
    output = output if function == "linear" else getattr(torch, function)(output)
    grad = torch.from_numpy(given.error.transpose(3, 2, 0, 1).copy())
    of_x, of_weight, of_bias = torch.autograd.grad(output, (x, weight, bias), grad)
    pictures = (output.detach().permute(2, 3, 1, 0), of_x.permute(2, 3, 1, 0), of_weight.permute(0, 2, 3, 1))
    for one, expected in zip(found, (*pictures, of_bias), strict=True):
        np.testing.assert_allclose(one, expected.numpy(), rtol=1e-10, atol=1e-10)
