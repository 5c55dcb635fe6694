"""The declaration of a layer: its grid, its connectivity, its parameters and the cost of a node.

A layer is immutable. It knows no machine, no array and no clock. Calling it on the output of other layers
places it in their network.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from partita.layers.arguments import Arguments
from partita.layers.box import Shape, Span
from partita.layers.checks import check_flag
from partita.layers.connectivity import Connectivity
from partita.layers.contract import Gradients, Step, Summary, Tensor, Tensors
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.other_names import ARGUMENTS
from partita.layers.regularisers import Regulariser, check_regulariser
from partita.layers.states import SymbolicTensor
from partita.layers.ties import ParameterOf


@dataclass(frozen=True)
class Parameter:
    """An array of a layer, cut with its rows.

    Args:
        name: "weight", "bias" ...; inside a network "LAYER.weight".
        shape: of the whole array. Without `row_starts`, axis 0 is that of the layer's grid.
        initialiser: a name such as "glorot", "he", "normal", "zeros" or "ones" (see `INITIALISERS`), one
            number for all, an array of the shape, or a function `f(shape, rng)` that returns one.
        fan_in, fan_out: edges into and out of a node, for the initialiser.
        row_starts: flat position at which each row of the layer begins, and the end; None for equal rows.
        shared: every node uses the whole array, as in a convolution. It then belongs to the machine of the
            layer's first row, its owner, which sends it to the others and sums their gradients.
        trainable: whether it learns. If not, it keeps its value: no gradient, weight decay or norm has it;
            it is initialised, stored in checkpoints and counted like any other.
        averaged: whether it is a running average. Its gradient is what is to be taken from it after a step,
            and no optimizer has a say in it; it is not trainable.
        kept: of one that is averaged, whether the changes of all replicas are added up, not averaged: each
            replica changes numbers of its own.
        by_inputs: of a shared one, whether its axis 0 has the rows of the input, in place of its last: where
            the layer is cut by its inputs, each machine uses its rows.
        regulariser: adds a sum over its numbers to the loss that is trained.
        sparse: whether its gradient has few rows of axis 0 in a step, while all others are zero. Where
            nothing asks for the whole gradient, these rows alone are computed, pushed and updated. Only of a
            shared parameter with two axes.

    Raises:
        ValueError: there is no such initialiser.
    """

    name: str
    shape: Shape
    initialiser: Initialiser = "zeros"
    fan_in: int = 1
    fan_out: int = 1
    row_starts: tuple[int, ...] | None = None
    shared: bool = False
    trainable: bool = True
    averaged: bool = False
    regulariser: Regulariser | None = None
    sparse: bool = False
    kept: bool = False
    by_inputs: bool = False

    def __post_init__(self) -> None:
        assert not self.sparse or (self.shared and len(self.shape) == 2), f"{self.name} is no shared table"
        assert not (self.trainable and self.averaged), f"{self.name} is averaged, so it is not trainable"
        assert self.averaged or not self.kept, f"{self.name} is kept, so it is averaged"
        assert self.shared or not self.by_inputs, f"{self.name} is by inputs, so it is shared"
        object.__setattr__(self, "initialiser", check_initialiser(self.initialiser))

    @property
    def layer(self) -> str:
        """In a network, the name of the layer that it belongs to: of several calls that use it, the first."""
        return self.name.partition(".")[0]

    @property
    def size(self) -> int:
        """Number of its values."""
        return math.prod(self.shape)

    def span(self, rows: Span) -> Span:
        """The flat range `[start, stop)` that belongs to these rows of the layer, whole on other axes."""
        if self.shared:
            return (0, self.size) if rows[0] == 0 else (0, 0)
        if self.row_starts is not None:
            return self.row_starts[rows[0]], self.row_starts[rows[1]]
        stride = math.prod(self.shape[1:])
        return rows[0] * stride, rows[1] * stride

    def narrowed(self, columns: tuple[int, int]) -> Parameter:
        """The part of these columns of the layer, as an array of its own."""
        if self.shared or self.row_starts is not None:
            return self
        return replace(self, shape=(self.shape[0], columns[1] - columns[0], *self.shape[2:]))


@dataclass(frozen=True)
class NodeDefinition:
    """One node's arithmetic in plain Python: the specification that its kernels are tested against.

    `upward(incoming, *parameters)` returns the node's state for one example. `downward(incoming, *parameters,
    state, error)` returns an error for each sender, then a gradient for each parameter. For a loss, the
    target takes the place of the parameters, and `downward` returns the errors alone.
    """

    upward: Callable[..., Any]
    downward: Callable[..., Any] | None = None


class Layer(Arguments, ABC):
    """A kind of layer with its settings, like `Dense(10)`. Called on the output of others, it joins their
    network.
    """

    splits_sum: bool = False
    """States whether a node's sum can be taken over one block of its input's rows after the other."""
    by_rows: ClassVar[bool] = False
    """States whether kernels compute some rows before others at no cost: no two rows read the same weights.
    It is not inherited, as kernels are not: a subclass is played by its definition, all rows at once."""
    cuttable: ClassVar[bool] = True
    """States whether the rows of the layer may lie on several machines."""
    several_inputs: ClassVar[bool] = False
    """States whether it may be called on more than one layer."""
    rounds_products: ClassVar[bool] = False
    """States whether `forward` takes numbers in the precision of storage, as products of matrices do: they
    round their sums once. Else it takes numbers of bfloat16 in float32, and its result is rounded."""
    asks_gradient: ClassVar[bool] = False
    """States whether the gradient of its output is computed even where no parameter needs it."""
    stops_gradient: ClassVar[bool] = False
    """States whether the gradient of its inputs is zero. Then none is computed or sent, neither of this
    layer nor of layers that feed no other."""
    divides_examples: ClassVar[bool] = False
    """States whether threads divide the examples of a `forward`, and not its rows: for a layer without
    parameters whose rows take unequal time."""
    integer_inputs: ClassVar[bool] = False
    """States whether its inputs are numbers of classes, from 0."""
    slowdown: ClassVar[float] = 1.0
    """Time of an operation, as a multiple of one of a matrix product, which runs fastest: measured on one
    machine; it counts where a kernel was not measured."""

    _meant = ARGUMENTS

    name: str | None
    """The layer's name in the network; None lets the network choose."""
    trainable: bool = True
    """States whether its parameters learn; a layer that has some takes it as an argument."""
    regulariser: Regulariser | None = None
    """Term of the loss for its parameters but its biases; a layer that has some takes it as an argument."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.by_rows = vars(cls).get("by_rows", False)

    def __post_init__(self) -> None:
        try:
            self.check()
        except ValueError as error:
            raise ValueError(f"{self.kind}: {error}") from error

    def check(self) -> None:
        """Raises ValueError for an invalid setting; the caller adds the kind of layer."""
        check_flag(self.trainable, "trainable is")
        check_regulariser(self.regulariser)

    def _settle(self, **settings: object) -> None:
        """Replaces settings by their plain form (Python's numbers, tuples) while the layer is made."""
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    @property
    @abstractmethod
    def connectivity(self) -> Connectivity:
        """The nodes of each input that feed a node."""

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """The connectivity over each input, for inputs of these shapes; that of all unless they differ."""
        return (self.connectivity,) * len(sources)

    def described_wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """The nodes that a node reads in the layer's `definition`: those of `wirings`, unless a summary
        stands for some.
        """
        return self.wirings(sources)

    @abstractmethod
    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The layer's grid over inputs of these shapes. Raises ValueError where they do not fit."""

    @property
    @abstractmethod
    def definition(self) -> NodeDefinition | None:
        """One node's arithmetic; None where a docstring explains why."""

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The layer's parameters, in the order in which its definition takes them."""
        return ()

    def parameter(self, name: str) -> ParameterOf:
        """The parameter of this name in the layer, for an argument of another layer that uses it."""
        return ParameterOf(self, name)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Floating-point operations of one node for one example in the forward pass."""
        return float(sum(self.connectivity.fan_in(source) for source in sources))

    def summary(self, shape: Shape) -> Summary | None:
        """The summary that machines exchange where a layer of this shape is cut; None if they need none."""
        return None

    def summarise(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The summary of the rows `step.rows`, of the declared shape; called before `forward`."""
        raise NotImplementedError(f"{self.kind} declares a summary, but has no summarise")

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """The summary of all rows, from `[piece, ...]` in ascending rows; by default their sum in this order.

        `forward` finds the result as `step.summary`. Where autograd makes the backward pass, machines also
        exchange the gradients of this result.
        """
        return sum(summaries[1:], start=summaries[0])

    def partial(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sums of the rows `step.rows` over the rows `step.windows[0]` of the input, without biases.

        A layer that `splits_sum` writes it, and `finish`. Its first parameter, if it has any, has the inputs
        on its last axis, row after row, and only those given; a second one is the bias, of the rows or, where
        they share parameters, of the axis after them.
        """
        raise NotImplementedError(f"{self.kind} splits its sum, but has no partial")

    def finish(self, step: Step, sums: Tensor) -> Tensor:
        """The output from the sums with their biases; the layer's `activation`, unless it is linear."""
        raise NotImplementedError(f"{self.kind} splits its sum, but has no finish")

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The output of the rows `step.rows`, in torch: see the package's contract.

        Args:
            step: which examples and rows, and what for.
            inputs: for each input, the rows that feed these, `[rows, ..., example]`.
            parameters: pieces for these rows, or whole shared ones.
        """
        raise NotImplementedError(f"{self.kind} has no forward")

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The gradients of the inputs (None: zero) and of the parameters. Autograd makes them if not given.

        Args:
            step: the one of the forward pass.
            inputs: as there.
            parameters: as there.
            output: the result of the forward pass.
            grad_output: gradient of the output.
        """
        raise NotImplementedError(f"{self.kind} has no backward")

    @property
    def has_forward(self) -> bool:
        """Returns whether `forward` is its arithmetic: a class that defines a node anew needs a `forward` of
        its own.
        """
        owner = next(one for one in type(self).__mro__ if {"forward", "definition"} & vars(one).keys())
        return owner is not Layer and "forward" in vars(owner)

    @property
    def has_backward(self) -> bool:
        """Returns whether it writes `backward`; else autograd makes it."""
        owner = next(one for one in type(self).__mro__ if {"forward", "backward"} & vars(one).keys())
        return owner is not Layer and "backward" in vars(owner)

    @property
    def padding_value(self) -> float:
        """The state of senders outside the grid of an input. Errors that go there are dropped."""
        return 0.0

    @property
    def activation(self) -> str:
        """The function from a node's sum to its activation; "linear" for none."""
        return "linear"

    @property
    def kind(self) -> str:
        """The name that users know."""
        return type(self).__name__

    @property
    def note(self) -> str:
        """The end of a sentence that a summary adds after the layer's name; "": nothing."""
        return ""

    @property
    def default_name(self) -> str:
        """The name that a network gives to the first layer of the kind."""
        return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", self.kind).lower()

    def __call__(self, *sources: SymbolicTensor) -> SymbolicTensor:
        """Puts the layer into the network of its inputs, and returns its output.

        A layer may be called any number of times. In one network, all calls use the parameters of the first.

        Raises:
            ValueError: the shapes do not fit those of the inputs or of the parameters of the first call, or
                the inputs are of different networks; it names the layer.
        """
        if not sources or not isinstance(sources[0], SymbolicTensor):
            call = f"{self.kind}()(a, b)" if self.several_inputs else f"{self.kind}(...)(x)"
            raise ValueError(f"{self.kind} needs the states of another layer; write {call}")
        return sources[0].network.add(self, sources)


@dataclass(frozen=True)
class Placeholder(Layer):
    """Numbers from outside: an input, or the target of a loss, which the feed provides.

    Args:
        given_shape: of an example.
        role: "input" or "target".
        classes: if given, whole numbers from 0 to `classes - 1`.
        ignored: a further number that a target may have.
    """

    given_shape: Shape
    role: str
    classes: int | None = None
    ignored: int | None = None
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """None: nothing feeds it."""
        raise AssertionError("a placeholder has no inputs")

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape as it was declared."""
        return self.given_shape

    @property
    def definition(self) -> NodeDefinition | None:
        """None: it is not computed."""
        return None

    @property
    def kind(self) -> str:
        """The kind, `Input` or `Target`."""
        return self.role.capitalize()
