"""Declaring a network: inputs, layers called like functions, targets and losses.

Every mistake is refused where it is made, and names the layer. `Network.graph()` is the finished, immutable
result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from partita.layers.architecture import from_json, to_json
from partita.layers.box import Shape
from partita.layers.calls import bound_targets, check_sources
from partita.layers.checks import check_finite, check_shape, check_whole
from partita.layers.exits import Exit
from partita.layers.graph import Graph, Grid
from partita.layers.initial import InitialValues
from partita.layers.layer import Layer, Parameter, Placeholder
from partita.layers.losses import Loss
from partita.layers.module_state import ModuleState
from partita.layers.overview import NetworkSummary, summary_of
from partita.layers.states import LossSum, SymbolicTensor
from partita.layers.text import counted
from partita.layers.ties import ParameterOf, tied

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Network:
    """A network while it is being declared.

    Example::

        net = Network("digits")
        image = net.input("image", shape=(8, 8, 1))
        scores = Dense(10)(LocallyConnected2D(8, kernel_size=3, activation="relu")(image))
        net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    """

    def __init__(self, name: str) -> None:
        self.name = _checked(name, "a network")
        self._grids: dict[str, Grid] = {}
        self._losses: dict[str, float] = {}
        self._parameters: dict[str, dict[str, Parameter]] = {}
        self._several: dict[int, tuple[object, dict[str, Layer]]] = {}

    @property
    def parameters(self) -> dict[str, dict[str, Parameter]]:
        """For each layer, its parameters by their names in the layer.

        Layers that use the same parameter have it under the same full name (`Parameter.name`), which begins
        with the name of the layer that it belongs to.
        """
        return {name: dict(own) for name, own in self._parameters.items()}

    def input(self, name: str, *, shape: int | Sequence[int], classes: int | None = None) -> SymbolicTensor:
        """Declares an input, an array of this shape per example; pictures are (height, width, channels).

        Args:
            name: of the input.
            shape: of an example.
            classes: if given, the input holds whole numbers from 0 to `classes - 1`, which an `Embedding`
                reads.

        Raises:
            ValueError: the name is invalid or taken, or this is no shape or number of classes.
        """
        extents = check_shape(shape, f"the shape of input {name!r} is")
        if classes is not None:
            classes = check_whole(classes, f"the number of classes of input {name!r} is")
        layer = Placeholder(extents, "input", classes)
        return self._register(Grid(self._free(name), extents, layer, (), (), 0.0))

    def target(self, name: str) -> SymbolicTensor:
        """Declares the target of a loss. Its shape follows from the loss that is called on it.

        Raises:
            ValueError: the name is invalid or taken.
        """
        return self._register(Grid(self._free(name), (1,), Placeholder((1,), "target"), (), (), 0.0))

    def add(self, layer: Layer, sources: tuple[SymbolicTensor, ...]) -> SymbolicTensor:
        """Places a layer over its inputs; calling the layer calls this.

        A layer that was called before uses the parameters of its first call; see `ties`.

        Raises:
            ValueError: the layer cannot stand there; it names the layer.
        """
        name = self._unused(layer.name or layer.default_name)
        if layer.name is not None and self._first_call(layer) is None:
            name = self._free(layer.name, f"a layer of kind {layer.kind}")
        check_sources(layer, name, sources, self, self._grids)
        if isinstance(layer, Loss):
            self._grids |= bound_targets(layer, name, sources, self._grids)
        shapes = tuple(source.shape for source in sources)
        try:
            shape = layer.shape(shapes)
            own = self._own_parameters(layer, name, layer.parameters(shape, shapes))
        except ValueError as error:
            raise ValueError(f"{layer.kind} '{name}': {error}") from error
        self._parameters[name] = own
        names, flops = tuple(s.name for s in sources), layer.flops_per_node(shapes)
        grid = Grid(name, shape, layer, names, tuple(own.values()), flops, layer.wirings(shapes))
        return self._register(grid)

    def exit(
        self,
        scores: SymbolicTensor,
        target: SymbolicTensor | None = None,
        *,
        weight: float = 1.0,
        threshold: float | None = None,
        name: str | None = None,
    ) -> SymbolicTensor:
        """Ends examples at scores that are certain enough; adds the scores' cross-entropy to `loss`.

        Training minimises the weighted sum of all losses. `predict_with_exits` ends an example at the first
        exit where the normalised entropy of its scores is below the threshold; the last exit takes the rest.

        Args:
            scores: a row of scores, one for each class.
            target: the labels; those of the exit before if not given, and for the first `target("label")`.
            weight: factor of the exit's loss in the sum.
            threshold: see `Exit`.
            name: of the exit.

        Returns:
            The exit's loss.

        Raises:
            ValueError: the scores, the target or a setting do not fit, or the name is taken.
        """
        before = (grid for grid in reversed(self._grids.values()) if isinstance(grid.layer, Exit))
        labels = next((SymbolicTensor(self, grid.sources[1]) for grid in before), None)
        loss = Exit(loss_weight=weight, threshold=threshold, name=name)(
            scores, target or labels or self.target("label")
        )
        self._losses[loss.name] = 1.0
        return loss

    def placed(self, several: object) -> dict[str, Layer]:
        """The layers that a call of `several`, such as a `FeedForward`, placed, by their parts in it.

        A call fills it; a later call of the same object calls these layers again, so that it uses their
        parameters.
        """
        return self._several.setdefault(id(several), (several, {}))[1]

    def initialise(self, values: Mapping[str, Any]) -> None:
        """Gives parameters arrays of initial values, by their full names, such as "hidden.weight".

        Raises:
            ValueError: there is no such parameter, or it has another shape.
        """
        known = {one.name for own in self._parameters.values() for one in own.values()}
        for name in values:
            if name not in known:
                raise ValueError(
                    f"network '{self.name}' has no parameter '{name}'; it has {', '.join(known)}"
                )
        given = {name: InitialValues(array) for name, array in values.items()}

        def begun(parameter: Parameter) -> Parameter:
            if parameter.name not in given:
                return parameter
            given[parameter.name].check(parameter.name, parameter.shape)
            return replace(parameter, initialiser=given[parameter.name])

        for name, own in self._parameters.items():
            self._parameters[name] = {short: begun(one) for short, one in own.items()}
            grid = self._grids[name]
            self._grids[name] = replace(grid, parameters=tuple(map(begun, grid.parameters)))

    @property
    def loss(self) -> tuple[SymbolicTensor, ...]:
        """The losses whose sum is minimised. Assign one, a weighted sum (`loss + 0.3 * other`), or several as
        a tuple or list, to which `loss_weights` gives weights.
        """
        return tuple(SymbolicTensor(self, name) for name in self._losses)

    @loss.setter
    def loss(self, losses: SymbolicTensor | LossSum | Iterable[SymbolicTensor | LossSum]) -> None:
        """Takes the losses and their weights; refuses what is no loss."""
        found: dict[str, float] = {}
        for given in losses if isinstance(losses, Iterable) else (losses,):
            for loss, weight in given.terms if isinstance(given, LossSum) else ((given, 1.0),):
                name = self._name_of_loss(loss)
                if name in found:
                    raise ValueError(f"loss '{name}' is assigned twice; name each loss once")
                found[name] = weight
        self._losses = found

    @property
    def loss_weights(self) -> tuple[float, ...]:
        """The factors of the losses in their sum, in their order. Assign a number for each, as in Keras."""
        return tuple(self._losses.values())

    @loss_weights.setter
    def loss_weights(self, weights: Sequence[float]) -> None:
        """Takes a number for each loss."""
        given = tuple(check_finite(weight, "a loss weight is") for weight in weights)
        if len(given) != len(self._losses):
            raise ValueError(
                f"loss_weights has {counted(len(given), 'number')} for "
                f"{counted(len(self._losses), 'loss', 'losses')}; assign net.loss first, and give one for "
                "each"
            )
        self._losses = dict(zip(self._losses, given, strict=True))

    def shape(self, name: str) -> Shape:
        """The grid of a layer, by its name.

        Raises:
            ValueError: there is no such layer.
        """
        if name not in self._grids:
            raise ValueError(f"network '{self.name}' has no layer '{name}'; it has {', '.join(self._grids)}")
        return self._grids[name].shape

    def graph(self) -> Graph:
        """Freezes the finished network.

        Raises:
            ValueError: an input, a target or a layer is used by nobody, or a loss is not assigned.
        """
        used = {source for grid in self._grids.values() for source in grid.sources} | set(self._losses)
        for grid in self._grids.values():
            if grid.name in used or (
                not self._losses and not grid.is_placeholder and not isinstance(grid.layer, Loss)
            ):
                continue
            if isinstance(grid.layer, Loss):
                raise ValueError(
                    f"loss '{grid.name}' is not assigned; write net.loss = it (or a tuple of several)"
                )
            raise ValueError(
                f"{grid.layer.kind} '{grid.name}' of network '{self.name}' is used by nobody; "
                f"call a layer on it, or remove it"
            )
        if not any(not grid.is_placeholder for grid in self._grids.values()):
            raise ValueError(f"network '{self.name}' computes nothing; call a layer on its input")
        found = Graph(self.name, self._placed, tuple(self._losses), self.origin)
        if found.losses and found.unreached:
            name = found.unreached[0]
            raise ValueError(
                f"{name} of network '{self.name}' is to learn, but no gradient reaches it: layers between it "
                f"and the losses stop gradients; make layer '{found.parameters[name].layer}' with "
                "trainable=False"
            )
        return found

    @property
    def origin(self) -> ModuleState:
        """The state dict of the module that the network was made of; empty for others."""
        return ()

    @property
    def _placed(self) -> tuple[Grid, ...]:
        """The layers, losses with the weights that they were assigned with."""
        return tuple(map(self._weighted, self._grids.values()))

    def _weighted(self, grid: Grid) -> Grid:
        weight = self._losses.get(grid.name, 1.0)
        if weight == 1.0 or not isinstance(grid.layer, Loss):
            return grid
        return replace(grid, layer=replace(grid.layer, loss_weight=weight * grid.layer.loss_weight))

    def summary(self) -> NetworkSummary:
        """Returns a table of the layers: kind, shape, parameters, bytes and operations. Print it.

        A plan's `summary()` says where the rows are, too.
        """
        return summary_of(Graph(self.name, self._placed, tuple(self._losses)))

    def to_json(self) -> str:
        """Returns the architecture as JSON, which `from_json` reads: layers, settings, names and losses.

        It has no parameters, and no code: built-in layers, initialisers and regularisers go by their names,
        functions and classes of your own by module and name. Arrays of initial values are lists of numbers.

        Raises:
            ValueError: a setting cannot be written, such as a lambda; the message names it.
        """
        return to_json(self.name, self._placed, tuple(self._losses))

    @classmethod
    def from_json(cls, text: str, *, custom: Mapping[str, Any] | None = None) -> Self:
        """Declares the network that `to_json` wrote. Nothing is imported or unpickled.

        Args:
            text: the JSON.
            custom: your own classes and functions, by their names: `{"MyLayer": MyLayer}`, or with the module
                as in the file.

        Raises:
            ValueError: the text is damaged or of a newer version, a layer is refused, or `custom` lacks
                something; the message names the layer.
        """
        found: Self = from_json(text, cls, custom or {})
        return found

    def _first_call(self, layer: Layer) -> str | None:
        """The name of the first call of this very layer."""
        return next((grid.name for grid in self._grids.values() if grid.layer is layer), None)

    def _own_parameters(self, layer: Layer, name: str, asked: Iterable[Parameter]) -> dict[str, Parameter]:
        """The parameters that a call uses, by their names in the layer. Raises ValueError."""
        found = {one.name: self._parameter(layer, name, one) for one in asked}
        if len({one.name for one in found.values()}) < len(found):
            raise ValueError("two of its parameters are the same one; give each another")
        for one in found.values():
            if isinstance(one.initialiser, InitialValues):
                one.initialiser.check(one.name, one.shape)
        return found

    def _parameter(self, layer: Layer, name: str, asked: Parameter) -> Parameter:
        """The parameter that a call uses: its own, or that of another call."""
        before, given = self._first_call(layer), getattr(layer, asked.name, None)
        if before is not None:
            return tied(asked, self._parameters[before][asked.name])
        if isinstance(given, ParameterOf) and given.layer is not layer:
            return tied(asked, self._given(given, asked.name))
        return replace(
            asked,
            name=f"{name}.{asked.name}",
            trainable=asked.trainable and layer.trainable,
            regulariser=asked.regulariser or (None if _is_bias(asked.name) else layer.regulariser),
        )

    def _given(self, given: ParameterOf, asked: str) -> Parameter:
        """The parameter of another layer that a layer was given as its own."""
        owner = self._first_call(given.layer)
        if owner is None:
            raise ValueError(
                f"its {asked} is that of another {given.layer.kind}, which was not called before in network "
                f"'{self.name}'; call that layer first"
            )
        if given.name not in self._parameters[owner]:
            raise ValueError(
                f"its {asked} is to be the {given.name} of '{owner}', which has "
                f"{', '.join(self._parameters[owner]) or 'no parameters'}"
            )
        return self._parameters[owner][given.name]

    def _name_of_loss(self, states: object) -> str:
        if isinstance(states, SymbolicTensor) and states.network is not self:
            raise ValueError(
                f"'{states.name}' is of network '{states.network.name}', not of '{self.name}'; "
                f"assign it there"
            )
        if not isinstance(states, SymbolicTensor) or not isinstance(self._grids[states.name].layer, Loss):
            raise ValueError(
                f"{states!r} is not a loss; assign for example SoftmaxCrossEntropy()(scores, target)"
            )
        return states.name

    def _register(self, grid: Grid) -> SymbolicTensor:
        self._grids[grid.name] = grid
        return SymbolicTensor(self, grid.name)

    def _free(self, name: str, what: str = "a layer") -> str:
        _checked(name, what)
        if name in self._grids:
            raise ValueError(
                f"network '{self.name}' already has a layer '{name}'; give this one another name"
            )
        return name

    def _unused(self, name: str) -> str:
        names = (name if n == 0 else f"{name}_{n}" for n in range(len(self._grids) + 1))
        return next(candidate for candidate in names if candidate not in self._grids)

    def __repr__(self) -> str:
        return f"Network({self.name!r}, {counted(len(self._grids), 'layer')})"


def _is_bias(name: str) -> bool:
    """Returns whether a parameter is a bias: "bias", "bias_hh", "query_bias"."""
    return "bias" in name.split("_")


def _checked(name: object, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name {what}; use letters, digits, '_' and '-', and begin with a letter"
        )
    return name
