"""The losses of a network that the terms of a module's own loss become.

A network's loss of an example is a sum over its scores, or the mean over its positions, and the mean over the
examples. What PyTorch computes must be that, up to a factor that the network knows: where it divides by the
labels of a minibatch that count, it is only where none is ignored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.engine.pytorch.conversion import Conversion, name_of
from partita.engine.pytorch.exported import Exported
from partita.engine.pytorch.nodes import operation_of, place_of
from partita.engine.pytorch.own_loss import LABELLED, MARK, MEAN, SUM, Term
from partita.engine.pytorch.values import Unsupported
from partita.layers import (
    BinaryCrossEntropy,
    HalfSquaredError,
    Huber,
    KLDivergence,
    Slice,
    SoftmaxCrossEntropy,
)
from partita.layers.box import Shape
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.losses import Loss
from partita.layers.states import SymbolicTensor


@dataclass(frozen=True)
class NextCrossEntropy(SoftmaxCrossEntropy):
    """`SoftmaxCrossEntropy` over positions whose labels are a run of those of the target, such as the next
    words of a language model: the target has all words, and the first of them is no label.

    Args:
        first: number of the first position's label in the target.
        positions: of the scores.
        labels: in the target of an example.
        weight: as in `SoftmaxCrossEntropy`, and so are the settings that follow.
    """

    first: int = field(default=0, kw_only=True)
    positions: int = field(default=1, kw_only=True)
    labels: int = field(default=1, kw_only=True)

    @property
    def label_rows(self) -> slice:
        """The run of labels."""
        return slice(self.first, self.first + self.positions)

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """All labels of an example."""
        return (self.labels,), super().target(scores)[1]

    def right(self, step: Step, inputs: Tensors) -> Tensor:
        """Returns whether the label's score is the largest, of the run of labels."""
        return super().right(step, self._run(inputs))

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The loss of each position, with its label of the run."""
        return super().forward(step, self._run(inputs), parameters)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The gradient of the scores, with the labels of the run."""
        return super().backward(step, self._run(inputs), parameters, output, grad_output)

    def _run(self, inputs: Tensors) -> Tensors:
        return inputs[0], inputs[1][self.label_rows]


def place_losses(at: Conversion, exported: Exported, terms: Sequence[Term]) -> None:
    """Gives the network the losses that the terms are.

    Args:
        at: the network, with all layers.
        exported: the module, whose last outputs are the scores of the terms.
        terms: of its loss.

    Raises:
        Unsupported: a term is no loss of the network.
    """
    targets: dict[str, SymbolicTensor] = {}
    averaged = {one.target for one in terms if one.reduction == MEAN}
    found = []
    for term, node in zip(terms, exported.outputs[len(exported.outputs) - len(terms) :], strict=True):
        name = name_of(term.target.name)
        if name not in targets:
            targets[name] = at.network.target(name)
        scores = at.value(node).in_order()
        try:
            if operation_of(term.node) in LABELLED:
                found.append(_labelled(term, scores, targets[name], averaged=term.target in averaged))
            else:
                found.append(_compared(term, scores, targets[name]))
        except (Unsupported, ValueError) as error:
            raise Unsupported(f"{operation_of(term.node)}: {error}, at {place_of(term.node)}") from None
    at.network.loss = [loss if weight == 1.0 else weight * loss for weight, loss in found]


def _labelled(
    term: Term, scores: SymbolicTensor, target: SymbolicTensor, *, averaged: bool
) -> tuple[float, SymbolicTensor]:
    """A cross-entropy, and its factor.

    Args:
        term: of the module's loss.
        scores: in rows of classes.
        target: the labels.
        averaged: whether a term is divided by the labels that count; then data with ignored ones is refused.
    """
    a, places = term.settings, term.places_of_an_example
    ignored = int(a["ignore_index"])
    constants = {place + MARK for place in places if place < 0}
    if constants - {ignored}:
        raise Unsupported(f"it has the labels {sorted(constants - {ignored})} for some positions")
    start = len(list(itertools.takewhile(lambda place: place < 0, places)))
    run = [place for place in places if place >= 0]
    stop = start + len(run)
    if places[start:stop] != list(range(run[0], run[0] + len(run))):
        raise Unsupported("its labels are no run of those that are given, one behind the other")
    settings: dict[str, Any] = {"label_smoothing": a.get("label_smoothing") or 0.0}
    inside = 0 <= ignored < scores.shape[-1]
    if term.reduction == SUM and (inside or not averaged):
        settings["ignore_index"] = ignored
    elif inside:
        raise Unsupported(
            f"it divides by the labels of the minibatch that are not {ignored}, and a network's loss by all; "
            'take reduction="sum" and divide by the number of examples, x.size(0)'
        )
    if a["weight"] is not None:
        settings["weight"] = _class_weights(term)
    if len(run) < len(places):
        scores = Slice(start=start, stop=stop, step=1, axis=0)(scores)
    loss: Loss = SoftmaxCrossEntropy(**settings)
    if len(run) != term.size:
        loss = NextCrossEntropy(**settings, first=run[0], positions=len(run), labels=term.size)
    return term.factor * (1 if term.reduction == MEAN else len(run)), loss(scores, target)


def _class_weights(term: Term) -> tuple[float, ...]:
    """The weights of the classes, of a sum: a mean is divided by the weights of a minibatch's labels."""
    if term.reduction == MEAN:
        raise Unsupported(
            "it divides by the weights of the labels of the minibatch, and a network's loss by the number of "
            'examples; take reduction="sum" and divide by x.size(0)'
        )
    if term.weights is None:
        raise Unsupported("the weights of its classes are computed; register them as a buffer")
    return tuple(float(one) for one in term.weights)


def _compared(term: Term, scores: SymbolicTensor, target: SymbolicTensor) -> tuple[float, SymbolicTensor]:
    """A loss of a target for each score, and its factor."""
    a, name = term.settings, operation_of(term.node)
    if term.places_of_an_example != list(range(term.size)):
        raise Unsupported("it reads its target in another order than that of the scores")
    if a.get("weight") is not None or a.get("pos_weight") is not None:
        raise Unsupported("it has weights")
    factor = term.factor / (term.size if term.reduction == MEAN else 1)
    if name == "mse_loss":
        return 2 * factor, HalfSquaredError()(scores, target)
    if name == "huber_loss":
        return factor, Huber(delta=a["delta"])(scores, target)
    if name == "smooth_l1_loss":
        if not a["beta"]:
            raise Unsupported("its beta is 0: the absolute difference is no loss of a network")
        return factor / a["beta"], Huber(delta=a["beta"])(scores, target)
    if name == "kl_div":
        if a["log_target"] or len(scores.shape) > 2:
            raise Unsupported("its target are logarithms, or it has dimensions beside positions and classes")
        return factor * math.prod(scores.shape[:-1]), KLDivergence()(scores, target)
    return factor, BinaryCrossEntropy()(scores, target)
