"""Costs of instructions and messages that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partita.partitioner import (
    Instruction,
    MessageCost,
)


@dataclass(frozen=True)
class Prices:
    """Costs that a test gives: of an instruction, of its machine's messages."""

    compute: Callable[[Instruction, int], float]
    cost: Callable[[int, int, int], MessageCost]
    held_up: bool = False
    at_once: bool = True
    begin_s: float = 0.0

    def compute_s(self, instruction: Instruction, machine: int) -> float:
        return self.compute(instruction, machine)

    def step_s(self, machine: int) -> float:
        return self.begin_s

    def message(self, n_bytes: int, source: int, destination: int) -> MessageCost:
        return self.cost(n_bytes, source, destination)

    def interrupts(self, machine: int) -> bool:
        return self.held_up

    def both_ways(self, source: int, destination: int) -> bool:
        return self.at_once


def one_slow(slow: int) -> Prices:
    """Costs of machines of which one takes ages, and is hard to reach."""
    return Prices(
        lambda _, machine: 100.0 if machine == slow else 0.01,
        lambda _, source, destination: MessageCost(0.01, 50.0 if destination == slow else 0.02, 0.1, 0.01),
    )
