"""Plays a group of players in turn, and refuses those that do not do the same work on the same terms.

A player is one process for all numbers of threads: its memory is that of the first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks._harness import REST_S, in_turn
from benchmarks._limits import limits
from benchmarks._memory import Peak
from benchmarks._rounds import Rounds
from benchmarks._table import Group
from benchmarks._worker import Worker, WorkerEnded

CHECKED: Final = 2
"""First steps whose losses are compared: the second shows the update."""

TURN_S: Final = 0.25
"""Seconds of a turn, unless a single step takes longer."""

MOST: Final = 1000
"""Steps of a turn."""

SPARE: Final = 0.15
"""By how much the cores that a player keeps busy may exceed its threads."""

MEMORY: Final = "memory"
"""Among the rates, that of a pass over memory."""

CONVOLUTIONS: Final = "convolutions, float32"
"""Among the rates, that of torch's convolutions."""

LAYER: Final = "our first layer"
"""Among the rates, that of our own kernels of the first layer."""


def products(precision: str) -> str:
    """Among the rates, that of matrix products."""
    return f"products, {precision}"


@dataclass(frozen=True)
class Measured:
    """The figures of a group with a number of threads.

    Args:
        threads: of every player.
        seconds: of a step, for each round, by player.
        busy: seconds of processors in a step, for each round, by player.
        cores: that a player kept busy, by player; less than its threads if others were at work.
        rates: for each round, GFLOP/s of `products`, `CONVOLUTIONS` and `LAYER`, and GB/s of `MEMORY`.
        peaks: of memory, by player.
        refused: why a player's figures say nothing, by player.
    """

    threads: int
    seconds: Mapping[str, list[float]]
    busy: Mapping[str, list[float]]
    cores: Mapping[str, float]
    rates: Mapping[str, list[float]]
    peaks: Mapping[str, Peak]
    refused: Mapping[str, str]


@dataclass
class _Seat:
    """A running player and its figures."""

    worker: Worker
    steps: int = 1
    cores: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """Seconds of a step: the median of a turn, without its first unless that is the only one."""
        warm = self.steps > 1
        answer = self.worker.call("play", warm + self.steps)
        self.cores.append(answer["busy_s"] / sum(answer["seconds"]))
        self.busy_s.append(answer["busy_s"] / len(answer["seconds"]))
        return float(statistics.median(answer["seconds"][warm:]))


class Players:
    """The players of a group, and what measures rates beside them. Use it as a context manager."""

    def __init__(self, group: Group, folder: Path, threads: Sequence[int]) -> None:
        """Starts all processes for the recipe in a folder, with the first of these numbers of threads."""
        self._group, self._threads, self._stack = group, threads[0], ExitStack()
        most, start = max(threads), self._stack.enter_context
        self._players = {
            name: start(player.start(folder, threads[0], most=most)) for name, player in group.players.items()
        }
        self._machine = start(limits(threads[0], most=most))
        self._layer = None
        if group.layer is not None:
            self._layer = start(Worker("_layer_player", str(folder), str(threads[0])))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def measure(self, threads: int, rounds: Rounds) -> Measured:
        """Compares what all learn with so many threads, and lets them play in turn."""
        if threads != self._threads:
            for worker in (*self._players.values(), self._machine, *filter(None, [self._layer])):
                worker.call("begin", threads)
            self._threads = threads
        seats = {name: _Seat(worker) for name, worker in self._players.items()}
        refused = self._first_steps(seats)
        for name in refused:
            del seats[name]
        rates = self._rates()
        turns = in_turn(
            {**{name: seat.seconds for name, seat in seats.items()}, **rates},
            rounds=rounds,
            rest_s=REST_S if threads > 1 else 0.0,
        )
        cores = {name: statistics.median(seat.cores) for name, seat in seats.items()}
        return Measured(
            threads,
            {name: turns[name] for name in seats},
            {name: seat.busy_s for name, seat in seats.items()},
            cores,
            {name: turns[name] for name in rates},
            {name: Peak.of(seat.worker.call("memory")) for name, seat in seats.items()},
            {**refused, **_too_busy(cores, threads)},
        )

    def _rates(self) -> dict[str, Callable[[], float]]:
        """Rates measured beside the players."""
        machine = self._machine
        found: dict[str, Callable[[], float]] = {
            MEMORY: partial(machine.call, "memory"),
            CONVOLUTIONS: partial(machine.call, "convolution"),
        }
        for precision in dict.fromkeys(claim.ours for claim in self._group.claims):
            found[products(precision)] = partial(machine.call, "gemm", precision)
        if self._layer is not None:
            found[LAYER] = partial(self._layer.call, "rate")
        return found

    def _first_steps(self, seats: Mapping[str, _Seat]) -> dict[str, str]:
        """Plays them. All began with the same parameters and saw the same batch, so they must learn the
        same."""
        losses: dict[str, list[float]] = {}
        group, refused = self._group, {}
        for name, seat in seats.items():
            try:
                answer = seat.worker.call("play", CHECKED)
                seat.worker.call("mark")
            except WorkerEnded as error:
                refused[name] = str(error)
                continue
            losses[name] = answer["losses"]
            seat.steps = min(max(round(TURN_S / answer["seconds"][-1]), 1), MOST)
        reference, expected = next(iter(losses.items()), ("", []))
        for name, found in losses.items():
            tolerance = group.agree.get(name, group.agree["float32"])
            if not all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(found, expected, strict=True)):
                refused[name] = (
                    f"its losses are {found}, those of '{reference}' {expected}; not the same network"
                )
        written = {name: ", ".join(f"{loss:.6g}" for loss in values) for name, values in losses.items()}
        print(f"{group.title}: first losses {'; '.join(map(' '.join, written.items()))}", flush=True)
        return refused


def _too_busy(cores: Mapping[str, float], threads: int) -> dict[str, str]:
    """A player with more cores at work than it may have threads is another player."""
    return {
        name: f"it kept {busy:.2f} cores busy with {threads} threads; that is no fair turn"
        for name, busy in cores.items()
        if busy > threads + SPARE
    }
