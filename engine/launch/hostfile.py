"""Hostfiles: a line for each machine, as Open MPI, MPICH and DeepSpeed read them.

    # a comment
    node1 slots=4
    node2:8
    user@node3 cpu=16 gpu=2 memory=64GiB

`slots=N`, or `:N`, are the cores that a machine offers, as `cpu=N` are; what is not said is as the machine
has it. A machine that comes twice offers the slots of both lines. Sources: https://docs.open-mpi.org (mpirun,
hostfiles), https://github.com/pmodels/mpich (Hydra, hostfiles).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partita.engine.protocol.pool.resources import Resources

_HOST: Final = re.compile(r"(?P<host>(?:\w[\w.-]*@)?\w[\w.-]*)(?::(?P<slots>\d+))?", flags=re.ASCII)
_IGNORED: Final = ("max_slots", "max-slots")  # of Open MPI: processes above which it refuses to start more


@dataclass(frozen=True)
class Host:
    """A machine of a hostfile.

    Args:
        name: as ssh takes it, `HOST` or `USER@HOST`.
        resources: what its worker offers; of what is 0, as much as the machine has.
    """

    name: str
    resources: Resources


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Reads a hostfile.

    Raises:
        OSError: the file cannot be read.
        ValueError: it names no machine, or a line cannot be read.
    """
    return hosts_of(path.read_text(encoding="utf-8", errors="replace"), str(path))


def hosts_of(text: str, source: str) -> tuple[Host, ...]:
    """Returns the machines in the text of a hostfile.

    Args:
        text: the lines.
        source: path of the file, for messages.

    Raises:
        ValueError: it names no machine, or a line cannot be read.
    """
    found: dict[str, Resources] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _host_of(words)
        except ValueError as error:
            raise ValueError(f"{source}, line {number}: {error}") from None
        found[host.name] = found.get(host.name, Resources()) + host.resources
    if not found:
        raise ValueError(f"{source} names no machine; write a line for each, for example `node1 slots=4`")
    return tuple(Host(name, resources) for name, resources in found.items())


def _host_of(words: list[str]) -> Host:
    match = _HOST.fullmatch(words[0])
    if match is None:
        raise ValueError(f"'{words[0]}' is not the name of a machine; write `HOST slots=N` or `HOST:N`")
    items = [] if match["slots"] is None else [f"cpu={match['slots']}"]
    for word in words[1:]:
        name, _, amount = word.partition("=")
        if name not in _IGNORED:
            items.append(f"cpu={amount}" if name == "slots" else word)
    names = [item.partition("=")[0] for item in items]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} (or slots) is given twice; give it once")
    return Host(match["host"], Resources.parse(",".join(items)))
