"""The finished network: an immutable graph of grids, in an order in which each comes after its inputs.

The partitioner cuts it and the engine runs it. It can be pickled, compared and printed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import networkx

from partita.layers.box import Box, BoxSet, Shape, Span
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Summary
from partita.layers.layer import Layer, Parameter, Placeholder
from partita.layers.losses import Loss
from partita.layers.module_state import ModuleState
from partita.layers.text import counted


@dataclass(frozen=True)
class Grid:
    """A layer of a network: its name, the shape of its grid, and the names of its inputs.

    The names of its parameters are those of the network: "LAYER.weight". The result of `within` is a part of
    a grid, as a machine computes it: fewer columns, numbered from 0, with its own
    `wirings`, one for each input.
    """

    name: str
    shape: Shape
    layer: Layer
    sources: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    flops_per_node: float
    wirings: tuple[Connectivity, ...] = field(default=(), repr=False)

    @property
    def connectivity(self) -> Connectivity:
        """The nodes of the first input that feed a node; of every input, in most layers."""
        return self.wirings[0]

    @property
    def n_nodes(self) -> int:
        """Nodes of the whole grid."""
        return math.prod(self.shape)

    @property
    def n_rows(self) -> int:
        """Extent of axis 0, along which the layer is cut."""
        return self.shape[0]

    @property
    def nodes_per_row(self) -> int:
        """Nodes of one row."""
        return math.prod(self.shape[1:])

    @property
    def is_picture(self) -> bool:
        """Returns whether it has height, width and channels. Such a grid may be cut into tiles."""
        return len(self.shape) == 3

    @property
    def whole(self) -> Box:
        """All of a picture as one box; all rows of any other grid."""
        return Box.whole(self.shape[: 2 if self.is_picture else 1])

    @property
    def rows(self) -> BoxSet:
        """All rows of the grid, as a set."""
        return BoxSet((Box(((0, self.n_rows),)),))

    def nodes_in(self, rows: BoxSet) -> int:
        """Number of nodes in a set of boxes."""
        return rows.size * math.prod(self.shape[len(rows[0]) :]) if rows else 0

    def tiling_rejection(self) -> str | None:
        """The reason why the grid cannot be cut into tiles, if so: the end of a sentence after its name."""
        if not self.is_picture:
            return f"has the grid {self.shape}, and tiles are cut from pictures (height, width, channels)"
        fixed = [type(wiring).__name__ for wiring in self.wirings if not wiring.tiles]
        if not self.layer.cuttable or fixed:
            return f"is wired by {(fixed or [type(self.connectivity).__name__])[0]}, which knows no columns"
        if self.layer.definition is None and all(isinstance(wiring, Full) for wiring in self.wirings):
            return "is fed by all nodes and computed by `forward`, which knows no columns"
        for parameter in self.parameters:
            if not parameter.shared and parameter.shape[:2] != self.shape[:2]:
                return f"has parameter {parameter.name} of shape {parameter.shape}, not one for each place"
        return None

    def within(self, columns: Span, source_columns: Span | None, source: Shape | None) -> Grid:
        """Returns a part of a picture: some columns, over some columns of an input.

        Args:
            columns: columns of this grid.
            source_columns: columns of the input that feed them, at least; None if it is no picture.
            source: shape of the whole input; None for a placeholder.
        """
        shape = (self.shape[0], columns[1] - columns[0], *self.shape[2:])
        parameters = tuple(parameter.narrowed(columns) for parameter in self.parameters)
        wirings = self.wirings
        if source is not None and source_columns is not None:
            wirings = tuple(one.within(columns, source_columns, self.shape, source) for one in wirings)
        return replace(self, shape=shape, parameters=parameters, wirings=wirings)

    def bytes_per_node(self, *, batch: int, item_bytes: int) -> float:
        """Bytes that a node moves in the forward pass: its own parameters once, its activation for each
        example.

        Its inputs are left out, because adjacent nodes read them too and they stay in cache. Shared weights
        are divided among all nodes.
        """
        own = sum(parameter.size for parameter in self.parameters) / self.n_nodes
        return (own + batch) * item_bytes

    @property
    def shares_weights(self) -> bool:
        """Returns whether nodes share parameters, which then belong to the machine of the first row."""
        return any(parameter.shared for parameter in self.parameters)

    @property
    def shares_some(self) -> bool:
        """Returns whether nodes share some parameters, and have others of their own."""
        return len({parameter.shared for parameter in self.parameters}) > 1

    @property
    def has_input_rows(self) -> bool:
        """Returns whether a parameter has the rows of the input, so that a cut by inputs leaves it in its
        places.
        """
        return any(parameter.by_inputs for parameter in self.parameters)

    @property
    def learns(self) -> bool:
        """Returns whether some of its parameters are trainable, or averaged."""
        return any(parameter.trainable or parameter.averaged for parameter in self.parameters)

    @property
    def replicable(self) -> bool:
        """Returns whether several machines may compute the same nodes: none has parameters of its own, and
        none counts twice in a summary.
        """
        counted = self.summary is not None and not isinstance(self.layer, Loss)
        return not counted and all(parameter.shared for parameter in self.parameters)

    @cached_property
    def summary(self) -> Summary | None:
        """The summary that the layer's machines exchange, if they need one."""
        return self.layer.summary(self.shape)

    @property
    def returns_summary(self) -> bool:
        """Returns whether the machines exchange the summary's gradient, too: autograd makes the backward
        pass.
        """
        return self.summary is not None and not self.layer.has_backward

    @property
    def is_placeholder(self) -> bool:
        """Returns whether it is an input or a target."""
        return isinstance(self.layer, Placeholder)


