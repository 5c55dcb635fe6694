"""Plays a group of players in turn, and refuses those that do not do the same work on the same terms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks._harness import in_turn
from benchmarks._limits import limits
from benchmarks._memory import Peak
from benchmarks._networks import WORKS
from benchmarks._table import Group
from benchmarks._worker import Worker, WorkerEnded

CHECKED: Final = 3
"""First steps whose losses are compared."""

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
    steps: int
    cores: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """Seconds of a step: the median of a turn, without its first unless that is so long that it hides
        nothing."""
        warm = self.steps > 1
        answer = self.worker.call("play", warm + self.steps)
        self.cores.append(answer["busy_s"] / sum(answer["seconds"]))
        self.busy_s.append(answer["busy_s"] / len(answer["seconds"]))
        return float(statistics.median(answer["seconds"][warm:]))


def measure(group: Group, folder: Path, threads: int, rounds: int) -> Measured:
    """Starts all players of the recipe in a folder, compares what they learn, and lets them play in turn."""
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(player.start(folder, threads)) for name, player in group.players.items()
        }
        refused = _first_steps(group, workers)
        seats = {
            name: _Seat(worker, WORKS[group.network].steps)
            for name, worker in workers.items()
            if name not in refused
        }
        rates = _rates(group, folder, threads, stack)
        turns = in_turn({**{name: seat.seconds for name, seat in seats.items()}, **rates}, rounds=rounds)
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


def _rates(group: Group, folder: Path, threads: int, stack: ExitStack) -> dict[str, Callable[[], float]]:
    """Rates measured beside the players."""
    machine = stack.enter_context(limits(threads))
    found: dict[str, Callable[[], float]] = {
        MEMORY: partial(machine.call, "memory"),
        CONVOLUTIONS: partial(machine.call, "convolution"),
    }
    for precision in dict.fromkeys(claim.ours for claim in group.claims):
        found[products(precision)] = partial(machine.call, "gemm", precision)
    if group.layer is not None:
        layer = stack.enter_context(Worker("_layer_player", str(folder), str(threads)))
        found[LAYER] = partial(layer.call, "rate")
    return found


def _first_steps(group: Group, workers: Mapping[str, Worker]) -> dict[str, str]:
    """Plays them. All began with the same parameters and saw the same batch, so they must learn the same."""
    losses: dict[str, list[float]] = {}
    refused = {}
    for name, worker in workers.items():
        try:
            losses[name] = worker.call("play", CHECKED)["losses"]
            worker.call("mark")
        except WorkerEnded as error:
            refused[name] = str(error)
    reference, expected = next(iter(losses.items()), ("", []))
    for name, found in losses.items():
        tolerance = group.agree.get(name, group.agree["float32"])
        if not all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(found, expected, strict=True)):
            refused[name] = f"its losses are {found}, those of '{reference}' {expected}; not the same network"
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
