"""A network that is two functions of a user: outputs, and gradients of parameters, of a minibatch.

It is one layer that is not cut: its parameters are all parameters of the user, whole, and its inputs are all
fields of the data. The engine's `forward` calls the one function, and `backward` the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import override

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.layer import Layer, Parameter
from partita.layers.losses import ScoreSum
from partita.layers.network import Network

Named: TypeAlias = Mapping[str, Any]
"""Arrays of NumPy, or tensors of PyTorch, by name."""
UserFunction: TypeAlias = Callable[[Named, Named], Any]
"""A function of parameters and a minibatch, whose arrays have the examples first."""


@dataclass(frozen=True)
class UserFunctions(Layer):
    """The two functions of a user as a layer of as many nodes as an example has outputs.

    Args:
        outputs: (parameters, minibatch) -> `[example, ...]`.
        gradients: (parameters, minibatch) -> a gradient of the shape of each parameter, by name: of the mean
            over the examples.
        first: the parameters to begin with.
        fields: name, shape of an example and dtype of each field of a minibatch.
        nodes: outputs of an example.
        in_torch: whether the functions take tensors of PyTorch.
    """

    several_inputs = True
    cuttable = False
    definition = None  # the arithmetic is the user's

    outputs: UserFunction
    gradients: UserFunction
    first: Mapping[str, Any] = field(repr=False)
    fields: tuple[tuple[str, Shape, str], ...]
    nodes: int
    in_torch: bool = False
    name: str | None = field(default="functions", kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """Each output may depend on every number of an example."""
        return Full()

    @override
    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        return (self.nodes,)

    @override
    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        return tuple(
            Parameter(name, values.shape, values, shared=True) for name, values in self.first.items()
        )

    @override
    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The user's outputs; those of examples that only fill the array are 0."""
        found = self.outputs(self._named(parameters), self._batch(step, inputs))
        tensor = step.torch.as_tensor(found).reshape(step.examples, self.nodes)
        whole = step.torch.zeros((self.nodes, inputs[0].shape[-1]), dtype=inputs[0].dtype)
        whole[:, : step.examples] = tensor.T
        return whole

    @override
    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The user's gradients, as this micro-batch's share of the mean over the minibatch.

        Raises:
            ValueError: a gradient is missing, or has another shape than its parameter.
        """
        found = self.gradients(self._named(parameters), self._batch(step, inputs))
        share, ordered = step.examples / step.mean_over, []
        for name, parameter in zip(self.first, parameters, strict=True):
            if name not in found:
                raise ValueError(
                    f"gradients(parameters, batch) has returned no '{name}'; return {[*self.first]}"
                )
            gradient = step.torch.as_tensor(found[name], dtype=parameter.dtype)
            if gradient.shape != parameter.shape:
                raise ValueError(
                    f"the gradient of '{name}' is {tuple(gradient.shape)}, and the parameter is "
                    f"{tuple(parameter.shape)}; return one number for each of the parameter"
                )
            ordered.append(gradient * share)
        return (None,) * len(inputs), tuple(ordered)

    def _named(self, parameters: Tensors) -> Named:
        values = parameters if self.in_torch else (one.numpy() for one in parameters)
        return dict(zip(self.first, values, strict=True))

    def _batch(self, step: Step, inputs: Tensors) -> Named:
        """The real examples of a micro-batch, with the examples first and in the types of the data."""
        batch = {}
        for (name, shape, dtype), tensor in zip(self.fields, inputs, strict=True):
            values = tensor[..., : step.examples].movedim(-1, 0).reshape(step.examples, *shape)
            kind = getattr(step.torch, dtype)
            batch[name] = values.to(kind) if self.in_torch else values.numpy().astype(dtype)
        return batch


def network_of(functions: UserFunctions) -> Network:
    """Returns the network of two functions. Its loss is not known: what it minimises says `gradients`."""
    net = Network("functions")
    inputs = [net.input(name, shape=shape or (1,)) for name, shape, _ in functions.fields]
    net.loss = NoLoss()(functions(*inputs))
    return net


@dataclass(frozen=True)
class NoLoss(ScoreSum):
    """A loss of 0: nobody says what the gradients are of."""

    @override
    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        return step.torch.zeros((1, inputs[0].shape[-1]), dtype=step.torch.float64)


def fields_of(data: Mapping[str, Any]) -> tuple[tuple[str, Shape, str], ...]:
    """Returns name, shape of an example and dtype of each field."""
    arrays = {name: np.asarray(values) for name, values in data.items()}
    return tuple((name, array.shape[1:], array.dtype.name) for name, array in arrays.items())
