"""Writes loops that run a node's functions as they stand, node after node and example after example.

The inputs of a node are gathered, for all examples, into a small tile `[example, edge]`. This is for
functions that cannot be written with the examples innermost; the loops take the same arguments as those of
`vectors`.
"""

from __future__ import annotations

from partita.engine.kernels.nodes.vectors import TABLE, Signature

IMPORTS = """\
import numpy as np

from partita.engine.kernels.nodes.tiles import gather, numbers_of
from partita.engine.numerics import downcast, upcast

"""


def upward_text(signature: Signature) -> str:
    """Writes the loop around `upward`, a function that its module has."""
    return f"""{_head(signature)}
@compiled
def forward({TABLE}, {signature.flat}state, start, stop):
    tile = np.empty((x.shape[1], width), R)
{_rooms(signature)}    for n in range(start, stop):
{_node(signature)}        for e in range(state.shape[1]):
            value = upward(tile[e, :fan_in]{_arguments(signature)})
            state[n, e] = downcast(R(value), state[n, e])
"""


def downward_text(signature: Signature) -> str:
    """Writes the loops around `downward`, a function that its module has."""
    flat, given = signature.flat, f"{signature.flat}state, error"
    n_parameters = len(signature.parameters)
    call = f"downward(tile[e, :fan_in]{_arguments(signature)}, upcast(state[n, e]), upcast(error[n, e]))"
    results = "".join(f"r_{i}, " for i in range(n_parameters + 1))
    text = f"""{_head(signature)}
@compiled
def backward_input({TABLE}, least, most, {given}, out, low, high):
    tile = np.empty((x.shape[1], width), R)
{_rooms(signature)}    for n in range(state.shape[0]):
        if most[n] < low or least[n] >= high:
            continue
{_node(signature)}        for e in range(state.shape[1]):
            {results}= {call}
            if len(r_0) != fan_in:
                raise ValueError("downward must return errors as long as incoming")
            for k in range(fan_in):
                sender = senders[first + k]
                if low <= sender < high:
                    out[sender - low, e] += R(r_0[k])
"""
    if not flat:
        return text
    sums = "".join(f"g_{i + 1}, " for i in range(n_parameters))
    return f"""{text}

@compiled
def backward_parameters({TABLE}, {given}, {sums}start, stop, from_edge, from_own):
    tile = np.empty((x.shape[1], width), R)
{_rooms(signature)}    for n in range(start, stop):
{_node(signature)}        for e in range(state.shape[1]):
            {results}= {call}
{_add(signature)}"""


def _head(signature: Signature) -> str:
    real = "float64" if signature.precision == "float64" else "float32"
    return f"{IMPORTS}R = np.{real}\n"


def _rooms(signature: Signature) -> str:
    """Writes scratch arrays for each parameter of the edges."""
    edges = [name for name, kind in signature.parameters if kind == "e"]
    return "".join(f"    room_{name} = np.empty(width, R)\n" for name in edges)


def _node(signature: Signature) -> str:
    """Writes the reads of a node's inputs and parameters."""
    lines = [
        "first, edge, own, fan_in = firsts[n], edges[n], owns[n], counts[n]",
        "gather(x, padding, senders, first, fan_in, tile)",
    ]
    for name, kind in signature.parameters:
        if kind == "e":
            lines.append(f"n_{name} = numbers_of(p_{name}, edge, fan_in, room_{name})")
        else:
            lines.append(f"n_{name} = upcast(p_{name}[own])")
    return "".join(f"        {line}\n" for line in lines)


def _arguments(signature: Signature) -> str:
    return "".join(f", n_{name}" for name, _ in signature.parameters)


def _add(signature: Signature) -> str:
    lines: list[str] = []
    for i, (_, kind) in enumerate(signature.parameters, start=1):
        if kind == "n":
            lines.append(f"g_{i}[own - from_own] += R(r_{i})")
            continue
        lines += [
            f"if len(r_{i}) != fan_in:",
            "    raise ValueError('downward must return gradients of edges as long as incoming')",
            "for k in range(fan_in):",
            f"    g_{i}[edge - from_edge + k] += R(r_{i}[k])",
        ]
    return "".join(f"            {line}\n" for line in lines)
