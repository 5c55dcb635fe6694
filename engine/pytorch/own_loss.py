"""The loss that a module computes itself: its terms, each a loss of PyTorch over scores and labels.

A module that takes labels and returns its loss has one number for all examples. Here that number is taken
apart, and the graph returns the scores of each term in its place; the labels are no inputs any more. Which
layers the terms become stands in `loss_layers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from partita.engine.pytorch.exported import Exported
from partita.engine.pytorch.folding import EXAMPLES
from partita.engine.pytorch.nodes import arguments, extent_of, extents, is_tensor, operation_of, place_of
from partita.engine.pytorch.results import Choice, NoSuchResult
from partita.engine.pytorch.simplified import insert
from partita.engine.pytorch.values import Unsupported

LABELLED: Final = ("cross_entropy_loss", "nll_loss", "nll_loss_nd")
"""Operations of ATen that are a loss of scores and a label for each row of them."""
COMPARED: Final = ("mse_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss", "kl_div")
"""Losses of a target for each score."""
SAME: Final = frozenset(("to", "_to_copy", "type_as", "contiguous", "clone", "alias", "detach"))
"""Operations that change no number."""
MOVES: Final = SAME | {
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
    *("transpose", "t", "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind"),
    *("getitem", "pad", "constant_pad_nd"),
}
"""Operations that take labels to other places."""
MARK: Final = 1 << 20
"""The number of an input's first place, while places are followed to the loss; constants are smaller."""
NONE, MEAN, SUM = range(3)
"""Numbers of PyTorch's reductions."""


@torch.library.custom_op("partita::scores_of_loss", mutates_args=())
def _scores(x: torch.Tensor, shape: Sequence[int], classes: int) -> torch.Tensor:
    """Stands for scores `(examples, *shape)`: those of `x`, with the classes last if their dimension is
    given, else -1. The graph is never run.
    """
    return torch.empty(())


_SCORES: Final = torch.ops.partita.scores_of_loss.default


@_scores.register_fake
def _(x: torch.Tensor, shape: Sequence[int], classes: int) -> torch.Tensor:
    return torch.empty(())


@dataclass(frozen=True)
class Term:
    """A loss of PyTorch in the sum that a module returns.

    Args:
        node: the operation.
        factor: its factor in the sum.
        reduction: `MEAN`, or `SUM` where it is divided by the number of examples.
        scores: the node that stands for its scores.
        target: the input with the labels.
        size: numbers of an example there.
        places: for each number of the loss's target, the number of its place in the input, from `MARK`, or a
            constant; int64 `[number]`, of two examples in PyTorch's order.
        settings: the operation's arguments.
        weights: of the classes, where they are a tensor that the module holds.
    """

    node: fx.Node
    factor: float
    reduction: int
    scores: fx.Node
    target: fx.Node
    size: int
    places: torch.Tensor
    settings: Mapping[str, Any]
    weights: torch.Tensor | None = None

    @property
    def places_of_an_example(self) -> list[int]:
        """The places in the first example; constants are negative.

        Raises:
            Unsupported: the examples differ.
        """
        before: int = self.scores.meta["before"]  # rows that PyTorch has before the examples
        rows = self.places.reshape(before, EXAMPLES, -1).movedim(1, 0).reshape(EXAMPLES, -1) - MARK
        first = torch.where(rows < 0, rows, rows - self.size * torch.arange(EXAMPLES)[:, None])
        if not torch.equal(first[0], first[1]) or bool((first[0] >= self.size).any()):
            raise Unsupported("it reads labels of other examples")
        return [int(one) for one in first[0]]


def take_loss(exported: Exported, dims: Sequence[int], output: Choice) -> tuple[Exported, tuple[Term, ...]]:
    """Takes the loss apart that a module returns last; returns the module without it, and its terms.

    The outputs are then what the module returns beside its loss, if anything, and the scores of each term.

    Args:
        exported: the module; its graph is changed.
        dims: for each input, its dimension of the examples.
        output: what was chosen of the results; then a number that needs no input of its own is not the loss.

    Raises:
        NoSuchResult: there is such a number, and nothing was chosen.
        Unsupported: the loss is none that the network can have, and why.
    """
    loss = exported.outputs[-1]
    if not is_tensor(loss) or loss.meta["val"].dim() or not loss.meta["val"].is_floating_point():
        return exported, ()
    own = _inputs_of(loss, exported) - _inputs_of(exported.outputs[0], exported)
    if len(exported.outputs) > 1 and not own:
        if output is None:
            raise NoSuchResult(
                "the module returns a number for all examples, which needs no labels; choose what is to be "
                "the network's output, such as output=0"
            )
        _return(exported, exported.outputs[:-1])
        return replace(exported), ()
    _skip_broadcasts(exported.program.graph)
    of = dict(zip(exported.inputs, dims, strict=True))
    found = [_term(exported, of, *one) for one in _terms(exported.outputs[-1], 1.0)]
    kept = (*exported.outputs[:-1], *(one.scores for one in found))
    _return(exported, kept)
    _erase(loss)
    targets = frozenset(one.target for one in found)
    for one in sorted(targets & set().union(*(_inputs_of(node, exported) for node in kept)), key=str):
        raise Unsupported(f"its loss reads {one.name!r}, from which it computes; take it as two arguments")
    return replace(exported, targets=targets), tuple(found)


