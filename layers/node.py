"""A layer of one's own: one node's arithmetic as a plain Python function of scalars.

    @node(Patch(3), weight=per_edge("glorot"), bias=per_node("zeros"))
    def leaky_sum(incoming, weight, bias):
        ...

    hidden = leaky_sum()(image)

`incoming` is an array of the states of the node's senders, for one example; a `per_edge` parameter is an
array of the same length, a `per_node` parameter one number. Nodes may share a parameter: those of a filter,
as in a convolution, or all of the layer. The engine derives the backward function, and compiles both over all
nodes and examples.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from partita.layers.box import Shape
from partita.layers.checks import check_shape
from partita.layers.connectivity import Connectivity
from partita.layers.edges import Edges
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.regularisers import Regulariser
from partita.layers.states import SymbolicTensor

SharedBy: TypeAlias = Literal["filter", "layer"] | None
"""The nodes that use the same numbers: those of a filter (at all places), all of the layer, or none."""


@dataclass(frozen=True)
class ParameterKind:
    """The numbers of a parameter that a node uses: one for each incoming edge, or one; its own, or shared."""

    per: Literal["edge", "node"]
    initialiser: Initialiser
    shared_by: SharedBy = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "initialiser", check_initialiser(self.initialiser))
        if self.shared_by not in (None, "filter", "layer"):
            raise ValueError(
                f"a parameter is shared by {self.shared_by!r}; write 'filter' for the nodes of a filter at "
                f"all places, 'layer' for all nodes, or leave it out"
            )

    def shape(self, grid: Shape) -> Shape:
        """The shape of an array with a number for each node, or for each filter or all if these share one.

        In a grid of one axis each filter is one node, which shares nothing.
        """
        if self.shared_by == "layer":
            return (1,)
        return grid[-1:] if self.shared_by == "filter" else grid

    def is_shared(self, grid: Shape) -> bool:
        """Returns whether several nodes of a grid may use the same numbers."""
        return self.shared_by == "layer" or (self.shared_by == "filter" and len(grid) > 1)


def per_edge(initialiser: Initialiser = "glorot", *, shared_by: SharedBy = None) -> ParameterKind:
    """A parameter with a number for each incoming edge of each node.

    Args:
        initialiser: of its numbers.
        shared_by: "filter" if the nodes of a filter use the same numbers at all places, as in a convolution;
            "layer" if all nodes use the same; None if each node has its own.

    Raises:
        ValueError: there is no such initialiser, or no such way to share.
    """
    return ParameterKind("edge", initialiser, shared_by)


def per_node(initialiser: Initialiser = "zeros", *, shared_by: SharedBy = None) -> ParameterKind:
    """A parameter with a number for each node; `shared_by` as in `per_edge`.

    Raises:
        ValueError: there is no such initialiser, or no such way to share.
    """
    return ParameterKind("node", initialiser, shared_by)


@dataclass(frozen=True)
class Node(Layer):
    """A layer written as one node's scalar `upward` and `downward`.

    Args:
        wiring: `Full()`, `Patch(...)`, `OneToOne()` or `Edges(...)`, of each input.
        upward: `(incoming, *parameters) -> state`; `incoming` has the states of the first input's senders,
            then those of the second, and so on.
        downward: `(incoming, *parameters, state, error) -> (errors, *gradients)`, where errors and the
            gradient of a `per_edge` parameter are arrays as long as incoming; None: it is derived.
        learns: the parameters by name, in the order in which the functions take them.
        nodes: the grid of a `Full` layer, the filters of a `Patch` layer; else it follows from the wiring.
        regulariser: of its parameters but "bias", for example `L2(1e-4)`.
        trainable: whether its parameters learn.
        name: what the network calls the layer.

    Raises:
        ValueError: a function does not take what it will be given, by the names of the parameters; or one of
            the others is none of these.
    """

    slowdown = 30.0
    several_inputs = True
    wiring: Connectivity
    upward: Callable[..., Any]
    downward: Callable[..., Any] | None = None
    learns: tuple[tuple[str, ParameterKind], ...] = ()
    nodes: Shape | None = None
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        _check_wiring(self.wiring)
        for name, kind in self.learns:
            _check_kind(name, kind)
        names = [name for name, _ in self.learns]
        _check_arguments(self.upward, names, last=[])
        if self.downward is not None:
            _check_arguments(self.downward, names, last=["state", "error"])
        if self.nodes is not None:
            self._settle(nodes=check_shape(self.nodes, "the number of nodes is"))

    @property
    def connectivity(self) -> Connectivity:
        """The wiring as it was declared."""
        return self.wiring

    @property
    def definition(self) -> NodeDefinition:
        """The user's two functions."""
        return NodeDefinition(self.upward, self.downward)

    @property
    def default_name(self) -> str:
        """The name of the upward function."""
        return _name_of(self.upward).strip("<>")

    @property
    def kind(self) -> str:
        """`Node` and the function's name."""
        return f"Node {_name_of(self.upward)}"

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The grid that the wiring makes of every input."""
        shapes = [self.wiring.shape(source, self.nodes) for source in sources]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"its inputs make grids of the shapes {shapes}; give it inputs of one shape")
        return shapes[0]

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """One array for each parameter; those of a sparse graph's edges lie node after node in one row.

        An array that nodes share is `[filters]` or `[filters, fan_in]`; if all of them do, of one filter.
        """
        fan_in = sum(map(self.wiring.fan_in, sources))
        fan_out = max(1, math.prod(shape) * fan_in // sum(map(math.prod, sources)))
        found = []
        for name, kind in self.learns:
            whole, starts = kind.shape(shape), None
            if kind.per == "edge" and isinstance(self.wiring, Edges):
                _refuse_shared_edges(name, kind)
                starts = tuple(start * len(sources) for start in self.wiring.row_offsets)
                whole = (starts[-1],)
            elif kind.per == "edge":
                whole = (*whole, fan_in)
            shared = kind.is_shared(shape)
            found.append(Parameter(name, whole, kind.initialiser, fan_in, fan_out, starts, shared))
        return tuple(found)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """An estimate: two operations for each incoming edge."""
        return 2.0 * sum(map(self.wiring.fan_in, sources))


class NodeKind:
    """The result of `@node(...)`: call it for a layer; `.downward` decorates its backward function."""

    def __init__(
        self, wiring: Connectivity, upward: Callable[..., Any], learns: dict[str, ParameterKind]
    ) -> None:
        self._layer = Node(wiring, upward, learns=tuple(learns.items()))
        self.__doc__ = upward.__doc__

    @property
    def upward(self) -> Callable[..., Any]:
        """The function that it decorates."""
        return self._layer.upward

    def downward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the function that returns an error for each sender and a gradient for each parameter."""
        self._layer = replace(self._layer, downward=function)
        return function

    def __call__(self, nodes: int | Shape | None = None, *, name: str | None = None) -> Node:
        """Makes a layer of this kind; `nodes` is the grid of a `Full` layer or the filters of a `Patch`
        layer.

        Raises:
            ValueError: `nodes` is neither.
        """
        _refuse_states(nodes, _name_of(self._layer.upward))
        return replace(self._layer, nodes=cast(Shape | None, nodes), name=name)  # the layer makes a tuple


