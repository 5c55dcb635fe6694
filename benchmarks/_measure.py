"""Plays a group of players in turn, and refuses those that do not do the same work on the same terms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks._harness import in_turn
from benchmarks._limits import limits
from benchmarks._memory import Peak
from benchmarks._networks import WORKS
from benchmarks._table import Group
from benchmarks._worker import Worker

CHECKED: Final = 3
"""First steps whose losses are compared."""

SPARE: Final = 0.15
"""By how much the cores that a player keeps busy may exceed its threads."""

MEMORY: Final = "memory"
"""Among the rates, that of a pass over memory."""

LAYER: Final = "our first layer"
"""Among the rates, that of our own kernels of the first layer."""


def products(precision: str) -> str:
    """Among the rates, that of matrix products."""
    return f"products, {precision}"


@dataclass(frozen=True)
class Measured:
    """What a group came to with so many threads.

    Args:
        threads: of every player.
        seconds: of a step, for each round, by player.
        rates: for each round, GFLOP/s of `products` and of `LAYER`, and GB/s of `MEMORY`.
        peaks: of memory, by player.
        refused: why a player's figures say nothing, by player.
    """

    threads: int
    seconds: Mapping[str, list[float]]
    rates: Mapping[str, list[float]]
    peaks: Mapping[str, Peak]
    refused: Mapping[str, str]


@dataclass
class _Seat:
    """A player at work."""

    worker: Worker
    steps: int
    cores: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """Of a step: the median of a turn, without its first."""
        answer = self.worker.call("play", 1 + self.steps)
        self.cores.append(answer["cores"])
        return statistics.median(answer["seconds"][1:])


def measure(group: Group, threads: int, rounds: int) -> Measured:
    """Starts all players, compares what they learn, and lets them play in turn."""
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(player.start(group.network, group.batch, threads))
            for name, player in group.players.items()
        }
        losses = {name: worker.call("play", CHECKED)["losses"] for name, worker in workers.items()}
        for worker in workers.values():
            worker.call("mark")
        seats = {name: _Seat(worker, WORKS[group.network].steps) for name, worker in workers.items()}
        rates = _rates(group, threads, stack)
        turns = in_turn({**{name: seat.seconds for name, seat in seats.items()}, **rates}, rounds=rounds)
        return Measured(
            threads,
            {name: turns[name] for name in seats},
            {name: turns[name] for name in rates},
            {name: Peak.of(worker.call("memory")) for name, worker in workers.items()},
            {**_too_busy(seats, threads), **_disagreeing(group, losses)},
        )


def _rates(group: Group, threads: int, stack: ExitStack) -> dict[str, Callable[[], float]]:
    """What is measured beside the players."""
    machine = stack.enter_context(limits(threads))
    found: dict[str, Callable[[], float]] = {MEMORY: partial(machine.call, "memory")}
    for precision in dict.fromkeys(claim.ours for claim in group.claims):
        found[products(precision)] = partial(machine.call, "gemm", precision)
    if group.layer is not None:
        layer = stack.enter_context(Worker("_layer_player", group.network, str(group.batch), str(threads)))
        found[LAYER] = partial(layer.call, "rate")
    return found


def _disagreeing(group: Group, losses: Mapping[str, list[float]]) -> dict[str, str]:
    """All began with the same parameters and saw the same batch, so they must learn the same."""
    reference, expected = next(iter(losses.items()))
    found = {}
    for name, values in losses.items():
        tolerance = group.agree.get(name, group.agree["float32"])
        if not all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(values, expected, strict=True)):
            found[name] = (
                f"its first losses are {values}, those of '{reference}' {expected}; not the same network"
            )
    written = {name: ", ".join(f"{loss:.6g}" for loss in values) for name, values in losses.items()}
    print(f"{group.title}: first losses {'; '.join(map(' '.join, written.items()))}", flush=True)
    return found


def _too_busy(seats: Mapping[str, _Seat], threads: int) -> dict[str, str]:
    """A player with more cores at work than it may have threads is another player."""
    cores = {name: statistics.median(seat.cores) for name, seat in seats.items()}
    return {
        name: f"it kept {busy:.2f} cores busy with {threads} threads; that is no fair turn"
        for name, busy in cores.items()
        if busy > threads + SPARE
    }
