"""The replicas that take part in a run: numbered views, of which each change makes the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType


class Seats:
    """The replicas at work now, each with the incarnations of its parts.

    Attributes:
        number: of the present view of the run; 0: nobody takes part yet.
    """

    def __init__(self) -> None:
        self.number = 0
        self._seated: dict[int, tuple[int, ...]] = {}

    @property
    def seated(self) -> Mapping[int, tuple[int, ...]]:
        """The incarnations of the parts of each replica, by machine."""
        return MappingProxyType(self._seated)

    def join(self, replica: int, incarnations: Iterable[int]) -> None:
        """Adds a replica by the incarnations of its parts. One that is seated must leave first."""
        assert replica not in self._seated, f"replica {replica} is seated twice in view {self.number}"
        self._seated[replica] = tuple(incarnations)
        self.number += 1

    def leave(self, replica: int) -> None:
        """Takes a replica out, if it is seated."""
        if self._seated.pop(replica, None) is not None:
            self.number += 1

    @property
    def text(self) -> str:
        """The view in words: "view 3: replicas 0, 1, 3"."""
        return f"view {self.number}: {replicas_text(sorted(self._seated))}"


def replicas_text(replicas: Iterable[int]) -> str:
    """Returns ascending replicas in words, with ranges for neighbours: "replicas 0 to 4, 7"."""
    runs: list[list[int]] = []
    for replica in replicas:
        if runs and replica == runs[-1][1] + 1:
            runs[-1][1] = replica
        else:
            runs.append([replica, replica])
    if not runs:
        return "no replica"
    texts = [
        text
        for first, last in runs
        for text in ([f"{first} to {last}"] if last > first + 1 else [str(r) for r in range(first, last + 1)])
    ]
    only = len(texts) == 1 and runs[0][0] == runs[0][1]
    return f"replica{'' if only else 's'} {', '.join(texts)}"