def _return(exported: Exported, wanted: Sequence[fx.Node]) -> None:
    """Lets the graph return other nodes."""
    graph, signature = exported.program.graph, exported.program.graph_signature
    given, specs = graph.output_node().args[0], list(signature.output_specs)
    pairs = [one for one in zip(given, specs, strict=True) if one[1].kind is not OutputKind.USER_OUTPUT]
    own = [(one, OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(one.name), None)) for one in wanted]
    graph.output_node().args = (tuple(node for node, _ in (*pairs, *own)),)
    signature.output_specs[:] = [spec for _, spec in (*pairs, *own)]


def _erase(node: fx.Node) -> None:
    """Erases an operation that nothing reads, and those that only it read."""
    if node.op == "call_function" and not node.users:
        inputs = node.all_input_nodes
        node.graph.erase_node(node)
        for one in inputs:
            _erase(one)


def _inputs_of(node: fx.Node, exported: Exported) -> set[fx.Node]:
    """The inputs whose numbers a node is computed from."""
    seen, stack = set[fx.Node](), [node]
    while stack:
        one = stack.pop()
        if one not in seen and (is_tensor(one) or operation_of(one) != "sym_size"):
            seen.add(one)
            stack += one.all_input_nodes
    return seen.intersection(exported.inputs)


def _skip_broadcasts(graph: fx.Graph) -> None:
    """Lets nodes read what `broadcast_tensors` returns as it is; losses call that in any case."""
    for node in list(graph.nodes):
        source = node.args[0] if operation_of(node) == "getitem" else None
        if isinstance(source, fx.Node) and operation_of(source) == "broadcast_tensors":
            one = source.args[0][node.args[1]]  # type: ignore[index]
            if isinstance(one, fx.Node) and extents(one) == extents(node):
                node.replace_all_uses_with(one)


def _terms(node: Any, factor: float, *, reduction: int = NONE, divided: bool = False) -> Iterator[Any]:
    """The losses of which a number is the sum: operation, factor, reduction, whether divided by examples."""
    if node == 0:  # with which Python's sum begins
        return
    if not isinstance(node, fx.Node):
        raise Unsupported(f"it adds {node} to a loss")
    name = operation_of(node)
    a = arguments(node) if isinstance(node.target, torch._ops.OpOverload) else {}
    going: dict[str, Any] = {"reduction": reduction, "divided": divided}
    if name in (*LABELLED, *COMPARED):
        both = {a["reduction"], reduction} - {NONE}
        yield node, factor, both.pop() if len(both) == 1 else NONE, divided
    elif name in ("add", "sub"):
        if isinstance(a["other"], fx.Node) and extents(a["self"]) != extents(a["other"]):
            raise Unsupported(f"it adds losses of different shapes, at {place_of(node)}")
        yield from _terms(a["self"], factor, **going)
        yield from _terms(a["other"], factor * a["alpha"] * (1 if name == "add" else -1), **going)
    elif name == "mul":
        pair = a["self"], a["other"]
        number = next((one for one in pair if isinstance(one, int | float)), None)
        if number is None:
            raise Unsupported(f"it multiplies a loss by what is no number, at {place_of(node)}")
        yield from _terms(pair[pair[0] is number], factor * number, **going)
    elif name == "div" and (by := _number(a["other"])) is not None:
        if by[1] and divided:
            raise Unsupported(f"it divides by the number of examples twice, at {place_of(node)}")
        yield from _terms(a["self"], factor / by[0], reduction=reduction, divided=divided or by[1])
    elif name in ("mean", "sum") and not a.get("dim"):
        yield from _terms(a["self"], factor, reduction=MEAN if name == "mean" else SUM, divided=divided)
    elif name in SAME - {"detach"}:
        yield from _terms(a["self"], factor, **going)
    else:
        raise Unsupported(f"there is no loss for {name}, at {place_of(node)}")


def _number(argument: Any) -> tuple[float, bool] | None:
    """A number, or a factor and whether it multiplies the number of examples; None for a tensor."""
    if isinstance(argument, int | float):
        return float(argument), False
    value = argument.meta.get("val")
    return None if isinstance(value, torch.Tensor) or value is None else extent_of(value)


