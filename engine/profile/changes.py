"""Changes that would gain most: a plan changed in one thing and played again on the virtual clock.

Each change is compared with the plan as it is, both predicted. A change is tried alone; two of them together
may gain more or less than their product. `trials` lists the changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.engine.profile.trials import Planner, trials
from partita.partitioner.plan import Plan

WORTH_SAYING: Final = 1.02
"""Smallest gain that is reported; smaller ones are below the accuracy of predictions."""
NEARLY: Final = 0.98
"""Share of the best gain of a family that makes a cheaper change preferred."""
SHOWN: Final = 3


@dataclass(frozen=True)
class Change:
    """A change and its gain.

    Args:
        what: description in words.
        gain: factor by which the predicted step is shorter.
        step_s: seconds of the predicted step with the change.
    """

    what: str
    gain: float
    step_s: float

    def __str__(self) -> str:
        return f"{self.what}: {self.gain:.1f}x" if self.gain >= 1.1 else f"{self.what}: {self.gain:.2f}x"


def best_changes(plan: Plan, again: Planner | None = None, *, most: int = SHOWN) -> tuple[Change, ...]:
    """Returns the changes that would gain most, the best first; of each family at most one.

    Changes that would gain less than 2%, or whose parts would not fit into memory, are left out.

    Args:
        plan: the plan as it is.
        again: plans the same network for another cluster. Where machines or links change, the plan as it is
            and a new one are tried. None tries no new ones.
        most: number of changes at most.
    """
    before = plan.predicted_step_s
    found: dict[str, list[Change]] = {}
    for trial in trials(plan, again):
        if _fits(trial.plan):
            step_s = trial.plan.predicted_step_s
            found.setdefault(trial.family, []).append(Change(trial.what, before / step_s, step_s))
    chosen = [_chosen(changes) for changes in found.values()]
    worth = [change for change in chosen if change.gain >= WORTH_SAYING]
    return tuple(sorted(worth, key=lambda change: -change.gain)[:most])


def _chosen(changes: list[Change]) -> Change:
    best = max(change.gain for change in changes)
    return next(change for change in changes if change.gain >= NEARLY * best)


def _fits(plan: Plan) -> bool:
    limits = [machine.memory_bytes for machine in plan.cluster.machines]
    return all(limit is None or plan.memory_bytes(m) <= limit for m, limit in enumerate(limits))
