"""Every kind of layer answers misuse with one sentence: what was found, the rule, and what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import partita.layers
from partita.layers import LabelLoss, Layer, Loss, Network, ScoreLoss, SymbolicTensor

made: Any = partita.layers
BASES = (Layer, Loss, LabelLoss, ScoreLoss)


def over(*shapes: tuple[int, ...], **more: Any) -> list[SymbolicTensor]:
    """Inputs of these shapes in one network."""
    net = Network("n")
    return [net.input(f"x{n}", shape=shape, **more) for n, shape in enumerate(shapes)]


def scored(loss: Any, shape: tuple[int, ...]) -> Any:
    """A loss over scores of this shape."""
    net = Network("n")
    return loss(net.input("x", shape=shape), net.target("y"))


Case = tuple[Callable[[], Any], str]
PICTURE = r"a picture is \(height, width, channels\), for example \(28, 28, 1\)"
SEQUENCE = r"a sequence is \(positions, features\), for example \(12, 64\)"
FIT = "does not fit into an input of shape"
LAST = r"it is over the last axis; for another, call Permute\(...\) before and after it"
WHOLE = "write a whole number of at least 1"
CASES: dict[str, list[Case]] = {
    "Activation": [
        (lambda: made.Activation("gellu"), "there is no activation 'gellu'; did you mean 'gelu'?"),
        (lambda: made.Activation("relu", alpha=0.1), "for another, write a node: partita.layers.node"),
    ],
    "Add": [
        (lambda: made.Add()(*over((3,))), "give it two or more of the same shape"),
        (lambda: made.Add()(*over((3,), (4,))), r"the inputs have the shapes \(3,\) and \(4,\)"),
    ],
    "Attention": [
        (lambda: made.Attention(0, 2), f"the number of heads is 0; {WHOLE}"),
        (lambda: made.Attention(2, 2, dropout=0.1), r"call Dropout\(...\) on the result"),
    ],
    "AveragePool2D": [
        (lambda: made.AveragePool2D(9)(*over((4, 4, 1))), FIT),
        (lambda: made.AveragePool2D(kernel_size=2), "did you mean 'pool_size'?"),
    ],
    "BatchNorm": [
        (
            lambda: made.BatchNorm(64),
            "takes no arguments without a name, and 64 is one more; name it",
        ),
        (lambda: made.BatchNorm(axis=1), "channels are the last axis; leave it out"),
        (lambda: made.BatchNorm(epsilon=0), "epsilon is 0; write a number above 0"),
    ],
    "Bernoulli": [(lambda: made.Bernoulli(0.5), "takes no arguments without a name, and 0.5 is one more")],
    "Bias": [(lambda: made.Bias(initialiser="zero"), "did you mean 'zeros'?")],
    "BinaryCrossEntropy": [
        (lambda: made.BinaryCrossEntropy(pos_weight=2), "sample_weight"),
        (lambda: made.BinaryCrossEntropy(reduction="sum"), "losses are means over the examples"),
    ],
    "Concatenate": [
        (lambda: made.Concatenate()(*over((3,))), "give it two or more, equal but for axis 0"),
        (lambda: made.Concatenate(dim=1), "did you mean 'axis'?"),
    ],
    "Conv1D": [(lambda: made.Conv1D(3, 2)(*over((4, 4, 1))), r"a sequence is \(positions, channels\)")],
    "Conv2D": [
        (lambda: made.Conv2D(3, -1), f"the size of a patch is -1; {WHOLE}"),
        (lambda: made.Conv2D(3, 9)(*over((4, 4, 1))), FIT),
        (lambda: made.Conv2D(3, 2)(*over((4,))), PICTURE),
        (
            lambda: made.Conv2D(3, 2, groups=2)(*over((4, 4, 4))),
            "a number of groups that divides both",
        ),
    ],
    "Crop": [(lambda: made.Crop(3)(*over((4, 4, 1))), "nothing is left of an input of the shape")],
    "Dense": [
        (lambda: made.Dense(-3), f"the number of nodes is -3; {WHOLE}"),
        (lambda: made.Dense(3.5), "the number of nodes is 3.5"),
        (lambda: made.Dense(unit=3), "did you mean 'units'?"),
        (lambda: made.Dense(3, activation="rellu"), "there is no activation 'rellu'; did you mean 'relu'?"),
        (lambda: made.Dense(3, activation="gelu"), r"gelu is a layer of its own; .* Activation\(\"gelu\"\)"),
        (lambda: made.Dense(3, initialiser="glorott"), "did you mean 'glorot'?"),
        (lambda: made.Dense(3)(*over((4,), classes=9)), r"look them up first: Embedding\(9, units\)"),
    ],
    "DeepBeliefNet": [
        (lambda: made.DeepBeliefNet((3, 0)), "the numbers of units are"),
        (
            lambda: made.DeepBeliefNet((3, 2)).contrastive_divergence(over((4,))[0], 3),
            "there is no level 3; it has 2, from 1",
        ),
    ],
    "DenseTransposed": [
        (lambda: made.DenseTransposed(0), "the shape of the nodes is 0"),
        (lambda: made.DenseTransposed(3, weight=3), r"dense.parameter\('weight'\)"),
    ],
    "DepthwiseConv2D": [(lambda: made.DepthwiseConv2D(3)(*over((4, 4))), PICTURE)],
    "Dropout": [
        (lambda: made.Dropout(1.5), "the rate is 1.5; write a number of at least 0 and below 1"),
        (lambda: made.Dropout(p=0.5), "did you mean 'rate'?"),
    ],
    "Embedding": [
        (
            lambda: made.Embedding(9, 4)(*over((4,))),
            r"declare them: net.input",
        ),
        (lambda: made.Embedding(9, 4)(*over((4,), classes=10)), "has 9 classes, but 'x0' has 10; give it 10"),
        (lambda: made.Embedding(9, 4, padding_idx=9), "padding_idx is 9; write a class from 0 to 8"),
        (lambda: made.Embedding(num_embeddings=9), "did you mean 'classes'?"),
    ],
    "FeedForward": [
        (lambda: made.FeedForward(-1), f"the number of units is -1; {WHOLE}"),
        (lambda: made.FeedForward(3, activation="geluu"), "did you mean 'gelu'?"),
        (lambda: made.FeedForward(3)(*over((4,))), SEQUENCE),
    ],
    "Flatten": [(lambda: made.Flatten(start_dim=1), r"for other shapes, call Reshape\(...\)")],
    "GRU": [
        (lambda: made.GRU(hidden_size=3), "did you mean 'units'?"),
        (lambda: made.GRU(3)(*over((4,))), SEQUENCE),
    ],
    "GlobalAveragePool": [
        (lambda: made.GlobalAveragePool()(*over((4,))), "a pool needs places and a last axis of channels")
    ],
    "GlobalMaxPool": [(lambda: made.GlobalMaxPool(keepdims=True), r"call Reshape\(\(1, 1, -1\)\) on it")],
    "GroupNorm": [
        (lambda: made.GroupNorm(0), f"the number of groups is 0; {WHOLE}"),
        (lambda: made.GroupNorm(3)(*over((2, 4))), "3 groups do not divide the 4 channels"),
        (lambda: made.GroupNorm(2)(*over((4,))), r"for a row of features, write LayerNorm\(\)"),
    ],
    "HalfSquaredError": [(lambda: made.HalfSquaredError(loss_weight=float("nan")), "loss_weight is nan")],
    "Huber": [(lambda: made.Huber(-1), "delta is -1, not a finite number above 0; change it")],
    "KLDivergence": [
        (lambda: made.KLDivergence(log_target=True), "the target is a probability, not its logarithm"),
        (lambda: scored(made.KLDivergence(), (1,)), "give it one score for each class"),
    ],
    "L2Pool2D": [(lambda: made.L2Pool2D(2)(*over((4, 4))), PICTURE)],
    "LSTM": [
        (lambda: made.LSTM(-2), f"the number of units is -2; {WHOLE}"),
        (lambda: made.LSTM(3, activation="relu"), "gates are sigmoid and states tanh, as in PyTorch"),
        (lambda: made.LSTM(3, num_layers=2), "call one layer on the other"),
    ],
    "LayerNorm": [
        (lambda: made.LayerNorm(axis=0), LAST),
        (lambda: made.LayerNorm(64), "takes no arguments without a name, and 64 is one more"),
        (lambda: made.LayerNorm(normalized_shape=64), "it is the last axis of what the layer is called on"),
        (lambda: made.LayerNorm(elementwise_affine=False), "did you mean 'scale'?"),
    ],
    "Linear": [
        (lambda: made.Linear(-1), f"the number of units is -1; {WHOLE}"),
        (lambda: made.Linear(2, axis=5), r"the axis is 5; write -1 \(the last axis\) or 0 \(the rows\)"),
    ],
    "LocalContrastNormalisation2D": [
        (lambda: made.LocalContrastNormalisation2D(-1), f"the size of a patch is -1; {WHOLE}"),
        (lambda: made.LocalContrastNormalisation2D(3)(*over((4,))), PICTURE),
    ],
    "LocallyConnected2D": [(lambda: made.LocallyConnected2D(3, 2)(*over((4,))), PICTURE)],
    "MaxPool2D": [
        (lambda: made.MaxPool2D(0), f"the size of a patch is 0; {WHOLE}"),
        (lambda: made.MaxPool2D(9)(*over((4, 4, 1))), FIT),
    ],
    "MultiHeadAttention": [
        (lambda: made.MultiHeadAttention(0), f"the number of heads is 0; {WHOLE}"),
        (lambda: made.MultiHeadAttention(3)(*over((4, 4))), "4 features do not fall into 3 equal heads"),
        (lambda: made.MultiHeadAttention(2)(*over((4,))), SEQUENCE),
        (
            lambda: made.MultiHeadAttention(2, rows="units"),
            "rows are 'units'; write ",
        ),
    ],
    "Average": [(lambda: made.Average()(*over((3,), (4,))), "give it two or more of the same shape")],
    "Exit": [
        (lambda: made.Exit(threshold=1.5), "the threshold is 1.5; write a number from 0"),
        (lambda: scored(made.Exit(), (3, 3)), "an example ends as a whole; give it a row of scores"),
    ],
    "Maximum": [
        (
            lambda: made.Maximum()(
                *over(
                    (3,),
                )
            ),
            "give it two or more of the same shape",
        )
    ],
    "Multiply": [(lambda: made.Multiply()(*over((3,), (4,))), "give it two or more of the same shape")],
    "Node": [
        (lambda: made.Node(made.Full(), None), "None is no function; give one that computes a node"),
        (lambda: made.Node("full", abs), "a node's wiring is 'full'; write for example @node"),
    ],
    "OneVsRest": [(lambda: scored(made.OneVsRest(), (3, 3)), "give it one score for each class")],
    "PaddingMask": [(lambda: made.PaddingMask(0)(*over((4,))), "holds no numbers of classes; declare them")],
    "Permute": [
        (lambda: made.Permute((1, 2)), r"the axes are \(1, 2\); name each axis once, from 0"),
        (lambda: made.Permute((0,))(*over((4, 2))), r"name each of its 2 axes once, not \(0,\)"),
    ],
    "PositionEmbedding": [(lambda: made.PositionEmbedding(12), "without a name, and 12 is one")],
    "RMSNorm": [(lambda: made.RMSNorm(axis=1), LAST)],
    "Reshape": [
        (lambda: made.Reshape((3,))(*over((4,))), r"4 nodes, which have no shape \(3,\)"),
        (lambda: made.Reshape((0, 3)), "write whole numbers of at least 1, of which one may be -1"),
    ],
    "RestrictedBoltzmannMachine": [
        (lambda: made.RestrictedBoltzmannMachine(0), f"the number of units is 0; {WHOLE}"),
        (lambda: made.RestrictedBoltzmannMachine(n_components=3), "did you mean 'units'?"),
        (lambda: made.RestrictedBoltzmannMachine(3)(3), "needs the states of another layer"),
    ],
    "ScoreSum": [(lambda: scored(made.ScoreSum(), (3,)), "takes scores alone, without a target or weights")],
    "Slice": [(lambda: made.Slice(5)(*over((4,))), "positions 5 to None of an axis of 4 are none")],
    "Softmax": [(lambda: made.Softmax(dim=1), LAST), (lambda: made.Softmax(-1), "and -1 is one more")],
    "SoftmaxCrossEntropy": [
        (lambda: made.SoftmaxCrossEntropy((1, -2)), "weight is a row with -2"),
        (lambda: made.SoftmaxCrossEntropy(label_smoothing=1.5), "label_smoothing is 1.5"),
        (lambda: scored(made.SoftmaxCrossEntropy(), (2, 3, 4)), "give it one score for each class"),
    ],
    "UpSample": [
        (lambda: made.UpSample(0), f"the size is 0; {WHOLE}"),
        (lambda: made.UpSample(2, interpolation="bilinear"), "places are repeated"),
    ],
    "ZeroPad": [
        (lambda: made.ZeroPad(-1), "the padding is -1; write 'valid', 'same', a whole number of at least 0"),
        (lambda: made.ZeroPad(1)(*over((4,))), "patches need spatial axes and a last axis of channels"),
    ],
}
FLAT = [(kind, *case) for kind, cases in CASES.items() for case in cases]


def test_every_kind_of_layer_is_here() -> None:
    placed = ("DeepBeliefNet", "FeedForward", "MultiHeadAttention", "RestrictedBoltzmannMachine")
    kinds = [one for one in vars(made).values() if inspect.isclass(one) and issubclass(one, Layer)]
    names = {kind.__name__ for kind in kinds if kind not in BASES}
    assert CASES.keys() == names | set(placed)


@pytest.mark.parametrize(
    ("kind", "misuse", "sentence"), FLAT, ids=[f"{one[0]}{n}" for n, one in enumerate(FLAT)]
)
def test_misuse_is_answered_by_one_sentence(kind: str, misuse: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence) as refused:
        misuse()
    assert str(refused.value).startswith(kind) and "\n" not in str(refused.value)
