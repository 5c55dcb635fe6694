"""Downpour SGD: asynchronous replicas against sharded parameters.

Source: DistBelief, section 4.1. Each replica, itself cut over machines, fetches parameters, computes
gradients and pushes them, without waiting for any other; the shards apply each push as it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from partita.engine.drivers.checks import whole
from partita.engine.drivers.driver import Driver
from partita.engine.parameters.optimizers import SGD, Optimizer


@dataclass(frozen=True)
class Downpour(Driver):
    """The driver's settings.

    Args:
        replicas: copies of the network, each over all machines of the plan, each with its own share of the
            data.
        shards: servers among which the parameters are divided.
        optimizer: what a shard does with a gradient. Between two fetches a replica steps by the same
            optimizer with a state of its own; with SGD that is the paper's w <- w - alpha * g.
        fetch_every, push_every: steps from one fetch, or push, to the next. The paper's experiments used 1
            and 1.
        run_ahead: steps that a replica may compute while a shard has not settled its last push. Then it
            waits: what would accumulate meanwhile would be far too old when it is applied. (The paper has no
            such bound.)
        overlap: minibatches in a step, which follow one another through the machines of a horizontal cut:
            while one machine is at a minibatch, those before it are at the next ones. Each is learnt as soon
            as its errors are there, so on a machine that is n machines before the loss its gradient is up to
            n updates late; reports count that as staleness. Fetches and pushes come between steps, and
            `fetch_every`, `push_every` and `run_ahead` count steps. (The paper does without.)

    Raises:
        ValueError: a number is no whole one of at least 1, or the optimizer is none.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": "write optimizer=SGD(0.05), or another optimizer",
        "learning_rate": "write optimizer=SGD(0.05), or another optimizer",
        "rate": "write optimizer=SGD(0.05), or another optimizer",
    }

    replicas: int = 1
    shards: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))
    fetch_every: int = 1
    push_every: int = 1
    run_ahead: int = 16
    overlap: int = 1

    def __post_init__(self) -> None:
        for name in ("replicas", "shards", "fetch_every", "push_every", "run_ahead", "overlap"):
            object.__setattr__(self, name, whole(getattr(self, name), f"Downpour's {name} is", least=1))
        if not isinstance(self.optimizer, Optimizer):
            raise ValueError(
                f"Downpour's optimizer is {self.optimizer!r}; give an optimizer, for example SGD(0.05)"
            )
