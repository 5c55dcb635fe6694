"""Losses over a softmax of the scores: with labels, or with probabilities as the target.

The scores are a row, one for each class, or `(positions, classes)`. A row may be cut: machines then exchange
a few numbers for each example. Positions are evaluated apart from one another, each by the machine that has
it, and the loss of an example is the mean over its positions.

Sources: a softmax from block maxima and sums, Milakov and Gimelshein 2018, "Online normalizer calculation for
softmax", section 3; smoothed labels, Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from partita.layers.box import Shape
from partita.layers.checks import check_label, check_number, check_weights
from partita.layers.contract import Gradients, Step, Summary, Tensor, Tensors
from partita.layers.layer import NodeDefinition
from partita.layers.losses import LabelLoss, Loss, ScoreLoss


@dataclass(frozen=True)
class _OverClasses(Loss):
    """A loss over a softmax of a row of scores, or of one row for each position."""

    splits_scores = True

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """One node, or one for each position."""
        return (1,) if len(sources[0]) == 1 else (1, sources[0][0])

    def summary(self, shape: Shape) -> Summary | None:
        """The largest score, and the sum of exponentials relative to it; none for positions, which no two
        machines share.
        """
        return Summary((2,)) if len(shape) == 1 else None

    def summarise(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """Both, of these scores, in float64."""
        largest = inputs[0].amax(-2)
        total = (inputs[0] - largest.unsqueeze(-2)).exp_().sum(-2, dtype=step.torch.float64)
        return step.torch.stack((largest.to(total.dtype), total))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """The largest of all, and the sums relative to that, in float64."""
        largest, totals, *others = summaries.double().unbind(1)
        most = largest.amax(0)
        total = (totals * (largest - most).exp()).sum(0)
        return step.torch.stack((most, total, *(other.sum(0) for other in others)))

    def _summary(self, step: Step, inputs: Tensors) -> Tensor:
        """The summary of all classes, in float64."""
        return self.summarise(step, inputs, ()) if step.summary is None else step.summary.double()


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_OverClasses, LabelLoss):
    """The negative log of the softmax probability of the right class; the target is its label, from 0.

    Scores `(classes,)` take a label for each example; scores `(positions, classes)`, as of a language model,
    a label for each position. Mean over the positions, and over the examples: a weight multiplies the loss of
    an example, an ignored label makes it 0, and neither changes what the sum is divided by.

    Args:
        weight: a factor of the loss for each class.
        ignore_index: the label whose examples, or positions, count 0, and as neither right nor wrong.
        label_smoothing: the share, from 0 to below 1, of the target that is spread evenly over all classes.
        loss_weight: factor of this loss in the sum that is minimised.
        name: the layer's name in the network.

    Raises:
        ValueError: an argument is out of range, or the scores are no row of two or more.
    """

    distils = True

    weight: tuple[float, ...] | None = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    loss_weight: float = field(default=1.0, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Refuses settings that are out of range. Raises ValueError."""
        super().check()
        smoothing = check_number(self.label_smoothing, "label_smoothing is", zero=True, below=1.0)
        self._settle(
            weight=check_weights(self.weight, "weight is"),
            ignore_index=check_label(self.ignore_index, "ignore_index is"),
            label_smoothing=smoothing,
        )

    @property
    def ignored(self) -> int | None:
        """The label that counts 0."""
        return self.ignore_index

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A label for each example, or for each position.

        Raises:
            ValueError: the scores are no row of two or more, or there is no weight for each of them.
        """
        _check_scores(scores)
        if self.weight is not None and len(self.weight) != scores[-1]:
            raise ValueError(
                f"weight has {len(self.weight)} numbers, but there are {scores[-1]} classes; "
                "give one for each class"
            )
        return (scores[:-1] or (1,)), scores[-1]

    def right(self, step: Step, inputs: Tensors) -> Tensor:
        """Returns whether the label's score is here, finite, and the largest of all; `[..., example]`."""
        _, here, score = self._labelled(step, inputs)
        return here & (score >= self._summary(step, inputs)[0]) & score.isfinite()

    def _labels(self, step: Step, inputs: Tensors) -> Tensor:
        """The labels that belong to these scores, `[example]` or `[position, example]`."""
        return inputs[1][0] if len(step.shape) == 1 else inputs[1][slice(*step.windows[0])]

    def _labelled(self, step: Step, inputs: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """The place of each label's score among these, whether it is there and counts, and the score."""
        scores, labels = inputs[0], self._labels(step, inputs)
        places = labels - (step.windows[0][0] if len(step.shape) == 1 else 0)
        here = (places >= 0) & (places < scores.shape[-2])
        if self.ignore_index is not None:
            here = here & (labels != self.ignore_index)
        places = places.clamp(0, scores.shape[-2] - 1).unsqueeze(-2)
        return places, here, scores.gather(-2, places).squeeze(-2).double()

    def _factors(self, step: Step, inputs: Tensors) -> tuple[Any, Any, Any]:
        """The factor of the label's term, `[..., example]`; that of every class's term, `[class, 1]`; and
        the sum of the latter over all classes. Terms of ignored labels are not excepted.
        """
        weight: Any = 1.0
        if self.weight is None:
            each, total = self.label_smoothing / inputs[0].shape[-2], self.label_smoothing
            if len(step.shape) == 1:
                each = self.label_smoothing / step.sources[0][0]
        else:
            weights = step.torch.tensor(self.weight, dtype=step.torch.float64, device=inputs[0].device)
            spread = weights * (self.label_smoothing / len(weights))
            own = slice(*step.windows[0]) if len(step.shape) == 1 else slice(None)
            each, total = spread[own, None], float(spread.sum())
            weight = weights[self._labels(step, inputs).clamp(0, len(weights) - 1)]
        return weight * (1.0 - self.label_smoothing), each, total

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The loss of each example or position, as far as it depends on these scores; else 0."""
        largest, total = self._summary(step, inputs)
        _, here, score = self._labelled(step, inputs)
        factor, each, _ = self._factors(step, inputs)
        loss = step.torch.where(here, factor * (total.log() + (largest - score)), 0.0)
        if self.label_smoothing:
            terms = (total.log() + largest).unsqueeze(-2) - inputs[0]
            loss = loss + self._counted(step, inputs, (each * terms).sum(-2))
        return _as_nodes(step, loss)

    def _counted(self, step: Step, inputs: Tensors, values: Tensor) -> Tensor:
        """The values, 0 where the label is ignored."""
        if self.ignore_index is None:
            return values
        return values.masked_fill(self._labels(step, inputs) == self.ignore_index, 0.0)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """Returns `softmax - one hot`, with the factors of both: no machine needs more than the summary."""
        scores, (largest, total) = inputs[0], self._summary(step, inputs).to(inputs[0].dtype).unsqueeze(-2)
        places, here, _ = self._labelled(step, inputs)
        factor, each, all_of_them = self._factors(step, inputs)
        share = (scores - largest).exp_().div_(total)
        if self.weight is not None:
            share.mul_((factor + all_of_them).unsqueeze(-2))
        if self.label_smoothing:
            share.sub_(each)
        share.scatter_add_(-2, places, (-here.to(scores.dtype) * factor).to(scores.dtype).unsqueeze(-2))
        grad = self._counted(step, inputs, _of_nodes(step, grad_output)).unsqueeze(-2)
        if self.ignore_index is not None:
            share.masked_fill_(grad == 0, 0.0)  # a score that is no number counts 0, too
        return (share.mul_(grad), None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example with a label; the gradient is `softmax - one hot`, each with its factor.

        Of scores `(positions, classes)` it defines the loss of one position.
        """
        smoothing, weight, ignored = self.label_smoothing, self.weight, self.ignore_index

        def wanted(n: int, label: int) -> list[float]:
            """The factor of each class's term."""
            weights = weight or (1.0,) * n
            if label == ignored:
                return [0.0] * n
            return [
                w * (smoothing / n + (1.0 - smoothing if k == label else 0.0)) for k, w in enumerate(weights)
            ]

        def log_total(incoming: Any) -> float:
            largest = float(max(incoming))
            return math.log(sum(math.exp(score - largest) for score in incoming)) + largest

        def upward(incoming, label):  # type: ignore[no-untyped-def]
            total, factors = log_total(incoming), wanted(len(incoming), label)
            return sum(f * (total - score) for f, score in zip(factors, incoming, strict=True) if f)

        def downward(incoming, label, state, error):  # type: ignore[no-untyped-def]
            errors, total, factors = 0.0 * incoming, log_total(incoming), wanted(len(incoming), label)
            for k in range(len(incoming)):
                errors[k] = error * (sum(factors) * math.exp(incoming[k] - total) - factors[k])
            return errors

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class KLDivergence(_OverClasses, ScoreLoss):
    """The Kullback-Leibler divergence of the softmax of the scores from the target, a probability for each
    class.

    The sum over the classes of `t * log(t / softmax(scores))`, where 0 log 0 is 0; the mean over the
    positions of scores `(positions, classes)`, and over the examples. A target that does not add up to 1 is
    taken as it is.
    """

    distils = True

    def summary(self, shape: Shape) -> Summary | None:
        """The largest score, the sum of exponentials relative to it, and the sum of the target."""
        return Summary((3,)) if len(shape) == 1 else None

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A probability for each score.

        Raises:
            ValueError: the scores are no row of two or more.
        """
        _check_scores(scores)
        return scores, None

    def summarise(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """All three, of these classes, in float64."""
        of_scores = super().summarise(step, inputs, parameters)
        return step.torch.cat((of_scores, inputs[1].sum(-2, dtype=of_scores.dtype)[None]))

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The terms of these classes."""
        largest, total, _ = self._summary(step, inputs)
        scores, target = inputs[0].double(), inputs[1].double()
        terms = target * ((total.log() + largest).unsqueeze(-2) - scores)
        return _as_nodes(step, (step.torch.xlogy(target, target) + terms).sum(-2))

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """Returns `softmax * sum of the target - target`, times the gradient of the loss."""
        largest, total, wanted = self._summary(step, inputs).to(inputs[0].dtype).unsqueeze(-2)
        share = (inputs[0] - largest).exp_().mul_(wanted / total).sub_(inputs[1])
        return (share.mul_(_of_nodes(step, grad_output).unsqueeze(-2)), None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The divergence of one example; the gradient is `softmax * sum of the target - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            largest, total, found = max(incoming), 0.0, 0.0
            for score in incoming:
                total += math.exp(score - largest)
            for k in range(len(incoming)):
                if target[k] > 0.0:
                    found += target[k] * (math.log(target[k]) - incoming[k] + largest + math.log(total))
            return found

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            largest, total, wanted, errors = max(incoming), 0.0, 0.0, 0.0 * incoming
            for k in range(len(incoming)):
                total += math.exp(incoming[k] - largest)
                wanted += target[k]
            for k in range(len(incoming)):
                errors[k] = error * (wanted * math.exp(incoming[k] - largest) / total - target[k])
            return errors

        return NodeDefinition(upward, downward)


def _check_scores(scores: Shape) -> None:
    if len(scores) not in (1, 2) or scores[-1] < 2:
        raise ValueError(
            f"the scores have shape {scores}; give it one score for each class, for example Dense(10), or a "
            "row of them for each position, (positions, classes)"
        )


def _as_nodes(step: Step, losses: Tensor) -> Tensor:
    """The losses as the activations of the nodes: those of positions that other machines have are 0."""
    if len(step.shape) == 1:
        return losses[None]
    start, stop = step.windows[0]
    return step.torch.nn.functional.pad(losses, (0, 0, start, step.shape[1] - stop))[None]


def _of_nodes(step: Step, grad_output: Tensor) -> Tensor:
    """The gradient of the loss of each example, or of each position that is here."""
    return grad_output[0] if len(step.shape) == 1 else grad_output[0, slice(*step.windows[0])]
