"""Slurm's lists of nodes: `gpu[01-03,7],login` means four nodes and one more.

A name is a text with any number of bracketed groups, of which each stands for several numbers; numbers of a
range keep the width of the first. Source: https://slurm.schedmd.com/scontrol.html (`show hostnames`).
"""

from __future__ import annotations

import re
from itertools import product
from typing import Final

MOST: Final = 1 << 16
"""Nodes that a list may have."""

_NAME: Final = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+")
_PIECE: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?", flags=re.ASCII)
_COUNT: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?", flags=re.ASCII)


def nodes_of(text: str) -> tuple[str, ...]:
    """Returns the names of the nodes of a list, in its order.

    Raises:
        ValueError: the text is not a list of nodes, or has more than `MOST`.
    """
    found: list[str] = []
    names = _NAME.findall(text)
    if not names or ",".join(names) != text:
        raise _malformed(text)
    for name in names:
        pieces = [_numbers(group, text) if plain == "" else [plain] for group, plain in _PIECE.findall(name)]
        for chosen in product(*pieces):
            found.append("".join(chosen))
            if len(found) > MOST:
                raise ValueError(f"'{text}' names more than {MOST} nodes")
    return tuple(found)


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Returns the numbers in `SLURM_TASKS_PER_NODE`: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        ValueError: the text is not such a list, or has more than `MOST` nodes.
    """
    found: list[int] = []
    for piece in text.split(","):
        match = _COUNT.fullmatch(piece)
        times = 0 if match is None else int(match[2] or 1)
        if match is None or len(found) + times > MOST:
            raise ValueError(f"'{text}' is not a list of tasks on each node, as in 2(x3),1")
        found += [int(match[1])] * times
    return tuple(found)


def _numbers(group: str, text: str) -> list[str]:
    found: list[str] = []
    for piece in group.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _malformed(text)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST:
            raise _malformed(text)
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _malformed(text: str) -> ValueError:
    return ValueError(f"'{text}' is not a list of nodes as Slurm writes it, for example node[01-04,7]")
