"""Places of parameters that several layers use: who owns their numbers, and who uses which of them.

Such a parameter lies in the plan by itself, as a row of numbers in C order. A machine owns the numbers of its
rows of the layer that the parameter belongs to, if owners use no others; else the machine of that layer's
first row owns all of it. Owners send the others what they use, and add up the gradients that come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from partita.layers.box import Span
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.memoised import memoised

if TYPE_CHECKING:
    from partita.partitioner.assign.ownership import Ownership

Transfer: TypeAlias = tuple[int, int, Span]
"""The owner and the user of a range of numbers."""


class Placement:
    """Owners and users of the parameters in `Graph.placed`, by their full names."""

    def __init__(self, owned: Ownership) -> None:
        self._owned, self._graph = owned, owned.graph

    @memoised
    def owners(self, name: str) -> dict[int, Span]:
        """The ranges of numbers that machines own, ascending."""
        whole = self._graph.parameters[name]
        pieces = self._owned.of(whole.layer)
        by_rows = not whole.shared and whole.layer not in self._owned.tiled and pieces[0].inputs is None
        if by_rows:
            found = {piece.machine: whole.span(piece.box[0]) for piece in pieces}
            pairs = ((self.used(name, machine) or span, span) for machine, span in found.items())
            if all(own[0] <= used[0] and used[1] <= own[1] for used, own in pairs):
                return found
        return {pieces[0].machine: (0, whole.size)}

    @memoised
    def used(self, name: str, machine: int) -> Span | None:
        """The range in which all numbers lie that the machine's pieces use; None if it uses none."""
        ranges = [
            _rows(piece)
            for layer in self._graph.users[name]
            for piece in self._owned.used_slices(layer, machine)
            if piece.parameter.name == name and piece.size
        ]
        return (min(start for start, _ in ranges), max(stop for _, stop in ranges)) if ranges else None

    def held(self, name: str, machine: int) -> Span | None:
        """The range that a machine has in its memory: that which it owns, or else uses."""
        return self.owners(name).get(machine) or self.used(name, machine)

    def names(self, machine: int) -> list[str]:
        """The parameters that a machine has in its memory."""
        return [name for name in self._graph.placed if self.held(name, machine)]

    def learns(self, name: str) -> bool:
        """Returns whether its gradient is computed, by those of its layers that a gradient reaches."""
        parameter = self._graph.parameters[name]
        return parameter.trainable or parameter.averaged

    def learners(self, name: str, machine: int) -> list[str]:
        """The machine's layers that compute a gradient of a parameter."""
        users = (user for user in self._graph.users[name] if user in self._graph.needs_gradient)
        return [user for user in users if self._owned.rows(user, machine)]

    def learning(self, layer: str, machine: int) -> list[str]:
        """The parameters of a layer that learn and that a machine has in its memory."""
        names = (parameter.name for parameter in self._graph[layer].parameters)
        return [name for name in names if self.learns(name) and self.held(name, machine)]

    def transfers(self, name: str) -> Iterator[Transfer]:
        """The ranges that owners send to users in each minibatch, and whose gradients they get back."""
        owners = self.owners(name)
        for machine in range(self._owned.machines):
            used = None if machine in owners else self.used(name, machine)
            if used is None:
                continue
            for owner, (start, stop) in owners.items():
                span = max(start, used[0]), min(stop, used[1])
                if span[0] < span[1]:
                    yield owner, machine, span

    def slices(self, layer: str, machine: int) -> tuple[ParameterSlice, ...]:
        """The part of each parameter that belongs to a layer and of which a machine owns some."""
        found = []
        for parameter in self._graph[layer].parameters:
            if parameter.layer == layer and machine in self.owners(parameter.name):
                rows = self._graph[layer].rows if len(self.owners(parameter.name)) == 1 else None
                box = rows.hull if rows else self._owned.rows(layer, machine)[0].on(1)
                found.append(ParameterSlice(parameter, box))
        return tuple(found)


def _rows(piece: ParameterSlice) -> Span:
    """The range of numbers of whole rows in which a slice lies; that of the slice if it is in one run."""
    start, stop, run, _ = piece.runs
    return piece.parameter.span(piece.box[0]) if run else (start, stop)


def local(piece: ParameterSlice) -> slice:
    """The numbers of each run of a slice, in the rows `[row, number]` in which the runs lie."""
    start, _, run, stride = piece.runs
    return slice(start % stride, start % stride + run)
