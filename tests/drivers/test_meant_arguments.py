"""Arguments of Keras and PyTorch are answered with the argument that is meant."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from partita.engine import (
    LARS,
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    Cosine,
    Downpour,
    Momentum,
    RMSProp,
    Sandblaster,
    Session,
    StepDecay,
)
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    Conv2D,
    Dense,
    Layer,
    MaxPool2D,
    NodeDefinition,
    OneToOne,
    Patch,
    SoftmaxCrossEntropy,
)

MEANT: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (Conv2D, {"filters": 4, "kernel_size": 3, "strides": 2}, "did you mean 'stride'?"),
    (Conv2D, {"filters": 4, "kernel_size": 3, "stride_size": 2}, "did you mean 'stride'?"),
    (Conv2D, {"out_channels": 4, "kernel_size": 3}, "did you mean 'filters'?"),
    (Conv2D, {"units": 4, "kernel_size": 3}, "did you mean 'filters'?"),
    (Conv2D, {"in_channels": 1}, "leave it out: it follows from what the layer is called on"),
    (Conv2D, {"kernel_initializer": "he"}, "did you mean 'initialiser'?"),
    (Conv2D, {"dilation_rate": 2}, "did you mean 'dilation'?"),
    (Conv2D, {"bias": False}, "did you mean 'use_bias'?"),
    (Conv2D, {"usebias": False}, "did you mean 'use_bias'?"),
    (Dense, {"out_features": 4}, "did you mean 'units'?"),
    (Dense, {"filters": 4}, "did you mean 'units'?"),
    (Dense, {"units": 4, "bias_initializer": "zeros"}, r"did you mean 'bias_initialiser'"),
    (Dense, {"units": 4, "activaton": "relu"}, "did you mean 'activation'?"),
    (
        Dense,
        {"units": 4, "xyz": 1},
        "it takes units, activation, use_bias, initialiser, bias_initialiser, regulariser, trainable, name",
    ),
    (MaxPool2D, {"kernel_size": 3}, "did you mean 'pool_size'?"),
    (MaxPool2D, {"strides": 3}, "did you mean 'stride'?"),
    (AveragePool2D, {"count_include_padding": True}, "did you mean 'count_include_pad'?"),
    (Add, {"axis": 1}, "it takes name"),
    (SoftmaxCrossEntropy, {"from_logits": True}, "losses take scores, not probabilities"),
    (Activation, {"kind": "relu"}, "it takes "),
    (OneToOne, {"size": 3}, "it takes none"),
    (Patch, {"size": 3, "paddding": 1}, "did you mean 'padding'?"),
    (SGD, {"lr": 0.1}, "did you mean 'learning_rate'?"),
    (SGD, {"rate": 0.1}, "did you mean 'learning_rate'?"),
    (SGD, {"learning_rate": 0.1, "momentum": 0.9}, r"write Momentum\(learning_rate, momentum=0.9\)"),
    (Momentum, {"learning_rate": 0.1, "dampening": 0}, "there is none, as by default in PyTorch"),
    (Adam, {"learning_rate": 0.1, "eps": 1e-8}, "did you mean 'epsilon'?"),
    (Adam, {"learning_rate": 0.1, "beta_1": 0.9}, "did you mean 'betas'?"),
    (RMSProp, {"learning_rate": 0.1, "rho": 0.9}, "did you mean 'alpha'?"),
    (
        Adagrad,
        {"learning_rate": 0.1, "initial_accumulator_value": 0.1},
        "did you mean 'initial_accumulator'?",
    ),
    (Adagrad, {"learning_rate": 0.1, "lr_decay": 0.1}, "give a schedule for the learning rate"),
    (LARS, {"learning_rate": 0.1, "trust_coefficient": 0.1}, "did you mean 'trust'?"),
    (StepDecay, {"learning_rate": 0.1, "step_size": 3}, "did you mean 'every'?"),
    (Cosine, {"learning_rate": 0.1, "T_max": 3}, "did you mean 'steps'?"),
    (Downpour, {"optimiser": SGD(0.1)}, "did you mean 'optimizer'?"),
    (Downpour, {"rule": SGD(0.1)}, "did you mean 'optimizer'?"),
    (Downpour, {"lr": 0.1}, r"write optimizer=SGD\(0.05\), or another optimizer"),
    (Downpour, {"workers": 3}, "did you mean 'replicas'?"),
    (Downpour, {"batch_size": 3}, r"the batch is that of partition\(net, cluster, batch=...\)"),
    (Downpour, {"replcas": 3}, "did you mean 'replicas'?"),
    (Sandblaster, {"optimizer": LBFGS()}, "did you mean 'method'?"),
    (Sandblaster, {"weight_decay": 0.1}, "did you mean 'l2'?"),
    (Session, {"rule": SGD(0.1)}, "did you mean 'optimizer'?"),
    (LBFGS, {"history_size": 3}, "did you mean 'history'?"),
    (LBFGS, {"max_iter": 3}, "did you mean 'max_iterations'?"),
]


@pytest.mark.parametrize(("kind", "given", "answer"), MEANT)
def test_an_argument_that_is_not_there_is_answered(
    kind: Callable[..., Any], given: dict[str, Any], answer: str
) -> None:
    name = getattr(kind, "__name__", "")
    with pytest.raises(TypeError, match=rf"^{name} has no argument '\w+'; {answer}"):
        kind(**given)


def test_what_is_missing_is_still_reported_by_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'learning_rate'"):
        SGD()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "made", [Conv2D(4, 3, stride=2), Momentum(0.1), Downpour(replicas=2), LBFGS(history=3), Patch(2)], ids=str
)
def test_what_was_made_is_copied_and_sent_as_ever(made: Any) -> None:
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made
    assert cloudpickle.loads(cloudpickle.dumps(made)) == made


def test_a_class_of_the_users_takes_what_it_says() -> None:
    class Own(Layer):
        """A layer with a constructor of its own."""

        def __init__(self, strides: int, **more: Any) -> None:
            self.name, self.strides, self.more = None, strides, more

        connectivity = OneToOne()  # type: ignore[assignment]

        def shape(self, sources: Any) -> Any:
            return sources[0]

        @property
        def definition(self) -> NodeDefinition | None:
            return None

    own = Own(strides=2, units=3)
    assert (own.strides, own.more) == (2, {"units": 3})
