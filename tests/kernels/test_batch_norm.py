"""The kernel of batch normalisation against the layer's `forward`, which autograd derives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array, Kernel, ThreadPool
from partita.engine.kernels.batch_norm import BatchNormKernel
from partita.engine.kernels.kernel import MicroBatch
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.layers import BatchNorm
from partita.partitioner.cluster.threads import ThreadShares
from tests.draws import examples
from tests.kernels.cases import Case, case

SHAPES = [(5,), (4, 3), (6, 5, 3), (3, 7, 70)]


def played(kernel: Kernel, real: int) -> list[Array]:
    """Output and gradients of a micro-batch; the gradients twice as large, by accumulation."""
    rows, parameters = kernel.context.rows, kernel.arrays.parameters
    assert kernel.arrays.grad_output is not None
    kernel.arrays.grad_output[..., real:] = 0
    kernel.begin(MicroBatch(real=real, mean_over=real + 3))
    kernel.forward()()
    middle = (rows[0] + rows[1]) // 2
    gradients = [np.full_like(one, np.nan) for one in parameters]
    for accumulate in (False, True):
        kernel.backward_input(0, ((rows[0], middle), (middle, rows[1])), accumulate=accumulate)()
        kernel.backward_parameters(gradients, accumulate=accumulate)()
    return [kernel.arrays.output, kernel.arrays.grad_input(0), *gradients]


def normal_case(layer: BatchNorm, shape: tuple[int, ...], batch: int, seed: int, dtype: type) -> Case:
    """A case whose running variances are positive, and whose inputs lie around 3."""
    found = case(layer, shape, batch=batch, seed=seed, dtype=dtype)
    mean, variance, *learnt = found.parameters
    inputs = (found.inputs[0] + dtype(3),)
    return replace(found, inputs=inputs, parameters=(mean, 0.5 + variance**2, *learnt))


@given(
    st.builds(BatchNorm, scale=st.booleans(), frozen_statistics=st.booleans(), momentum=st.just(0.3)),
    st.sampled_from(SHAPES),
    st.integers(2, 40),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 9),
)
@settings(max_examples=examples(20))
def test_equals_the_layers_forward_and_its_gradients(
    layer: BatchNorm,
    shape: tuple[int, ...],
    batch: int,
    padding: int,
    training: bool,
    dtype: type,
    seed: int,
) -> None:
    given_case, real = normal_case(layer, shape, batch, seed, dtype), max(batch - padding, 1)
    context = replace(given_case.context(), training=training)
    found, expected = (
        played(kind(context, given_case.arrays(context), ThreadPool(1)), real)
        for kind in (BatchNormKernel, LayerFormKernel)
    )
    compared = slice(None) if training else slice(1)  # an evaluation has no gradients
    for one, other in zip(found[compared], expected[compared], strict=True):
        size = np.abs(other[..., :real] if other.ndim > 1 else other).max()
        rounding = 2e-3 if real * np.prod(shape[:-1]) < 4 else 2e-5  # few numbers, almost no deviation
        close = 1e-9 if dtype is np.float64 else rounding
        np.testing.assert_allclose(one, other, rtol=close, atol=close * max(size, 1e-3))


@pytest.mark.parametrize("shape", SHAPES)
def test_threads_give_the_same_bits(shape: tuple[int, ...]) -> None:
    given_case = normal_case(BatchNorm(), shape, 9, 1, np.float32)
    context = replace(given_case.context(threads=3), training=True)
    pool = ThreadPool(3, shares=ThreadShares(1, 1, 1))
    found, expected = (
        played(BatchNormKernel(context, given_case.arrays(context), one), 8) for one in (pool, ThreadPool(1))
    )
    pool.close()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    """Differences from the mean are squared, not the numbers."""
    given_case = normal_case(BatchNorm(scale=False), (8, 8, 3), 16, 0, np.float32)
    shifted = replace(given_case, inputs=(given_case.inputs[0] + np.float32(4096),))
    context = replace(given_case.context(), training=True)
    output = played(BatchNormKernel(context, shifted.arrays(context), ThreadPool(1)), 16)[0]
    exact = shifted.inputs[0].astype(np.float64)
    exact -= exact.mean((0, 1, 3))[:, None]
    exact /= np.sqrt(exact.var((0, 1, 3)) + 1e-5)[:, None]
    np.testing.assert_allclose(output, exact, atol=1e-3)
