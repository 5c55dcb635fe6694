"""Messages as lines: from which edge of which piece to which, by which lanes, and how wide."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from partita.engine.view import svg
from partita.engine.view.boxes import Box
from partita.engine.view.palette import Palette
from partita.layers.text import readable_bytes
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.lower.messages import Message

Port: TypeAlias = tuple[str, int, Literal["top", "bottom"]]
"""An edge of a machine's piece of a layer."""
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Route:
    """A message between two ports. `via`: the layers whose lanes it takes; None: it stays below one bar."""

    message: Message
    start: Port
    stop: Port
    via: tuple[str, str] | None

    @property
    def is_inside(self) -> bool:
        """Returns whether it carries no activations or their gradients, but what machines of one layer
        exchange.
        """
        return not self.message.buffer.travels_along_edges

    @property
    def ends(self) -> tuple[str, str]:
        """The layer below, and the layer above, under which it is drawn; the same if it stays there."""
        return self.via or (self.start[0], self.start[0])

    def renamed(self, names: Mapping[str, str]) -> Route:
        """Returns the same route between other layers."""
        start, stop = ((names[layer], machine, edge) for layer, machine, edge in (self.start, self.stop))
        via = self.via and (names[self.via[0]], names[self.via[1]])
        return replace(self, start=start, stop=stop, via=via)


def route(owned: Ownership, message: Message) -> Route:
    """Finds the route of a message.

    Forward: to the first layer at its destination that uses it. Backward: to the owner, or to the next in a
    sum. Below the bar of a layer stays what its machines exchange: weights, their gradients, sums over
    scores; of a layer that is cut by its inputs, partial sums and gradients. Weights of another layer go to
    the first layer that uses them, as activations do.
    """
    layer, source, destination = message.layer, message.source, message.destination
    if message.buffer.parameter is not None:
        return _route_of_parameter(owned, message)
    if not message.buffer.travels_along_edges:
        return Route(message, (layer, source, "bottom"), (layer, destination, "bottom"), None)
    if message.direction == "forward":
        edges = owned.edges(layer)
        above = next(e.consumer for e in edges if owned.needed(e, destination).overlaps(message.rows))
        return Route(message, (layer, source, "top"), (above, destination, "bottom"), (layer, above))
    assert message.buffer.edge is not None, f"{message} lies on no edge"
    above = message.buffer.edge.consumer
    if message.rows.overlaps(owned.rows(layer, destination)):
        return Route(message, (above, source, "bottom"), (layer, destination, "top"), (layer, above))
    return Route(message, (above, source, "bottom"), (above, destination, "bottom"), None)


def _route_of_parameter(owned: Ownership, message: Message) -> Route:
    """The route of a parameter that several layers use, or of its gradient back to the owner."""
    layer, is_forward = message.layer, message.direction == "forward"
    users = owned.graph.users[f"{layer}.{message.buffer.parameter}"]
    owner, user = message.source, message.destination
    if not is_forward:
        owner, user = user, owner
    above = next(one for one in users if owned.rows(one, user))
    ends: tuple[Port, Port] = (layer, owner, "top"), (above, user, "bottom")
    if above == layer:
        ends = (layer, owner, "bottom"), (layer, user, "bottom")
    start, stop = ends if is_forward else ends[::-1]
    return Route(message, start, stop, None if above == layer else (layer, above))


def line_ends(
    routes: Sequence[Route], boxes: Mapping[str, Box], palette: Palette
) -> list[tuple[Point, Point]]:
    """Places the ends of each line: lines share the edge of a piece evenly, sorted by where they go."""
    at: dict[Port, list[tuple[float, int, int]]] = {}
    for n, found in enumerate(routes):
        for end, (here, there) in enumerate(((found.start, found.stop), (found.stop, found.start))):
            cell = boxes[there[0]].cells[there[1]]
            at.setdefault(here, []).append((cell.x, n, end))
    places: dict[tuple[int, int], Point] = {}
    for (layer, machine, edge), lines in at.items():
        box, cell = boxes[layer], boxes[layer].cells[machine]
        margin, head = min(4.0, cell.width / 8), -palette.arrow if edge == "top" else palette.arrow
        for k, (_, n, end) in enumerate(sorted(lines), start=1):
            x = cell.left + margin + (cell.width - 2 * margin) * k / (len(lines) + 1)
            places[n, end] = x, box.edge(edge) + head * end  # room for the arrow's head where it stops
    return [(places[n, 0], places[n, 1]) for n in range(len(routes))]


def line_widths(routes: Sequence[Route], *, most: int) -> list[float]:
    """Returns widths in pixels, by the root of the share of the `most` bytes; thin where there are many."""
    crowds = Counter(found.ends for found in routes)
    widest = max(1.6, min(4.5, 60 / max(crowds.values(), default=1)))
    return [0.8 + (widest - 0.8) * math.sqrt(found.message.n_bytes / most) for found in routes]


def drawn(
    found: Route, ends: tuple[Point, Point], lanes: Sequence[Point], width: float, palette: Palette
) -> str:
    """Draws a line in the colour of the sender, by the ends of lanes, from below: dashed backward."""
    message, (start, stop) = found.message, ends
    forward = message.direction == "forward"
    if found.via is None:
        dip = start[1] + min(26.0, 12 + abs(start[0] - stop[0]) / 12)
        line = svg.path("M", *start, "C", start[0], dip, stop[0], dip, *stop)
    else:
        line = svg.curve([start, *(lanes if forward else lanes[::-1]), stop])
    named = ".".join(filter(None, (message.layer, message.buffer.parameter)))
    content = f"{message.buffer.contents} of {named}"
    if message.buffer.contents in {"activations", "gradients", "partial sums"}:
        content += f", rows {message.rows}"  # others have rows of their own
    names = f"{palette.names[message.source]} to {palette.names[message.destination]}"
    told = f"{content}: {names}, {readable_bytes(message.n_bytes)}"
    dash, head = None if forward else f"{width + 3:.1f} {width + 2:.1f}", f"to{message.source}"
    colour = palette.line(message.source)
    return svg.line(line, colour, width, dash=dash, head=head, tooltip=told, stroke_opacity=0.85)
