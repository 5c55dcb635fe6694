"""A network that is two functions of a user: outputs, and gradients of parameters, of a minibatch.

It is one layer that is not cut: its parameters are all parameters of the user, whole, and its inputs are all
fields of the data. The engine's `forward` calls the one function, and `backward` the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

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
EXACT_BITS: Final = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of the whole numbers that a precision holds, all of them."""
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
            Parameter(name, values.shape or (1,), values.reshape(values.shape or (1,)), shared=True)
            for name, values in self.first.items()
        )

    @override
    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The user's outputs; those of examples that only fill the array are 0."""
        whole = step.torch.zeros((self.nodes, inputs[0].shape[-1]), dtype=inputs[0].dtype)
        if step.examples:
            found = step.torch.as_tensor(self._called(self.outputs, step, inputs, parameters)).detach()
            if found.shape[:1] != (step.examples,) or found.numel() != step.examples * self.nodes:
                raise ValueError(
                    f"outputs(parameters, batch) has returned the shape {tuple(found.shape)} for "
                    f"{step.examples} examples; return a row of {self.nodes} for each"
                )
            whole[:, : step.examples] = found.reshape(step.examples, self.nodes).T
        return whole

    @override
    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The user's gradients, as this micro-batch's share of the mean over the minibatch.

        A micro-batch without examples has gradients of 0: a mean over no examples is no number.

        Raises:
            ValueError: a gradient is missing, or has another shape than its parameter.
        """
        nothing = (None,) * len(inputs)
        if not step.examples:
            return nothing, tuple(map(step.torch.zeros_like, parameters))
        with step.torch.enable_grad():
            found = self._called(self.gradients, step, inputs, parameters)
        if not isinstance(found, Mapping):
            raise ValueError(
                f"gradients(parameters, batch) has returned {type(found).__name__}; return a dictionary of "
                f"{[*self.first]}"
            )
        share, ordered = step.examples / step.mean_over, []
        for (name, first), parameter in zip(self.first.items(), parameters, strict=True):
            if found.get(name) is None:
                raise ValueError(
                    f"gradients(parameters, batch) has returned no '{name}'; return {[*self.first]}"
                )
            gradient = step.torch.as_tensor(found[name], dtype=parameter.dtype).detach()
            if gradient.shape != first.shape:
                raise ValueError(
                    f"the gradient of '{name}' is {tuple(gradient.shape)}, and the parameter is "
                    f"{first.shape}; return one number for each of the parameter"
                )
            ordered.append(gradient.reshape(parameter.shape) * share)
        return nothing, tuple(ordered)

    def _called(self, function: UserFunction, step: Step, inputs: Tensors, parameters: Tensors) -> Any:
        """Calls a function on views of the parameters, which it must not change.

        Raises:
            ValueError: it has changed one.
        """
        named = {
            name: one.detach().reshape(first.shape)
            for (name, first), one in zip(self.first.items(), parameters, strict=True)
        }
        batch, before = self._batch(step, inputs), [one._version for one in named.values()]
        found = function(named if self.in_torch else _read_only(named), batch)
        for (name, one), version in zip(named.items(), before, strict=True):
            if one._version != version:
                raise ValueError(
                    f"{getattr(function, '__name__', 'a function')}(parameters, batch) has changed "
                    f"'{name}' in place; work on a copy: the optimizer changes parameters"
                )
        return found

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


def _read_only(tensors: Mapping[str, Tensor]) -> Named:
    """Returns arrays of NumPy over the same memory, in which NumPy refuses to write."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def fields_of(data: Mapping[str, Any], precision: str) -> tuple[tuple[str, Shape, str], ...]:
    """Returns name, shape of an example and dtype of each field.

    Raises:
        ValueError: a field has whole numbers that the precision does not hold.
    """
    arrays = {name: np.asarray(values) for name, values in data.items()}
    most = 1 << EXACT_BITS.get(precision, 24)
    for name, array in arrays.items():
        if array.dtype.kind in "iu" and array.size and max(int(array.max()), -int(array.min())) > most:
            raise ValueError(
                f"field '{name}' has whole numbers beyond {most:,}, which {precision} does not hold; "
                + ("make them smaller" if precision == "float64" else "give precision='float64'")
            )
    return tuple((name, array.shape[1:], array.dtype.name) for name, array in arrays.items())
