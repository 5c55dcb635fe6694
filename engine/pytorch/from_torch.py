"""`from_torch`: a network from a module of PyTorch, operation by operation."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch

from partita.engine.pytorch import (  # noqa: F401 - they register what becomes what
    alignment_of_places,
    moved_operations,
    operations,
    sequences,
    weights,
)
from partita.engine.pytorch.cells import write_out_cells
from partita.engine.pytorch.computed import expression
from partita.engine.pytorch.conversion import Conversion, name_of
from partita.engine.pytorch.example_args import Arguments, in_the_order_of
from partita.engine.pytorch.examples_first import examples_first
from partita.engine.pytorch.exported import Exported
from partita.engine.pytorch.imported_network import ImportedNetwork, Missing
from partita.engine.pytorch.kept import Call, calls_of, part_around, stand_for
from partita.engine.pytorch.loss_layers import place_losses
from partita.engine.pytorch.own_loss import take_loss
from partita.engine.pytorch.results import Choice, return_one
from partita.engine.pytorch.values import Unsupported
from partita.engine.pytorch.whole_weights import whole_weights


def from_torch(
    module: torch.nn.Module,
    example_args: Arguments,
    *,
    examples_dim: int | Sequence[int] = 0,
    output: Choice = None,
    opaque: bool = False,
    name: str = "",
) -> ImportedNetwork:
    """Declares the network that a module of PyTorch computes, with its numbers as initial values.

    The module's graph comes from `torch.export`, in training: the network trains what the module trains, and
    `evaluate` and `predict` compute what it computes in `eval()`. Parts in `eval()` inside a module in
    training stay so: they drop nothing, and their batch normalisation has frozen statistics. A module that is
    itself in `eval()`, as after loading, is taken for one at rest, and all of it trains.

    The inputs have the module's own order of axes, such as (channels, height, width); inside, pictures are
    turned where a layer needs it. The module stays as it is.

    Args:
        module: takes tensors of examples, and returns one, or several of which `output` names one.
        example_args: a tensor for each input, in order or by name, with two examples or more; only shapes and
            types matter.
        examples_dim: the dimension of the examples in the inputs, or in each: 1 for modules that take
            positions first. Inputs and output of the network have the other dimensions, in their order.
        output: of a module that returns several tensors, the one that becomes the network's output: a name,
            such as "logits", or a number. Results that are no tensors, such as caches, do not count.
        opaque: whether a part of the module that has operations without layers stays as it is, as one layer
            `Torch`: the smallest part that takes and returns tensors of examples.
        name: of the network; that of the module's class if not given.

    Returns:
        The network, with its `output`; assign `net.loss`. Where the module takes labels and returns a loss,
        it has that loss, with a target that has the labels' name; the output is then what the module returns
        beside it, or the scores.

    Raises:
        ValueError: `torch.export` makes no graph of the module, or operations have no layers: all of them are
            named, with the lines of the source.
    """
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"{module!r} is no module; give an instance of torch.nn.Module")
    dims = [examples_dim] * len(example_args) if isinstance(examples_dim, int) else list(examples_dim)
    example_args = in_the_order_of(module, example_args)
    calls = calls_of(in_training(module), example_args) if opaque and not any(dims) else {}
    name, parts = name_of(name or type(module).__name__), set[str]()
    reasons: dict[str, list[Missing]] = {}
    while True:
        network, missing = _converted(module, example_args, dims, calls, parts, name, output)
        if not missing:
            network.keep_names(module)
            network.kept = {path: tuple(some) for path, some in reasons.items()}
            return network
        for one in missing:
            reasons.setdefault(part_around(one.module, calls), []).append(one)
        around = {part_around(one.module, calls) for one in missing}
        if not opaque or "" in around or around <= parts:
            listed = "\n  ".join(dict.fromkeys(map(str, missing)))
            advice = "parts around them cannot stay as they are" if opaque else "opaque=True keeps them"
            raise ValueError(f"{type(module).__name__} has operations without layers; {advice}:\n  {listed}")
        parts |= around
        parts = {one for one in parts if not any(one.startswith(f"{other}.") for other in parts)}


def _converted(
    module: torch.nn.Module,
    example_args: Arguments,
    dims: Sequence[int],
    calls: Mapping[str, Call],
    parts: Iterable[str],
    name: str,
    output: Choice,
) -> tuple[ImportedNetwork, list[Missing]]:
    """Declares the network of a module some of whose parts stay as they are; returns what has no layer."""
    network, rest = ImportedNetwork(name), in_training(module)
    kept = stand_for(rest, parts, calls)
    return_one(rest, output)
    exported = Exported.of(rest, example_args, dims)
    whole_weights(exported.program.graph)
    write_out_cells(exported.program.graph, frozenset(exported.state))
    network.arguments = tuple(name_of(one.name) for one in exported.inputs)
    of = dict(zip(exported.inputs, dims, strict=True))
    try:
        exported, terms = take_loss(exported, dims, output)
        exported = examples_first(exported, [of[one] for one in exported.inputs]).simplified()
        conversion = Conversion(network, exported, kept)
    except Unsupported as error:
        raise ValueError(f"{type(module).__name__} cannot be a network: {error}") from None
    missing = conversion.convert(expression)
    if not missing:
        try:
            network.output = conversion.output().in_order()
        except Unsupported as error:
            raise ValueError(f"the result of {type(module).__name__} is no network's: {error}") from None
        try:
            place_losses(conversion, exported, terms)
        except Unsupported as error:
            raise ValueError(f"the loss of {type(module).__name__} is no network's: {error}") from None
        network.drop_unused()
        left = network.origins.keys()
        network.initialise({name: one for name, one in conversion.initial.items() if name in left})
    return network, missing


def in_training(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in training, of which parts in `eval()` stay so unless the whole module is."""
    found = copy.deepcopy(module)
    return found if found.training else found.train()