def _term(
    exported: Exported, dims: Mapping[fx.Node, int], node: fx.Node, factor: float, how: int, by: bool
) -> Term:
    """The term of an operation; lets a node of the graph stand for its scores."""
    name, a = operation_of(node), arguments(node)
    if how == NONE or by != (how == SUM):
        raise Unsupported(
            f"{name} is summed over the examples, and a network's loss is their mean: divide by "
            f'x.size(0), or take reduction="mean"; at {place_of(node)}'
        )
    x, target = a["self"], a["target"]
    n, labelled = x.meta["val"].dim(), name in LABELLED
    if labelled and target.meta["val"].is_floating_point():
        raise Unsupported(f"{name} has probabilities for labels, at {place_of(node)}")
    if not labelled and extents(x) != extents(target):
        raise Unsupported(f"{name} joins {extents(x)} and {extents(target)}, which differ")
    classes = min(1, n - 1) if labelled else n - 1
    if name in ("nll_loss", "nll_loss_nd", "kl_div") and not _is_log_softmax(x, classes):
        raise Unsupported(f"{name} reads what is no log_softmax over the classes, at {place_of(node)}")
    given, places = _followed(target, dims)
    shape = _shape(given, dims[given])
    if labelled:
        rows, width = len(places) // EXAMPLES, extents(x)[classes][0]
        shape = [width] if math.prod(shape) == 1 else [rows, width]
    elif len(places) != EXAMPLES * math.prod(shape):
        raise Unsupported(f"{name} reads a part of {given.name!r}; let it be all, at {place_of(node)}")
    scores = insert(node.graph, node, _SCORES, x, shape, classes if labelled else -1)
    if labelled and a["reduction"] == NONE and how == MEAN:  # divided by all labels, ignored ones, too
        how, factor = SUM, factor / (len(places) // EXAMPLES)
    weight = a.get("weight")
    weights = exported.state[weight][1] if weight in exported.state else None
    return Term(node, factor, how, scores, given, math.prod(_shape(given, dims[given])), places, a, weights)


def _is_log_softmax(x: fx.Node, dimension: int) -> bool:
    """Returns whether a tensor holds logarithms of the shares of a dimension."""
    while operation_of(x) != "log_softmax":
        name, n = operation_of(x), x.meta["val"].dim()
        before = x.all_input_nodes[0] if x.op == "call_function" and x.all_input_nodes else None
        if before is None or not is_tensor(before):
            return False
        if name == "transpose":
            a = arguments(x)
            swapped = {a["dim0"] % n: a["dim1"] % n, a["dim1"] % n: a["dim0"] % n}
            dimension = swapped.get(dimension, dimension)
        elif name == "permute":
            dimension = arguments(x)["dims"][dimension] % n
        elif name in ("view", "reshape", "flatten"):
            if dimension != n - 1 or extents(x)[-1] != extents(before)[-1]:
                return False
            dimension = before.meta["val"].dim() - 1
        elif name not in SAME:
            return False
        x = before
    return bool(arguments(x)["dim"] % x.meta["val"].dim() == dimension)


def _shape(node: fx.Node, dim: int) -> list[int]:
    """The extents of an input behind its examples."""
    return [int(one) for at, one in enumerate(node.meta["val"].shape) if at != dim]


def _followed(target: fx.Node, dims: Mapping[fx.Node, int]) -> tuple[fx.Node, torch.Tensor]:
    """The input that a loss has for its target, and the places of its numbers there.

    Raises:
        Unsupported: it is computed, or of several inputs.
    """
    known: dict[fx.Node, Any] = {}

    def places(node: fx.Node) -> Any:
        if node in dims and node not in known:
            shape = _shape(node, dims[node])
            numbers = torch.arange(MARK, MARK + EXAMPLES * math.prod(shape)).reshape(EXAMPLES, *shape)
            kind = torch.float64 if node.meta["val"].is_floating_point() else torch.int64
            known[node] = numbers.movedim(0, dims[node]).to(kind)
        if node in known:
            return known[node]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor | tuple | list):
            factor, counts = extent_of(value)
            return factor * EXAMPLES if counts else factor
        if node.op != "call_function" or operation_of(node) not in MOVES:
            raise Unsupported(f"its labels are computed by {operation_of(node)}, at {place_of(node)}")
        if operation_of(node) in SAME:
            return places(node.all_input_nodes[0]).contiguous()  # of which there may be views
        assert callable(node.target), node.target
        return node.target(*fx.map_arg(node.args, places), **fx.map_arg(node.kwargs, places))

    found = places(target).reshape(-1).to(torch.int64)
    if len(known) != 1:
        raise Unsupported(f"its labels are of several inputs, at {place_of(target)}")
    return next(iter(known)), found
