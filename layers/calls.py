"""Checks of calls: states of one network, targets for losses alone, numbers of classes where they are read.

Every mistake is refused with the layer's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from partita.layers.example_weights import weights_of
from partita.layers.graph import Grid
from partita.layers.layer import Layer, Placeholder
from partita.layers.losses import Loss
from partita.layers.states import Builder, SymbolicTensor

Grids = Mapping[str, Grid]
"""The layers of a network so far, by name."""


def check_sources(
    layer: Layer, name: str, sources: tuple[SymbolicTensor, ...], network: Builder, grids: Grids
) -> None:
    """Checks what a layer is called on; the targets of a loss are for `bound_targets`.

    Raises:
        ValueError: an input is none of the network's states, a target or a loss, has numbers of classes where
            the layer computes or lacks them where it looks them up; or there are too many inputs.
    """
    for source in sources:
        if not isinstance(source, SymbolicTensor):
            raise ValueError(
                f"{layer.kind} '{name}' was called on {sources}; call it on the states of layers"
            )
        if source.network is not network:
            raise ValueError(
                f"{layer.kind} '{name}' joins '{source.name}' of network '{source.network.name}' with "
                f"network '{network.name}'; declare all of its inputs in one network"
            )
    if not isinstance(layer, Loss):
        for source in sources:
            _refuse_target(layer, name, grids[source.name])
            _check_numbers(layer, name, grids[source.name])
    if len(sources) > 1 and not layer.several_inputs:
        raise ValueError(
            f"{layer.kind} '{name}' takes one input, not {len(sources)}; "
            f"join them first, for example with Add()"
        )


def bound_targets(
    loss: Loss, name: str, sources: tuple[SymbolicTensor, ...], grids: Grids
) -> dict[str, Grid]:
    """Returns the targets of a loss with the shapes that follow from its scores.

    Raises:
        ValueError: the loss is not called on scores and its targets, or a target serves another shape.
    """
    targets = sources[1:]
    if not loss.takes_target:
        if targets or _is_target(grids[sources[0].name]):
            raise ValueError(
                f"{loss.kind} '{name}' takes scores alone, without a target or weights; call it for "
                f"example as {loss.kind}()(scores)"
            )
        return {}
    if (
        len(targets) not in (1, 2)
        or _is_target(grids[sources[0].name])
        or not all(_is_target(grids[one.name]) for one in targets)
    ):
        raise ValueError(
            f"{loss.kind} '{name}' takes scores and a target; "
            f'call it for example as {loss.kind}()(scores, net.target("label"))'
        )
    scores = sources[0].shape
    try:
        shape, classes = loss.target(scores)
        weights = weights_of(loss, scores)
    except ValueError as error:
        raise ValueError(f"{loss.kind} '{name}': {error}") from error
    bound = Placeholder(shape, "target", classes, loss.ignored)
    found: dict[str, Grid] = {}
    for given, layer in zip(targets, (bound, weights), strict=False):
        target = grids[given.name]
        taken = len({one.name for one in targets}) < len(targets) or any(
            target.name in grid.sources for grid in grids.values()
        )
        if taken and target.layer != layer:
            raise ValueError(
                f"target '{target.name}' already serves a loss of another shape; declare a second target"
            )
        found[target.name] = replace(target, shape=layer.given_shape, layer=layer)
    return found


def _refuse_target(layer: Layer, name: str, source: Grid) -> None:
    if _is_target(source):
        raise ValueError(f"{layer.kind} '{name}' reads target '{source.name}'; only a loss may")
    if isinstance(source.layer, Loss):
        raise ValueError(f"{layer.kind} '{name}' reads loss '{source.name}'; a loss is the end of a network")


def _check_numbers(layer: Layer, name: str, source: Grid) -> None:
    """Refuses numbers of classes where a layer computes with them, and all else where it looks them up."""
    given = getattr(source.layer, "classes", None)
    is_input = source.is_placeholder
    if is_input and given is not None and not layer.integer_inputs:
        raise ValueError(
            f"{layer.kind} '{name}' computes with '{source.name}', whose numbers name classes; "
            f"look them up first: Embedding({given}, units)(...)"
        )
    if layer.integer_inputs and not (is_input and given is not None):
        raise ValueError(
            f"{layer.kind} '{name}' reads '{source.name}', which holds no numbers of classes; "
            f"declare them: net.input({source.name!r}, shape=..., classes=...)"
        )
    most = getattr(layer, "classes", None)
    if layer.integer_inputs and most is not None and given is not None and given > most:
        raise ValueError(
            f"{layer.kind} '{name}' has {most} classes, but '{source.name}' has {given}; give it {given}"
        )


def _is_target(grid: Grid) -> bool:
    return isinstance(grid.layer, Placeholder) and grid.layer.role == "target"
