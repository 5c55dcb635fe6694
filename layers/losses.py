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
from typing import ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_finite
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Gradients, Step, Tensor, Tensors
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
    """States whether it is called on a target besides the scores."""
    splits_scores: ClassVar[bool] = False
    """States whether machines may each evaluate their own scores; their losses of an example then add up."""
    distils: ClassVar[bool] = False
    """States whether its gradient for a score is a prediction less the target, times what no score changes:
    the gradients at two sets of scores then differ by that of a loss whose targets are predictions of one.
    """
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
    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The losses of the examples, `[1, example]`, as far as they depend on these scores: those of all
        machines add up. In torch; autograd makes the gradient.

        Args:
            step: which examples, and which rows of the scores (`step.windows[0]`).
            inputs: scores `[rows, ..., example]`, and the target: labels `[1, example]`, or the same rows of
                a target of the scores' shape.
            parameters: none.
        """

    @property
    def label_rows(self) -> slice:
        """The labels of a target that count, of labels of positions: all."""
        return slice(None)

    def right(self, step: Step, inputs: Tensors) -> Tensor | None:
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

    def right(self, step: Step, inputs: Tensors) -> Tensor | None:
        """Returns whether the label's score is here, finite, and the largest of all: a summary's first
        number.
        """
        here, score = labelled(step, *inputs)
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

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sum of these scores, in float64."""
        return inputs[0].flatten(0, -2).sum(0, keepdim=True, dtype=step.torch.float64)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The gradient of the loss, for each score."""
        return (grad_output.to(inputs[0].dtype).expand_as(inputs[0]),), ()


def labelled(step: Step, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns whether the score of each example's label is among these, and that score in float64;
    `[example]`.
    """
    places = labels[0] - step.windows[0][0]
    here = (places >= 0) & (places < len(scores))
    return here, scores.gather(0, places.clamp(0, len(scores) - 1)[None])[0].double()


def one_hot(step: Step, scores: Tensor, labels: Tensor) -> Tensor:
    """1 at the score of each example's label, `[score, example]`."""
    numbers = step.torch.arange(*step.windows[0], device=labels.device)
    return (labels == numbers[:, None]).to(scores.dtype)
