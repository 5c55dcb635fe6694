"""Kernels on a device of torch, tested as those of a CPU: against definitions, differences, in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import counted
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.numerics.philox import key_of
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    Conv2D,
    Dense,
    L2Pool2D,
    LocalContrastNormalisation2D,
    MaxPool2D,
    SoftmaxCrossEntropy,
)
from tests.draws import examples
from tests.kernels import dense_cases, loss_cases
from tests.kernels.cases import Case, activations, batches, case, cut_points, pictures, play, seeds
from tests.kernels.dense_cases import PRECISIONS
from tests.kernels.drawn_layers import (
    POOLS,
    convolution_cases,
    dense_shapes,
    layers_and_inputs,
    locally_connected,
    normalisations,
    pools,
)
from tests.kernels.loss_cases import LABELLED, LOSSES, Evaluated
from tests.kernels.test_layer_forms import LAYERS as FORMS
from tests.kernels.test_layer_forms import Data, mask, ones
from tests.on_torch.on_device import DEVICES, on_device, tensors_at
from tests.properties.dense import (
    assert_blocks_equal_whole,
    assert_blocks_round_once,
    assert_rows_written_or_added,
)
from tests.properties.kernels import assert_true
from tests.properties.layers import (
    assert_nan_stays_in_neighbourhood,
    assert_patch_on_padding_is_bias,
    assert_ties_and_zeros,
)
from tests.properties.losses import (
    assert_counts_right_examples,
    assert_large_scores_stay_finite,
    assert_loss_and_errors_of_the_mean,
    assert_nan_score_shows_in_loss,
)

pytestmark = pytest.mark.parametrize("device", DEVICES)
pools_and_pictures = st.tuples(pools(), st.tuples(pictures()))
any_layer = st.one_of(
    pools_and_pictures,
    st.tuples(normalisations(), st.tuples(pictures())),
    layers_and_inputs(),
    st.tuples(locally_connected(), st.just([(7, 6, 2)])),
    st.tuples(st.sampled_from(FORMS), st.sampled_from([[(5,)], [(4, 3)], [(3, 2, 2)]])),
    st.tuples(st.builds(Dense, st.integers(1, 6), activation=activations), st.tuples(dense_shapes)),
)


@given(st.data(), any_layer, batches, seeds)
@settings(max_examples=examples(40))
def test_equals_its_node_definition_whole_and_in_pieces(
    device: str, data: st.DataObject, drawn: tuple[Any, Any], batch: int, seed: int
) -> None:
    given_case = case(drawn[0], *drawn[1], batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    with on_device(device) as kernels:
        assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), atol=1e-8)
    assert all(isinstance(kernel, LayerFormKernel) for kernel in kernels)


@given(st.data(), convolution_cases())
@settings(max_examples=examples(12))
def test_a_convolution_does_too(device: str, data: st.DataObject, given_case: Case) -> None:
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    with on_device(device):
        assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


ROUNDED = [
    (MaxPool2D(3, stride=2), [(9, 7, 4)]),
    (MaxPool2D(3, stride=2, padding="same"), [(8, 6, 4)]),
    (AveragePool2D(3, stride=2, padding="same"), [(8, 6, 4)]),
    (AveragePool2D(3, stride=2, padding="same", count_include_pad=False), [(8, 6, 4)]),
    (AveragePool2D(3, stride=2), [(9, 7, 4)]),
    (L2Pool2D(2), [(8, 8, 3)]),
    (LocalContrastNormalisation2D(3), [(6, 5, 2)]),
    (Conv2D(6, 3, stride=2, padding=1, groups=2, activation="tanh"), [(9, 8, 4)]),
    (Activation("tanh"), [(5, 3)]),
    (Add(), [(5, 3)] * 3),
]


@pytest.mark.parametrize(("layer", "shapes"), ROUNDED)
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_in_bfloat16_it_rounds_what_it_stores(
    device: str, layer: Any, shapes: list[tuple[int, ...]], cuts: tuple[int, ...]
) -> None:
    given_case = case(layer, *shapes, batch=9, dtype=np.float32).rounded
    with on_device(device):
        played = play(given_case, *cuts)
    assert played.state.dtype == np.uint16
    assert_true(given_case, played, rtol=2.0**-6, atol=2.0**-4)


@pytest.mark.parametrize("pool", POOLS)
def test_ties_and_zeros_as_the_definition_says(device: str, pool: Any) -> None:
    with on_device(device):
        assert_ties_and_zeros(pool)


def test_a_patch_on_the_padding_alone_has_the_state_of_its_bias(device: str) -> None:
    with on_device(device):
        assert_patch_on_padding_is_bias()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_dense_layer_in_blocks_and_in_runs_of_rows(device: str, precision: str) -> None:
    with on_device(device, dense_cases):
        for activation, use_bias in (("tanh", True), ("linear", False)):
            assert_blocks_equal_whole([(3, 6), (0, 3)], activation, use_bias, precision)
        assert_rows_written_or_added(precision)


def test_a_sum_of_blocks_in_bfloat16_is_rounded_once(device: str) -> None:
    with on_device(device, dense_cases):
        assert_blocks_round_once()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_sends_the_errors_of_the_mean(device: str, loss: Any) -> None:
    with on_device(device, loss_cases):
        assert_loss_and_errors_of_the_mean(loss)


@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_a_loss_bears_extremes_and_counts_what_is_right(device: str, cuts: tuple[int, ...]) -> None:
    with on_device(device, loss_cases):
        for loss in LOSSES[:3]:
            assert_large_scores_stay_finite(loss, cuts)
        for loss in LABELLED:
            assert_nan_score_shows_in_loss(loss, cuts)
            assert_counts_right_examples(loss, cuts)


@given(
    loss=st.sampled_from(LOSSES),
    n=st.integers(2, 9),
    cuts=st.lists(st.integers(1, 8), max_size=3),
    seed=seeds,
)
@settings(max_examples=examples(20))
def test_machines_with_some_of_the_scores_agree(
    device: str, loss: Any, n: int, cuts: list[int], seed: int
) -> None:
    given_case = loss_cases.given_case(loss, n=n, seed=seed)
    with on_device(device, loss_cases):
        alone, together = (
            Evaluated(given_case),
            Evaluated(given_case, *(cut for cut in cuts if cut < n)),
        )
        np.testing.assert_allclose(together.errors, alone.errors, rtol=1e-12, atol=1e-15)
        assert together.metrics() == pytest.approx(alone.metrics())
        np.testing.assert_allclose(together.state, alone.state, rtol=1e-12)


def test_a_label_that_is_no_class_is_refused_when_the_loss_is_evaluated(device: str) -> None:
    target = np.array([[1, 5, 0]])
    given_case = case(SoftmaxCrossEntropy(), (5,), batch=3, target=target)
    with on_device(device, loss_cases):
        evaluated = Evaluated(given_case)
        with pytest.raises(ValueError, match="was given the label 5; with 5 scores, labels are 0 to 4"):
            evaluated.metrics(3)
        assert evaluated.metrics(1)[0] > 0


def test_a_state_that_is_no_number_spreads_over_its_neighbourhood_alone(device: str) -> None:
    with on_device(device):
        assert_nan_stays_in_neighbourhood()


def test_the_bits_of_a_mask_are_those_of_a_cpu(device: str) -> None:
    """By torch's arithmetic, of any rows; the host's tensors take compiled loops, so both are called here."""
    there, data = tensors_at(device), Data([9, 4, 7], visit=2, seed=5)
    expected = mask(ones((5, 6), 3), (1, 4), data)
    examples = data.numbers(0, 3)
    bits = counted._on_device(key_of(5, "drop"), 2, examples, 6, 24, there).reshape(3, 6, 3)
    kept = bits.cpu() >= 2**30 - 2**31
    np.testing.assert_array_equal(kept.numpy(), expected > 0)
