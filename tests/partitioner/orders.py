"""Orders in which the instructions of a step may run."""

from __future__ import annotations

import random

from tests.partitioner.interpreter import Choice

ORDERS = ("random", "first", "last", "one machine as far as it gets", "bursts")


def chooser(order: str, seed: int) -> Choice:
    chance = random.Random(seed)
    favourite = chance.random()
    picks: dict[str, Choice] = {
        "random": chance.choice,
        "first": min,
        "last": max,
        "one machine as far as it gets": lambda ready: min(
            ready, key=lambda at: (hash((at[0], favourite)), -at[1])
        ),
        "bursts": lambda ready: min(ready, key=lambda at: (chance.random() < 0.1, at[0], chance.random())),
    }
    return picks[order]
