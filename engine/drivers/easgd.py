"""Elastic averaging SGD: replicas keep parameters of their own, and shards a centre that draws them.

Every `every` steps a replica fetches the centre c, and both move towards each other: x <- x - alpha (x - c)
and c <- c + alpha (x - c). Nobody waits for another replica, whose parameters may differ: the elastic force
is what holds them together. With Nesterov momentum as the optimizer it is the paper's EAMSGD.

A push has the movement alpha (c - x), and the shard subtracts it when it arrives: so what a replica gives up
the centre gains, to the rounding, also where others have moved the centre since it was fetched.

Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015: section 3, algorithm 1
(asynchronous EASGD), algorithm 2 (EAMSGD).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from typing_extensions import override

from partita.engine.drivers.compressed import check_compressor
from partita.engine.drivers.driver import Driver
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import SGD, Optimizer
from partita.engine.parameters.optimizers.sgd import AVERAGE
from partita.engine.protocol.actions import Compute, Drain, Install, Program, Pull, Push, Room
from partita.engine.protocol.durability import Durability, durability_of
from partita.engine.protocol.durability.settings import Mode
from partita.engine.protocol.leased_work import HasSteps
from partita.layers.checks import check_fields, check_number, check_whole

_BETA: Final = 0.9


@dataclass(frozen=True)
class EASGD(Driver):
    """The settings of elastic averaging.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan. They share the steps of an epoch, as under `Downpour`.
        shards: servers among which the centre is divided.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
            Schedules go by the steps of all replicas.
        every: steps of a replica from one exchange with the centre to the next (tau). The paper has 10.
        moving_rate: alpha, the part of their difference by which a replica and the centre move, above 0 and
            at most 1. If not given, 0.9 / replicas, as in the paper.
        elastic: the least and the most replicas, as under `Downpour`.
        durability: who keeps what a shard has acknowledged, as under `Downpour`.
        compress: pushes are short messages of the movement, with feedback=False: `TopK`, `OneBit`, `Int8` or
            `PowerSGD`. Replica and centre move by what a message means, so what it lacks remains in their
            difference, of which the next movement is a part.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": "write optimizer=SGD(0.05), or another optimizer",
        "learning_rate": "write optimizer=SGD(0.05), or another optimizer",
        "rate": "write optimizer=SGD(0.05), or another optimizer",
        "rule": ("optimizer",),
        "tau": ("every",),
        "communication_period": ("every",),
        "fetch_every": ("every",),
        "push_every": ("every",),
        "alpha": ("moving_rate",),
        "beta": "write moving_rate=beta / replicas",
        "rho": "write moving_rate=learning_rate * rho",
    }

    replicas: int = 1
    shards: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))
    every: int = 10
    moving_rate: float | None = None
    elastic: tuple[int, int] | None = None
    durability: Mode | Durability = "checkpoint"
    compress: Compressor | None = field(default=None, metadata={"fixed": {"feedback": False}})

    def __post_init__(self) -> None:
        self._check_elastic()
        check_fields(self, check_whole, "replicas", "shards", "every", of="EASGD's ")
        self._check_optimizer(self.optimizer)
        if self.optimizer.measured is not None:
            raise ValueError(
                f"{self.optimizer} needs norms of the parameters, which EASGD's parts do not add up; use "
                "AllReduce(optimizer=...), or AdamW"
            )
        if self.moving_rate is not None:
            rule = "; give a number above 0 and at most 1, the part of the difference by which both move"
            most = math.nextafter(1.0, 2.0)
            check_number(self.moving_rate, "EASGD's moving_rate is", below=most, rule=rule)
        durability_of(self.durability)
        check_compressor(self.compress, "EASGD")
        if self.compress is not None and self.compress.feedback:
            raise ValueError(
                f"EASGD's compress is {self.compress!r}, whose feedback would count twice what "
                "remains in the difference of a replica and the centre; give feedback=False, too"
            )

    @property
    @override
    def optimizer_of_shards(self) -> Optimizer:
        return AVERAGE

    @property
    @override
    def pushes_changes(self) -> bool:
        return True

    @property
    @override
    def moves_by(self) -> float:
        return _BETA / self.replicas if self.moving_rate is None else self.moving_rate

    @override
    def replica(self, me: HasSteps) -> Program:
        """The steps of one part. The centre is fetched beside the last step before an exchange."""
        yield Pull()
        is_level = True
        for step in me.steps():
            yield Room(self.every)
            yield Install()
            is_level = (step + 1) % self.every == 0
            if is_level:
                yield Pull()
            yield Compute(step)
            if is_level:
                yield from _exchange()
        if not is_level:
            yield Pull()
            yield from _exchange()
        yield Drain()


def _exchange() -> Program:
    """Yields the actions by which a replica and the centre move, when the centre has all of its pushes."""
    yield Room(0, fetched=True)
    yield Install()
    yield Push()