def node(wiring: Connectivity, **learns: ParameterKind) -> Callable[[Callable[..., Any]], NodeKind]:
    """Declares a kind of layer by one node's upward function.

    Args:
        wiring: `Full()`, `Patch(...)`, `OneToOne()` or `Edges(...)`.
        learns: what the function takes after `incoming`, in order: `per_edge(...)` or `per_node(...)` each,
            with `shared_by` where nodes use the same numbers.

    Example::

        @node(Patch(3), weight=per_edge("glorot"), bias=per_node("zeros"))
        def leaky_sum(incoming, weight, bias): ...

        @leaky_sum.downward
        def leaky_sum_errors(incoming, weight, bias, state, error): ...

        hidden = leaky_sum()(image)

    Raises:
        ValueError: the wiring is none; or, once it decorates a function, as for `Node`.
    """
    _check_wiring(wiring)
    return lambda upward: NodeKind(wiring, upward, learns)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _refuse_states(nodes: object, kind: str) -> None:
    if isinstance(nodes, SymbolicTensor):
        raise ValueError(f"{kind} was called on states; make a layer of it first: {kind}()(states)")


def _check_kind(name: str, kind: object) -> None:
    if not isinstance(kind, ParameterKind):
        given = _name_of(kind) if callable(kind) else repr(kind)
        raise ValueError(f"parameter '{name}' is {given}; write {name}=per_edge(...) or {name}=per_node(...)")


def _refuse_shared_edges(name: str, kind: ParameterKind) -> None:
    """Refuses numbers of edges that nodes with different numbers of edges would share."""
    if kind.shared_by is not None:
        raise ValueError(
            f"parameter '{name}' has a number for each edge, shared by each {kind.shared_by}, but nodes of a "
            f"sparse graph differ in their edges; let each node have its own, or share one of per_node(...)"
        )


def _check_wiring(wiring: object) -> None:
    if not isinstance(wiring, Connectivity):
        given = _name_of(wiring) if callable(wiring) else repr(wiring)
        raise ValueError(f"a node's wiring is {given}; write for example @node(Full()) or @node(Patch(3))")


def _check_arguments(function: object, parameters: list[str], *, last: list[str]) -> None:
    """Checks that the parameters have the names declared; other arguments may be named freely."""
    if not callable(function):
        raise ValueError(f"{function!r} is no function; give one that computes a node")
    takes, given = list(inspect.signature(function).parameters), ["incoming", *parameters, *last]
    found = f"{_name_of(function)} takes ({', '.join(takes)})"
    if len(takes) != len(given):
        raise ValueError(
            f"{found}, but a node gives it ({', '.join(given)}); "
            f"let it take those {len(given)}, in this order"
        )
    if takes[1 : 1 + len(parameters)] != parameters:
        raise ValueError(
            f"{found}, but its parameters are declared as {', '.join(parameters)}; "
            f"name them so, in this order"
        )
