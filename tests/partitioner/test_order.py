"""In whatever order instructions run, every error is summed once, completely, and in one order."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.partitioner import Plan
from tests.partitioner.interpreter import Choice, Interpreter
from tests.plans import plans

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


@settings(max_examples=300)
@given(plan=plans(), order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_any_order_of_a_training_step_gives_the_same_sums(plan: Plan, order: str, seed: int) -> None:
    Interpreter(plan, plan.programs, train=True).run(steps=2, choose=chooser(order, seed))


@settings(max_examples=100)
@given(plan=plans(), order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_any_order_of_the_way_up_gives_every_state(plan: Plan, order: str, seed: int) -> None:
    Interpreter(plan, plan.upward_programs, train=False).run(steps=2, choose=chooser(order, seed))
    alone = plan.for_prediction()
    Interpreter(alone, alone.programs, train=False).run(steps=2, choose=chooser(order, seed))
