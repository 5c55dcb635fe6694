"""Every built-in layer finds its kernel; what has none is refused by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from partita.engine.kernels import Call, LossKernel
from partita.engine.kernels.node import NodeKernel
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    BinaryCrossEntropy,
    Conv2D,
    Dense,
    HalfSquaredError,
    L2Pool2D,
    Layer,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Loss,
    MaxPool2D,
    NodeDefinition,
    OneVsRest,
    SoftmaxCrossEntropy,
)
from tests.kernels.cases import Case, case

LAYERS = [
    (Activation("relu"), 1),
    (Add(), 2),
    (AveragePool2D(), 1),
    (Conv2D(2, 2), 1),
    (Conv2D(33, 2, groups=1, padding=1), 1),
    (Dense(3), 1),
    (L2Pool2D(), 1),
    (LocalContrastNormalisation2D(3), 1),
    (LocallyConnected2D(2, 2), 1),
    (BinaryCrossEntropy(), 1),
    (MaxPool2D(), 1),
    (HalfSquaredError(), 1),
]
CLASSIFIERS = [SoftmaxCrossEntropy(), OneVsRest()]


@pytest.mark.parametrize(("layer", "n_inputs"), LAYERS, ids=lambda value: getattr(value, "kind", str(value)))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_built_in_layers_have_fast_kernels(layer: Layer, n_inputs: int, dtype: type) -> None:
    target = np.zeros((4, 4, 1, 2)) if isinstance(layer, Loss) else None
    kernel = case(layer, *[(4, 4, 1)] * n_inputs, batch=2, dtype=dtype, target=target).kernel()
    assert not isinstance(kernel, NodeKernel)
    assert isinstance(kernel, LossKernel) == isinstance(layer, Loss)


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_classifiers_too(loss: Loss) -> None:
    kernel = case(loss, (4,), batch=2, target=np.zeros((1, 2), np.int64)).kernel()
    assert isinstance(kernel, LossKernel)


def signatures() -> dict[str, int]:
    """Number of compiled signatures of each of our functions in this process."""
    ours = [module for name, module in sys.modules.items() if name.startswith("partita.engine.kernels.")]
    return {
        f"{module.__name__}.{name}": len(value.signatures)
        for module in ours
        for name, value in vars(module).items()
        if hasattr(value, "signatures")
    }


def prepared(given_case: Case, rows: tuple[int, int]) -> list[Call]:
    """Every call of the kernel of these rows."""
    kernel = given_case.kernel(given_case.context(rows))
    calls = [kernel.forward()]
    for source in range(1 if isinstance(kernel, LossKernel) else len(given_case.sources)):
        window = kernel.context.grad_windows[source]
        calls += [
            kernel.backward_input(source, (window,), accumulate=accumulate) for accumulate in (False, True)
        ]
    if isinstance(kernel, LossKernel):
        return [*calls, lambda: nothing_of(kernel.metrics(given_case.batch))]
    out = [np.zeros(p.shape, kernel.gradient_dtype) for p in kernel.arrays.parameters]
    return [*calls, kernel.backward_activation(), kernel.backward_parameters(out)]


def nothing_of(value: object) -> None:
    """Forgets it."""


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_no_step_waits_for_the_compiler(precision: str) -> None:
    """All compilation happens when a call is prepared."""
    drawn = [
        case(layer, *[(6, 6, 1)] * n_inputs, batch=2, dtype=np.float32, target=target)
        for layer, n_inputs in LAYERS
        for target in [np.zeros((6, 6, 1, 2)) if isinstance(layer, Loss) else None]
    ]
    labels = np.zeros((1, 2), np.int64)
    drawn += [case(loss, (4,), batch=2, dtype=np.float32, target=labels) for loss in CLASSIFIERS]
    for given_case in (each.rounded if precision == "bfloat16" else each for each in drawn):
        for rows in ((0, given_case.grid.n_rows), (0, 1)):
            calls = prepared(given_case, rows)
            built = signatures()
            for call in calls:
                call()
            assert signatures() == built, f"{given_case.grid.name} has compiled something in a step"


@dataclass(frozen=True)
class Unspoken(Activation):
    @property
    def definition(self) -> NodeDefinition | None:  # type: ignore[override]
        return None


@dataclass(frozen=True)
class OwnAdd(Add):
    @property
    def definition(self) -> NodeDefinition:
        return super().definition


@pytest.mark.parametrize(
    ("layer", "n_inputs", "why"),
    [
        (Unspoken("relu", name="mine"), 1, "has no node definition"),
    ],
)
def test_a_layer_that_nobody_can_play_is_refused(layer: Layer, n_inputs: int, why: str) -> None:
    with pytest.raises(ValueError, match=rf"'mine' has no kernel, and {why}; write its `forward`"):
        case(layer, *[(3,)] * n_inputs, batch=1).kernel()


def test_a_given_layer_is_not_played() -> None:
    given_case = case(Dense(1), (3,), batch=1)
    context = given_case.context()
    with pytest.raises(ValueError, match="Input 'input_0' has no kernel"):
        given_case.kernel(replace(context, grid=given_case.sources[0], sources=()))
