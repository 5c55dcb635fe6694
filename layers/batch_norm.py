"""Normalisation of each channel over the examples and the places; at rest, by running statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_flag, check_number
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Step, Summary, Tensor
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.moments import N_MOMENTS, joined, moments


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Each node as the number of standard deviations above the mean of its channel.

    `(input - mean) / sqrt(variance + epsilon) * weight + bias`. A channel is a place on the last axis. In
    training, mean and variance are those over the examples of a micro-batch and all places, wherever these
    lie: machines exchange the moments of their places, and the gradients of them. Examples that only fill a
    minibatch are left out. Evaluation and prediction take the running statistics instead.

    A running statistic becomes `(1 - momentum) * running + momentum * statistic` in each step (of the
    unbiased variance, as in PyTorch). With several micro-batches, the statistic is their mean. Replicas of
    Downpour return the changes of their running statistics, divided by their number; those of all-reduce
    take the mean over all. Batch methods change none, and refuse the layer.

    Source: Ioffe and Szegedy, *Batch normalization*, ICML 2015, algorithms 1 and 2.

    Args:
        momentum: share of a new statistic in the running one, from 0 to below 1; 0.1 is Keras's 0.9.
        epsilon: added to the variance.
        scale: whether it has `weight` and `bias`, one number for each channel, 1 and 0 at first.
        frozen_statistics: whether the running statistics keep their values, and take the place of the
            minibatch's in training, too: PyTorch's module in `eval()` inside a network in training.
        trainable: whether these learn.
        name: the layer's name in the network.
    """

    slowdown = 10.0

    _meant: ClassVar[Any] = {
        "axis": "channels are the last axis; leave it out",
    }

    momentum: float = field(default=0.1, kw_only=True)
    epsilon: float = field(default=1e-5, kw_only=True)
    scale: bool = field(default=True, kw_only=True)
    frozen_statistics: bool = field(default=False, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(
            momentum=check_number(self.momentum, "the momentum is", zero=True, below=1.0),
            epsilon=check_number(self.epsilon, "epsilon is", rule="; write a number above 0"),
        )
        check_flag(self.scale, "scale is")
        check_flag(self.frozen_statistics, "frozen_statistics is")

    @property
    def connectivity(self) -> Connectivity:
        """The node itself; the rest of its channel comes as a summary."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The running statistics, and a factor and a term for each channel, which all places share."""

        def of_channels(name: str, initialiser: str, *, running: bool = False) -> Parameter:
            return Parameter(
                name,
                shape[-1:],
                initialiser,
                shared=len(shape) > 1,
                trainable=not running,
                averaged=running and not self.frozen_statistics,
            )

        mean = of_channels("running_mean", "zeros", running=True)
        variance = of_channels("running_variance", "ones", running=True)
        learnt = (of_channels("weight", "ones"), of_channels("bias", "zeros")) if self.scale else ()
        return mean, variance, *learnt

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Two sums, a difference and a product."""
        return 6.0

    def summary(self, shape: Shape) -> Summary | None:
        """The moments of each channel; in a row of features no channel is cut, and frozen statistics need
        none.
        """
        if len(shape) == 1 or self.frozen_statistics:
            return None
        return Summary((N_MOMENTS, shape[-1]), by_example=False)

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Returns the moments of these rows, over the real examples."""
        x = inputs[0][..., : step.examples]
        return moments(step.torch, x, (*range(x.dim() - 2), x.dim() - 1))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """Joins the summaries of all rows."""
        return joined(step.torch, summaries)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The differences from the means, over the deviations."""
        (x,), (running_mean, running_variance, *learnt) = inputs, parameters
        mean, variance = running_mean, running_variance
        current = step.training and not self.frozen_statistics
        if current:
            whole = step.summary if len(step.shape) > 1 else self.summarise(step, inputs, parameters)
            count, mean, squares = whole
            variance = squares / count.clamp(min=1)
        normal = (x - mean[:, None]) * step.torch.rsqrt(variance + self.epsilon)[:, None]
        for parameter, apply in zip(learnt, (step.torch.mul, step.torch.add), strict=False):
            normal = apply(normal, parameter[:, None])
        if not current:
            return normal
        own = x.numel() // x.shape[-1] // len(mean) * step.examples
        share = own / count.clamp(min=1) * (self.momentum * step.examples / step.mean_over)
        unbiased = squares / (count - 1).clamp(min=1)
        for running, new in ((running_mean, mean), (running_variance, unbiased)):
            normal = step.with_gradient(normal, running, (running - new).detach() * share.detach())
        return normal

    @property
    def definition(self) -> NodeDefinition | None:
        """None: a node is a function of other examples, too."""
        return None
