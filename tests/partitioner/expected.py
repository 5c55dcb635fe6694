"""Expected properties of a plan, from the layers' `connectivity.edges` and the owners of rows alone.

Written apart from the partitioner's own derivation, row by row and slowly, so that one can be held against
the other. Where pictures are cut into tiles, place by place: a *unit* of a picture is then `(row, column)`,
of any other grid a row.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from partita.layers import (
    BatchNorm,
    BoxSet,
    Edges,
    Graph,
    GroupNorm,
    LayerNorm,
    OneVsRest,
    RMSNorm,
    Softmax,
    SoftmaxCrossEntropy,
)
from partita.layers.connectivity import PADDING
from partita.layers.copies import Copied
from partita.layers.parts import ShiftedInPlace
from partita.partitioner import Ownership

LABELLED = (SoftmaxCrossEntropy, OneVsRest)
"""Losses that compare all scores with one label."""


Unit: TypeAlias = Any
"""A row, or a row and a column."""


def members(rows: BoxSet) -> list[Unit]:
    """Every single row of a set; of boxes, every place."""
    found: list[Unit] = []
    for box in rows:
        of_box = range(*box[0])
        found += product(of_box, range(*box.columns)) if box.columns else of_box
    return found


class Expected:
    """Answers about one plan's ownership."""

    def __init__(self, owned: Ownership) -> None:
        self.owned, self.graph = owned, owned.graph
        self.sources = cache(self._sources)
        again = (
            "own",
            "is_input_split",
            "owners",
            "is_tiled",
            "needed",
            "evaluated",
            "loss_shards",
            "error",
            "delta",
        )
        for asked in again:
            setattr(self, asked, cache(getattr(self, asked)))

    def own(self, layer: str, machine: int) -> list[Unit]:
        """The units of a layer that a machine owns."""
        return [
            unit
            for piece in self.owned.pieces
            if piece.layer == layer and piece.machine == machine
            for unit in members(piece.rows)
        ]

    def is_input_split(self, layer: str) -> bool:
        """Whether each machine of a layer has the weights of some inputs."""
        return any(piece.inputs is not None for piece in self.owned.pieces if piece.layer == layer)

    def supplier(self, layer: str, row: Unit, machine: int) -> int:
        """Machine that supplies a row: the receiver itself if it has a copy, else the first owner."""
        owners = [other for other in self.owners(layer) if row in self.own(layer, other)]
        return machine if machine in owners else owners[0]

    def owners(self, layer: str) -> list[int]:
        """The machines of a layer, by the rows that they own."""
        pieces = (piece for piece in self.owned.pieces if piece.layer == layer)
        return [piece.machine for piece in sorted(pieces, key=lambda piece: (piece.rows, piece.machine))]

    def is_boxed(self, layer: str) -> bool:
        """Whether the units of a layer are places."""
        return len(self.graph[layer].shape) == 3 and any(p.columns is not None for p in self.owned.pieces)

    def is_tiled(self, layer: str) -> bool:
        """Whether the columns of a layer are cut."""
        pieces = [piece for piece in self.owned.pieces if piece.layer == layer and piece.columns]
        return any(piece.columns != (0, self.graph[layer].shape[1]) for piece in pieces)

    def _sources(self, consumer: str, number: int, unit: Unit) -> frozenset[Unit]:
        source = self.graph[consumer].sources[number]
        found = heard_nodes(self.graph, consumer, number, unit)
        if not self.is_boxed(source):
            return frozenset(row for row, _ in found)
        return frozenset(found)

    def needed(self, consumer: str, number: int, machine: int) -> set[Unit]:
        """The units of an input that a machine's piece of a layer listens to.

        Of a picture in tiles the columns between the first and the last count too, and all where only rows
        are cut, or single edges are given.
        """
        source = self.graph[consumer].sources[number]
        columns = range(self.graph[source].shape[1] if self.is_boxed(source) else 0)
        if self.is_input_split(consumer):
            runs = [p.inputs for p in self.owned.pieces if (p.layer, p.machine) == (consumer, machine)]
            rows = {row for run in runs if run is not None for row in range(*run)}
            return set(product(rows, columns)) if columns else set(rows)
        if machine in self.loss_shards(consumer):
            scores = self.graph[self.graph[consumer].sources[0]]
            is_labelled = isinstance(self.graph[consumer].layer, LABELLED)
            if number == 0 or (number == 1 and not is_labelled):  # an example's weight counts everywhere
                return self.evaluated(scores.name, machine)
        own = self.own(consumer, machine)
        found = {place for unit in own for place in self.sources(consumer, number, unit)}
        if not found or not columns:
            return found
        by_hand = isinstance(self.graph[consumer].wirings[number], Edges | Copied) and not isinstance(
            self.graph[consumer].wirings[number], ShiftedInPlace
        )
        if not by_hand and (self.is_tiled(source) or self.is_tiled(consumer)):
            columns = range(min(column for _, column in found), max(column for _, column in found) + 1)
        return set(product({row for row, _ in found}, columns))

    def loss_shards(self, loss: str) -> list[int]:
        """The machines that each evaluate their own scores, by the rows of these; none if one does all."""
        if loss not in self.graph.losses or len(self.owners(loss)) < 2:
            return []
        scores = self.graph[loss].sources[0]
        found = [machine for machine in self.owners(scores) if self.evaluated(scores, machine)]
        return found if sorted(found) == sorted(self.owners(loss)) else []

    def evaluated(self, scores: str, machine: int) -> set[Unit]:
        """The scores that a machine may evaluate: those of its own that no machine before it has."""
        return {row for row in self.own(scores, machine) if self.supplier(scores, row, -1) == machine}

    def loss_owners(self, consumer: str) -> list[int]:
        """The machines of a layer that return errors; the first alone for a loss that is only replicated."""
        owners = self.owners(consumer)
        replicated = consumer in self.graph.losses and not self.loss_shards(consumer)
        return owners[:1] if replicated else owners

    def summary_senders(self, layer: str) -> list[int]:
        """The machines that send one another summaries: loss shards, if the target is a label, or all that
        have rows of a group, of a channel, or of a place's features.
        """
        grid = self.graph[layer]
        of_rows = isinstance(grid.layer, LayerNorm | RMSNorm | Softmax) and len(grid.shape) == 1
        of_channels = isinstance(grid.layer, BatchNorm) and len(grid.shape) > 1
        if isinstance(grid.layer, GroupNorm) or of_rows or of_channels:
            return self.owners(layer) if len(self.owners(layer)) > 1 else []
        labelled = isinstance(grid.layer, LABELLED) and len(self.graph[grid.sources[0]].shape) == 1
        return self.loss_shards(layer) if labelled else []

    def weight_receivers(self, layer: str) -> list[int]:
        """The machines that use a layer's weights but do not own them."""
        shared = any(parameter.shared for parameter in self.graph[layer].parameters)
        return self.owners(layer)[1:] if shared and not self.is_input_split(layer) else []

    def parameter_owners(self) -> list[int]:
        """The machines that own parameters."""
        return [
            machine
            for machine in range(self.owned.machines)
            if any(
                grid.parameters
                and machine in self.owners(grid.name)
                and machine not in self.weight_receivers(grid.name)
                for grid in self.graph.computed
            )
        ]

    def needed_by_all(self, layer: str, machine: int) -> set[Unit]:
        """The rows of a layer that any piece of the machine reads."""
        found: set[Unit] = set()
        for consumer, number in self.consumers(layer):
            found |= self.needed(consumer, number, machine)
        return found

    def consumers(self, layer: str) -> list[tuple[str, int]]:
        """The consumers of a layer and the number of its input, in the order of the graph."""
        return [
            (g.name, k) for g in self.graph.grids for k, source in enumerate(g.sources) if source == layer
        ]

    def sums_by_machine(self, consumer: str, number: int = 0) -> bool:
        """Whether each machine of a layer sums the errors of an input for itself."""
        tiled = self.is_tiled(consumer) or self.is_tiled(self.graph[consumer].sources[number])
        ordered = self.graph[consumer].connectivity.ordered_gradients and not tiled
        return not ordered and len(self.owners(consumer)) > 1

    def error(self, layer: str, unit: Unit, machine: int) -> list[tuple[str, int, Unit, int]]:
        """The terms of a unit's error on a machine that has it, in order: each receiver that it feeds once.

        A term is (consumer, which of its inputs, the consumer's unit, on which machine). Where machines sum
        for themselves, the owner's own receivers come first, and then the others machine by machine.
        """
        found = []
        for consumer, number in self.consumers(layer):
            machines = [
                other
                for other in self.loss_owners(consumer)
                if unit in self.needed(consumer, number, other)
                and self.supplier(layer, unit, other) == machine
            ]
            if self.sums_by_machine(consumer, number):
                machines.sort(key=lambda other: other != machine)
            found += [
                (consumer, number, receiver, other)
                for other in machines
                for receiver in self.receivers(consumer, other)
                if unit in self.sources(consumer, number, receiver)
            ]
        return found

    def receivers(self, consumer: str, machine: int) -> list[Unit]:
        """The rows of a layer for which a machine has weights, and returns errors to its inputs."""
        if self.is_input_split(consumer):
            return list(range(self.graph[consumer].n_rows))
        return self.own(consumer, machine)

    def delta(self, layer: str, row: Unit, machine: int) -> list[tuple[str, int, Unit, int]]:
        """The terms of a row's error that all machines have together, machine by machine.

        The machine adds what comes before its own terms as one sum: own + (a + b) is (a + b) + own.
        """
        owners = sorted(other for other in self.owners(layer) if row in self.own(layer, other))
        owners.sort(key=lambda other: other != machine)
        return [term for other in owners for term in self.error(layer, row, other)]


def heard_nodes(graph: Graph, consumer: str, number: int, unit: Unit) -> set[tuple[int, int]]:
    """The rows and columns of an input that one unit of a layer listens to, from the edges of its nodes.

    Of an input that is no picture, columns count for nothing.
    """
    grid, source = graph[consumer], graph[graph[consumer].sources[number]]
    width = source.shape[1] if len(source.shape) == 3 else 1
    if source in graph.targets:
        return set(product(range(source.n_rows), range(width)))
    row, column = unit if isinstance(unit, tuple) else (unit, None)
    offsets, senders = grid.wirings[number].edges((row, row + 1), grid.shape, source.shape)
    if column is not None:
        first, n = column * grid.shape[2], grid.shape[2]
        senders = senders[offsets[first] : offsets[first + n]]
    places = np.unique(senders[senders != PADDING] // (source.nodes_per_row // width))
    return {(int(place) // width, int(place) % width) for place in places}
