"""Writes a node's functions as loops over nodes, edges and tiles of examples, the examples innermost.

Every function takes the same first: `x` `[sender, example]` and `padding`, the row of a sender outside the
grid; for each node, where its senders begin (`firsts`, in `senders`), their number (`counts`), and where the
numbers of its edges begin in flat parameters that nodes do not share (`edges`); `width`, the most edges of a
node. A node is computed alone, so neither cuts nor threads change its bits, and
the errors of a sender are added in the order of the receivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.grouping import Varying, assigned, grouped, masked
from partita.engine.kernels.nodes.passes import Body, check, fused, hoisted, varying_of, with_results
from partita.engine.kernels.nodes.places import Places
from partita.engine.kernels.nodes.sums import SUM, WeightedSum
from partita.engine.kernels.nodes.text import Constants
from partita.engine.kernels.nodes.tiles import TILE
from partita.engine.kernels.nodes.writer import BodyWriter, Lines

IMPORTS = """\
import math

import numpy as np

from partita.engine.kernels.nodes.tiles import add_freely, multiply_add_freely, part, row, stack, within
from partita.engine.numerics import downcast, fma, upcast
from partita.engine.numerics.functions import exponential, hyperbolic_tangent

"""
TABLE = "x, padding, senders, firsts, counts, edges, width"


@dataclass(frozen=True)
class Signature:
    """The arguments of a node's functions.

    Args:
        parameters: by name, "e" for a number for each edge or "n" for one.
        least: edges that every node of the layer has.
        precision: of the layer.
        shared: names of the parameters that nodes share, a set of numbers for each filter, or one for all.
    """

    parameters: tuple[tuple[str, str], ...]
    least: int
    precision: str
    shared: frozenset[str] = frozenset()

    @property
    def given(self) -> list[ir.Argument | ir.Array]:
        """The arguments of `upward`."""
        learned = (ir.Array(name) if kind == "e" else ir.Argument(name) for name, kind in self.parameters)
        return [ir.Array(ir.INCOMING), *learned]

    @property
    def places(self) -> dict[str, tuple[str, str]]:
        """Places of each parameter: where a node's numbers begin, and what its gradient's place is less."""
        own = {"e": ("edge", " - from_edge"), "n": ("n", " - from_node")}
        return {
            name: (f"set_{name}", "") if name in self.shared else own[kind] for name, kind in self.parameters
        }

    @property
    def flat(self) -> str:
        """The parameters as arguments of a loop."""
        return "".join(f"p_{name}, " for name, _ in self.parameters)

    @property
    def of_nodes(self) -> str:
        """The parameters with a number for each node, likewise."""
        return "".join(f"p_{name}, " for name, kind in self.parameters if kind == "n")


def upward_text(function: ir.Function, signature: Signature) -> str:
    """Writes the module with `forward`, which runs `upward`.

    Raises:
        Unsupported: the examples cannot be innermost.
    """
    module = _Module(function.lines, signature)
    module.loop(
        f"forward({TABLE}, {signature.flat}state, start, stop)",
        "for n in range(start, stop):",
        function.body,
        each_tile=["result = part(state, n, at, m)"],
    )
    return module.text


def downward_text(function: ir.Function, signature: Signature) -> str:
    """Writes the module with `backward_input`, and `backward_parameters` where there are any, which run
    `downward`, or what is derived.

    Raises:
        Unsupported: the examples cannot be innermost.
    """
    module, flat = _Module(function.lines, signature), f"{signature.flat}state, error"
    n_results = len(function.are_arrays)
    module.loop(
        f"backward_input({TABLE}, least, most, {flat}, out, low, high)",
        "for n in range(state.shape[0]):",
        with_results(function.body, {0}),
        each_node=["if most[n] < low or least[n] >= high:", "    continue"],
    )
    if n_results > 1:
        names = "".join(f"g_{i}, " for i in range(1, n_results))
        module.loop(
            f"backward_parameters({TABLE}, {flat}, {names}start, stop, from_edge, from_node)",
            "for n in range(start, stop):",
            with_results(function.body, set(range(1, n_results))),
        )
    return module.text


def finish_text(found: WeightedSum, signature: Signature) -> str:
    """Writes the module with `finish`, from sums of some nodes to activations: in place, unless stored in
    another type.
    """
    module = _Module({}, signature)
    sums = "sums, " if signature.precision == "bfloat16" else ""
    module.loop(
        f"finish(fan_in, {signature.of_nodes}{sums}state, begin)",
        "for n in range(state.shape[0]):",
        found.upward,
        each_tile=["result = part(state, n, at, m)"],
        wired=False,
    )
    return module.text


def backward_sum_text(found: WeightedSum, signature: Signature) -> str:
    """Writes the module with `backward_sum`, from the gradient of some nodes' activations to that of their
    sums.
    """
    assert found.downward is not None
    module, sums = _Module({}, signature), "sums, " if found.keeps_sums else ""
    module.loop(
        f"backward_sum(fan_in, {signature.of_nodes}{sums}state, error, grad, begin)",
        "for n in range(state.shape[0]):",
        found.downward,
        each_tile=["result = part(grad, n, at, m)"],
        wired=False,
        sums_apart=True,
    )
    return module.text


class _Module:
    """The text of a module, function by function.

    Args:
        lines: where the user's function counts loops and places.
        signature: of the function.
    """

    def __init__(self, lines: Mapping[Any, ir.Line], signature: Signature) -> None:
        self._user_lines, self._signature = lines, signature
        self.constants = Constants()
        self._parts = list[str]()

    @property
    def text(self) -> str:
        """The whole text of the module."""
        real = "float64" if self._signature.precision == "float64" else "float32"
        constants = "\n".join([f"R = np.{real}", *self.constants.lines()])
        return "\n\n".join([IMPORTS + constants, *self._parts]) + "\n"

    def loop(
        self,
        head: str,
        nodes: str,
        body: Body,
        *,
        each_node: Sequence[str] = (),
        each_tile: Sequence[str] = (),
        wired: bool = True,
        sums_apart: bool = False,
    ) -> None:
        """Adds a function: its name and arguments, its loop over nodes, and their body.

        Args:
            head: the name and arguments.
            nodes: the loop.
            body: of the node's function, with its outputs.
            each_node: lines before it for each node.
            each_tile: lines before it for each tile of examples.
            wired: whether the nodes are given with their edges; if not, with a number `begin` of nodes before
                them.
            sums_apart: whether weighted sums have an array of their own; else, but in bfloat16, they lie
                where the activations are written.
        """
        body, varying = self._prepared(body)
        places = self._signature.places if wired else {}
        lines = Lines()
        in_place = self._signature.precision != "bfloat16" and not sums_apart
        writer = BodyWriter(body, varying, self.constants, places, lines, sums_in_place=in_place)
        writer.stacks()
        with lines.inside(nodes):
            if wired:
                lines("first, edge, fan_in = firsts[n], edges[n], counts[n]", *each_node)
            lines(*self._own_numbers(places))
            with lines.inside(f"for at in range(0, state.shape[1], {TILE}):"):
                lines(f"m = {TILE} if state.shape[1] - at > {TILE} else state.shape[1] - at", *each_tile)
                writer.write()
        self._parts.append("\n".join(["@compiled", f"def {head}:", *lines.lines]))

    def _own_numbers(self, places: Mapping[str, tuple[str, str]]) -> Iterator[str]:
        """Yields lines that find where a node's shared parameters begin, and its own numbers."""
        for name, kind in self._signature.parameters:
            if name in self._signature.shared:
                length = f"p_{name}.shape[0]"
                of_edges = f"n % ({length} // fan_in) * fan_in"
                yield f"set_{name} = {of_edges if kind == 'e' else f'n % {length}'}"
            if kind == "n":
                yield f"n_{name} = upcast(p_{name}[{places[name][0] if places else 'begin + n'}])"

    def _prepared(self, body: Body) -> tuple[Body, Varying]:
        given = ir.INCOMING, ir.STATE, ir.ERROR, SUM
        try:
            check(body, varying_of(body, given))
        except ir.Unsupported as refused:
            raise refused.within(self._user_lines) from None
        body = ir.Copy({}).body(body)
        varying = varying_of(body, given)
        body = fused(hoisted(Places(self._signature.least, varying).within(body), varying))
        return grouped(assigned(masked(body, varying)), varying), varying
