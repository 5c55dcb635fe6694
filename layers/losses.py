"""Losses: one node that reads all scores and a target, and whose activation is an example's loss.

A loss is a single node; where it evaluates the rows of its scores apart from one another (positions of a
text), it has one node for each, in one row. Where its mathematics allows, every machine that owns scores
computes it from those and from a summary of the others' scores; else one machine receives all scores.

The loss of an example is a sum over its scores, as each class says, and the mean over its nodes; its gradient
is that of the *mean* over the examples of the batch, so that a learning rate means the same for every batch
size. This mean divides by the number of examples, whatever their weights and however many labels are ignored:
so a batch has the same gradient in one piece, in micro-batches and over replicas.

A loss of one's own derives from `ScoreLoss`, `LabelLoss` or `Loss` and writes `forward`. The engine
multiplies by weights and takes the means.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_finite, check_number
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Step, Summary, Tensor
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.states import SymbolicTensor


@dataclass(frozen=True)
class Loss(Layer):
    """Called on scores and a target: `SoftmaxCrossEntropy()(scores, net.target("digit"))`."""

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "class_weight": ("weight",),
        "weights": ("weight", "loss_weight"),
        "loss_weights": ("loss_weight",),
        "pos_weight": "give the call weights of examples: Loss()(scores, target, sample_weight=...)",
        "ignore_class": ("ignore_index",),
        "smoothing": ("label_smoothing",),
        "beta": ("delta",),
        "size_average": "losses are means over the examples; leave it out",
        "reduce": "losses are means over the examples; leave it out",
        "log_target": "the target is a probability, not its logarithm; leave it out",
        "sample_weight": "call the loss with it: Loss()(scores, target, sample_weight=net.target(...))",
        "axis": "the classes are the last axis of the scores; leave it out",
    }

    slowdown = 12.0
    cuttable = False
    several_inputs = True
    takes_target: ClassVar[bool] = True
    """Whether it is called on a target besides the scores."""
    splits_scores: ClassVar[bool] = False
    """Whether machines may each evaluate their own scores; their losses of an example then add up."""
    flops_per_score: ClassVar[float] = 8.0
    """Operations for each score: an exponential and a few more."""

    loss_weight: float = field(default=1.0, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Refuses a weight that is not finite. Raises ValueError."""
        super().check()
        self._settle(loss_weight=check_finite(self.loss_weight, "loss_weight is"))

    @property
    def connectivity(self) -> Connectivity:
        """All of the scores."""
        return Full()

    @property
    def definition(self) -> NodeDefinition | None:
        """The loss of one example in scalars; None where `forward` alone says it."""
        return None

    @property
    def ignored(self) -> int | None:
        """The label whose examples, or positions, count 0; None if there is none."""
        return None

    def __call__(
        self, *sources: SymbolicTensor, sample_weight: SymbolicTensor | None = None
    ) -> SymbolicTensor:
        """Evaluates scores by a target; returns the loss, for `net.loss`.

        Args:
            sources: the output of a layer, and `net.target(...)` if the loss takes one.
            sample_weight: a second target, with a factor for the loss of each example (or position).

        Raises:
            ValueError: the scores, the target or the weights do not fit.
        """
        return super().__call__(*sources, *(() if sample_weight is None else (sample_weight,)))

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of one node."""
        return (1,)

    @abstractmethod
    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """The shape of the target for scores of this shape, and the number of classes where it is a label;
        called of a loss that takes one.

        Raises:
            ValueError: the loss takes no scores of this shape.
        """

    @abstractmethod
    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The losses of the examples, `[1, example]`, as far as they depend on these scores: those of all
        machines add up. In torch; autograd makes the gradient.

        Args:
            step: which examples, and which rows of the scores (`step.windows[0]`).
            inputs: scores `[rows, ..., example]`, and the target: labels `[1, example]`, or the same rows of
                a target of the scores' shape.
            parameters: none.
        """

    def right(self, step: Step, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """Returns whether each label is right, bool `[..., example]`, as far as these scores tell; None
        without labels. Takes what `forward` takes.
        """
        return None

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Operations of the scores of a node."""
        return self.flops_per_score * math.prod(sources[0]) / math.prod(self.shape(sources))


@dataclass(frozen=True)
class LabelLoss(Loss):
    """A loss whose target is a label, from 0.

    Where machines may each evaluate their own scores (`splits_scores`), the first number of its summary is
    the largest score.
    """

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A label for each example.

        Raises:
            ValueError: the scores are not a row of two or more.
        """
        if len(scores) != 1 or scores[0] < 2:
            raise ValueError(
                f"the scores have shape {scores}; give it one score for each class, for example Dense(10)"
            )
        return (1,), scores[0]

    def right(self, step: Step, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """Returns whether the label's score is here, finite, and the largest of all: a summary's first
        number.
        """
        here, score = _labelled(step, *inputs)
        largest = inputs[0].amax(0) if step.summary is None else step.summary[0]
        return here & (score >= largest) & score.isfinite()


@dataclass(frozen=True)
class ScoreLoss(Loss):
    """A loss whose target has the shape of the scores, and which is a sum over them; where it is no sum, set
    `splits_scores = False`, and one machine receives all scores.
    """

    splits_scores = True

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """One number for each score."""
        return scores, None


@dataclass(frozen=True)
class OneVsRest(LabelLoss):
    """A logistic classifier for each class, which decides whether an example has it; the target is a label.

    The loss of an example is the **sum** of its classifiers' cross-entropies; mean over the examples.

    Source: DistBelief, section 5, the 21,000 outputs of the image model.
    """

    splits_scores = True

    def summary(self, shape: Shape) -> Summary:
        """The largest score, by which an example is counted as right."""
        return Summary((1,))

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The largest of these scores."""
        return inputs[0].amax(0, keepdim=True)

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """The largest of all."""
        return summaries.amax(0)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these classifiers."""
        here, score = _labelled(step, *inputs)
        return _softplus_sums(step, inputs[0]) - step.torch.where(here, score, 0.0)

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `logistic - one hot`, times the gradient of the loss."""
        shares, places = inputs[0].sigmoid(), inputs[1] - step.windows[0][0]
        here = (places >= 0) & (places < len(shares))
        shares.scatter_add_(0, places.clamp(0, len(shares) - 1), -here.to(shares.dtype))
        return (shares.mul_(grad_output), None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The sum of all classifiers' losses of one example; the gradient is `logistic - one hot`."""

        def upward(incoming, label):  # type: ignore[no-untyped-def]
            return _softplus_sum(incoming) - incoming[label]

        def downward(incoming, label, state, error):  # type: ignore[no-untyped-def]
            errors = error * _logistics(incoming)
            errors[label] -= error
            return errors

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class BinaryCrossEntropy(ScoreLoss):
    """The cross-entropy of `logistic(score)` with a target from 0 to 1, for each score.

    The target has the shape of the scores, so that an example may be of several classes, or of none. The loss
    of an example is the **sum** over its scores (Keras takes their mean); mean over the examples.
    """

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2) for one in inputs)
        return _softplus_sums(step, scores) - (scores.double() * targets.double()).sum(0)

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `logistic - target`, times the gradient of the loss."""
        return ((inputs[0].sigmoid() - inputs[1]) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the gradient is `logistic - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = _softplus_sum(incoming)
            for k in range(len(incoming)):
                total -= target[k] * incoming[k]
            return total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            return error * (_logistics(incoming) - target)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class HalfSquaredError(ScoreLoss):
    """**Half the sum** of squared differences between scores and target (of the same shape).

    The gradient is the difference itself. Mean over the examples; Keras's mean squared error also divides by
    the number of scores, and does not halve: see `mean_square`.
    """

    flops_per_score = 3.0  # a difference, a square and an addition

    def mean_square(self, mean_loss: float, scores: Shape) -> float:
        """The mean of all squared differences (Keras's), from the mean loss of the examples."""
        return 2.0 * mean_loss / math.prod(scores)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2).double() for one in inputs)
        return (scores - targets).square().sum(0, keepdim=True) / 2

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `scores - target`, times the gradient of the loss."""
        return ((inputs[0] - inputs[1]) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the gradient is `scores - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(len(incoming)):
                total += (incoming[k] - target[k]) ** 2
            return 0.5 * total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            return error * (incoming - target)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class Huber(ScoreLoss):
    """The **sum** over the scores of half the squared difference, where the difference is at most `delta`;
    and beyond, of `delta` times (the absolute difference less half of `delta`).

    Mean over the examples; Keras and PyTorch also divide by the number of scores.

    Args:
        delta: the difference, above 0, from which the loss grows by the difference and not by its square.
        loss_weight: factor of this loss in the sum that is minimised.
        name: the layer's name in the network.

    Raises:
        ValueError: `delta` is not above 0.

    Source: Huber 1964, "Robust estimation of a location parameter".
    """

    flops_per_score = 4.0  # a difference, a bound, a square and an addition
    delta: float = 1.0
    loss_weight: float = field(default=1.0, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Refuses a delta that is not above 0. Raises ValueError."""
        super().check()
        self._settle(delta=check_number(self.delta, "delta is"))

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2).double() for one in inputs)
        distance = (scores - targets).abs()
        bounded = distance.clamp(max=self.delta)
        return (bounded * (distance - bounded / 2)).sum(0, keepdim=True)

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `scores - target`, within `delta` of 0, times the gradient of the loss."""
        return ((inputs[0] - inputs[1]).clamp(-self.delta, self.delta) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the gradient is `scores - target`, within `delta` of 0."""
        delta = self.delta

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(len(incoming)):
                distance = abs(incoming[k] - target[k])
                bounded = min(distance, delta)
                total += bounded * (distance - bounded / 2)
            return total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            errors = 0.0 * incoming
            for k in range(len(incoming)):
                errors[k] = error * min(max(incoming[k] - target[k], -delta), delta)
            return errors

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class ScoreSum(Loss):
    """The **sum** of the scores themselves, without a target; mean over the examples.

    It minimises any output of a network, for example an energy.
    """

    takes_target = False
    splits_scores = True
    flops_per_score = 1.0

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """Takes none. Raises ValueError."""
        raise ValueError("it takes no target; call it on scores alone")

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum of these scores, in float64."""
        return inputs[0].flatten(0, -2).sum(0, keepdim=True, dtype=step.torch.float64)

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """The gradient of the loss, for each score."""
        return (grad_output.to(inputs[0].dtype).expand_as(inputs[0]),), ()


def _softplus_sum(scores: Any) -> Any:
    """Sums `log(1 + exp(score))`, without overflow."""
    total = 0.0
    for score in scores:
        total += max(score, 0.0) + math.log1p(math.exp(-abs(score)))
    return total


def _logistics(scores: Any) -> Any:
    """Computes `1 / (1 + exp(-score))` of each score, without overflow."""
    found = 0.0 * scores
    for k in range(len(scores)):
        odds = math.exp(-abs(scores[k]))
        found[k] = (1.0 if scores[k] >= 0.0 else odds) / (1.0 + odds)
    return found


def _labelled(step: Step, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns whether the score of each example's label is among these, and that score in float64;
    `[example]`.
    """
    places = labels[0] - step.windows[0][0]
    here = (places >= 0) & (places < len(scores))
    return here, scores.gather(0, places.clamp(0, len(scores) - 1)[None])[0].double()


def _one_hot(step: Step, scores: Tensor, labels: Tensor) -> Tensor:
    """1 at the score of each example's label, `[score, example]`."""
    numbers = step.torch.arange(*step.windows[0], device=labels.device)
    return (labels == numbers[:, None]).to(scores.dtype)


def _softplus_sums(step: Step, scores: Tensor) -> Tensor:
    """Sums `log(1 + exp(score))` for each example, in float64, `[1, example]`."""
    terms = step.torch.nn.functional.softplus(scores, 1.0, 40.0)  # above 40 a float64 ends
    return terms.sum(0, keepdim=True, dtype=step.torch.float64)