@dataclass(frozen=True)
class Graph:
    """A frozen network.

    Args:
        name: of the network.
        grids: in topological order.
        losses: names of those whose values are summed.
        origin: the state dict of the module of PyTorch that the network was made of; empty for others.
    """

    name: str
    grids: tuple[Grid, ...]
    losses: tuple[str, ...]
    origin: ModuleState = field(default=(), compare=False, repr=False)

    def __getitem__(self, name: str) -> Grid:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Grid]:
        return {grid.name: grid for grid in self.grids}

    @cached_property
    def computed(self) -> tuple[Grid, ...]:
        """Every layer but the inputs and targets."""
        return tuple(grid for grid in self.grids if not grid.is_placeholder)

    @cached_property
    def inputs(self) -> tuple[Grid, ...]:
        """The arrays that the user feeds for predictions."""
        return tuple(g for g in self.grids if isinstance(g.layer, Placeholder) and g.layer.role == "input")

    @cached_property
    def targets(self) -> tuple[Grid, ...]:
        """The arrays that the user feeds for training in addition to the inputs."""
        return tuple(g for g in self.grids if isinstance(g.layer, Placeholder) and g.layer.role == "target")

    @cached_property
    def scores(self) -> tuple[str, ...]:
        """The layers that the losses evaluate; without a loss, the last layers."""
        evaluated = [self[loss].sources[0] for loss in self.losses]
        return tuple(dict.fromkeys(evaluated)) or tuple(
            g.name for g in self.computed if not self.consumers(g.name)
        )

    @cached_property
    def classifiers(self) -> tuple[str, ...]:
        """The losses whose target is a label, so that an example is right or wrong."""
        targets = {grid.name: grid.layer for grid in self.targets}
        found = []
        for loss in self.losses:
            target = next((targets[name] for name in self[loss].sources[1:2]), None)
            if isinstance(target, Placeholder) and target.classes is not None:
                found.append(loss)
        return tuple(found)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter by its full name, in the order of the layers that they belong to."""
        found: dict[str, Parameter] = {}
        for grid in self.grids:
            for parameter in grid.parameters:
                found.setdefault(parameter.name, parameter)
        return found

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """The layers that use each parameter, by its full name: first the one that it belongs to."""
        found: dict[str, dict[str, None]] = {}
        for grid in self.grids:
            for parameter in grid.parameters:
                found.setdefault(parameter.name, {})[grid.name] = None
        return {name: tuple(layers) for name, layers in found.items()}

    @cached_property
    def tied(self) -> frozenset[str]:
        """The layers that use a parameter of another layer, or have one that another uses; and those whose
        nodes share some parameters, but not all.

        Each parameter of theirs has a place of its own in a plan; those of any other layer have one together.
        """
        found = {layer for layers in self.users.values() for layer in layers if len(layers) > 1}
        return frozenset(found.union(grid.name for grid in self.grids if grid.shares_some))

    @cached_property
    def placed(self) -> dict[str, Parameter]:
        """The parameters with a place of their own, by full name: all those of layers in `tied`."""
        return {name: p for name, p in self.parameters.items() if not self.tied.isdisjoint(self.users[name])}

    @cached_property
    def n_parameters(self) -> int:
        """Total size of all parameters."""
        return sum(parameter.size for parameter in self.parameters.values())

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that are not trainable."""
        return frozenset(name for name, parameter in self.parameters.items() if not parameter.trainable)

    @cached_property
    def averaged(self) -> frozenset[str]:
        """The names of the parameters that are running averages; they are not trainable."""
        return frozenset(name for name, parameter in self.parameters.items() if parameter.averaged)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The names of the averaged parameters whose changes are added up over replicas."""
        return frozenset(name for name, parameter in self.parameters.items() if parameter.kept)

    @cached_property
    def sparse(self) -> frozenset[str]:
        """The names of the trainable parameters whose gradients are of a few rows."""
        some = (p for p in self.parameters.values() if p.sparse and p.trainable)
        return frozenset(parameter.name for parameter in some)

    def consumers(self, name: str) -> tuple[tuple[str, int], ...]:
        """The consumers of a layer: pairs of a layer and the number of its input, in graph order."""
        return self._consumers[name]

    @cached_property
    def _consumers(self) -> dict[str, tuple[tuple[str, int], ...]]:
        found: dict[str, list[tuple[str, int]]] = {grid.name: [] for grid in self.grids}
        for grid in self.grids:
            for k, source in enumerate(grid.sources):
                found[source].append((grid.name, k))
        return {name: tuple(consumers) for name, consumers in found.items()}

    def source_rows(self, name: str, box: Box, source: int, *, columns: bool = False) -> BoxSet:
        """The rows (with `columns` also columns) of input number `source` that feed a box of a layer."""
        key = name, box, source, columns
        if key not in self._source_rows:
            self._source_rows[key] = self._find_source_rows(*key)
        return self._source_rows[key]

    @cached_property
    def _source_rows(self) -> dict[tuple[str, Box, int, bool], BoxSet]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        """Leaves out the cache of `source_rows`, which a pickle does not need."""
        return {name: value for name, value in self.__dict__.items() if name != "_source_rows"}

    def _find_source_rows(self, name: str, box: Box, source: int, columns: bool) -> BoxSet:
        grid, other = self[name], self[self[name].sources[source]]
        if isinstance(other.layer, Placeholder) and other.layer.role == "target":
            return BoxSet((other.whole,)) if columns else other.rows
        return grid.wirings[source].source_rows(box, grid.shape, other.shape, columns=columns)

    @cached_property
    def needs_gradient(self) -> frozenset[str]:
        """The layers that need a gradient: those that learn or ask for it, or above one that does, as far as
        one reaches them.
        """
        found: set[str] = set()
        for grid in self.computed:
            wants = grid.learns or grid.layer.asks_gradient
            if grid.name in self._reached and (wants or any(source in found for source in grid.sources)):
                found.add(grid.name)
        return frozenset(found)

    @cached_property
    def _reached(self) -> frozenset[str]:
        """The layers that a gradient can reach from the end of the network: those that stop it are none."""
        found: set[str] = set()
        for grid in reversed(self.computed):
            consumers = self.consumers(grid.name)
            if not grid.layer.stops_gradient and (
                not consumers or any(name in found for name, _ in consumers)
            ):
                found.add(grid.name)
        return frozenset(found)

    @cached_property
    def unreached(self) -> tuple[str, ...]:
        """The parameters that are to learn, but that no gradient reaches."""
        learning = self.needs_gradient
        return tuple(
            name
            for name, parameter in self.parameters.items()
            if (parameter.trainable or parameter.averaged) and learning.isdisjoint(self.users[name])
        )

    @cached_property
    def digraph(self) -> networkx.DiGraph:
        """The network in networkx: a node for each layer, an edge for each input, with its number."""
        graph = networkx.MultiDiGraph() if self._has_double_edges else networkx.DiGraph()
        graph.graph["name"] = self.name
        for grid in self.grids:
            graph.add_node(grid.name, shape=grid.shape, layer=grid.layer)
        for grid in self.grids:
            for k, source in enumerate(grid.sources):
                graph.add_edge(source, grid.name, input=k)
        return graph

    def without_losses(self) -> Graph:
        """The network up to its scores: no losses, no targets. Its fingerprint is the same."""
        kept = tuple(g for g in self.grids if g.name not in self.losses and g not in self.targets)
        return replace(self, grids=kept, losses=())

    @property
    def _has_double_edges(self) -> bool:
        return any(len(set(grid.sources)) < len(grid.sources) for grid in self.grids)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the network's shapes: checkpoints of equal fingerprints fit one another."""
        written = repr([(p.name, p.shape) for p in self.parameters.values()])
        return hashlib.sha256(written.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        lines = [f"network {self.name}: {counted(self.n_parameters, 'parameter')}"]
        if self.frozen:
            constant = sum(self.parameters[name].size for name in self.frozen)
            lines[0] += f", {constant:,} of them not trainable"
        width = max(len(grid.name) for grid in self.grids)
        for grid in self.grids:
            after = f" <- {', '.join(grid.sources)}" if grid.sources else ""
            others = [parameter.name for parameter in grid.parameters if parameter.layer != grid.name]
            after += f" with {', '.join(others)}" if others else ""
            lines.append(
                f"  {grid.name:<{width}}  {grid.layer.kind:<20} {'x'.join(map(str, grid.shape))}{after}"
            )
        return "\n".join(lines)
