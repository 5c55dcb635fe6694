"""The driver of a session: one replica plays a step whenever its user calls for one.

`Session` runs it. Its steps change no parameters but by the optimizer, which follows each gradient at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Calls, Compute, Plan, Program
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.views import Outline
from partita.engine.runtime.session import SessionTask
from partita.layers.checks import check_whole
from partita.partitioner.plan import Plan as Parts


@dataclass(frozen=True)
class Steps(Driver):
    """The settings of steps on request.

    Args:
        train: whether a step has a backward pass.
        optimizer: changes the parameters after each step, in place; None leaves them alone.
        overlap: minibatches in a step, one after another through the machines of a horizontal cut.

    Raises:
        ValueError: an optimizer without `train`, or overlapping minibatches without an optimizer.
    """

    replicas = 1

    train: bool = False
    optimizer: Optimizer | None = None  # type: ignore[assignment]
    overlap: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "overlap", check_whole(self.overlap, "overlap is"))
        if self.optimizer is not None and not self.train:
            raise ValueError(
                "an optimizer is given, but a session without train=True computes no gradient; give "
                "train=True, or leave the optimizer out"
            )
        if self.overlap > 1 and self.optimizer is None:
            raise ValueError(
                f"overlap is {self.overlap}, but no optimizer follows each minibatch; give train=True and an "
                "optimizer, or overlap=1"
            )

    @override
    def coordinator(self, run: Outline) -> Plan:
        yield Calls()

    @override
    def replica(self, me: HasSteps) -> Program:
        for step in me.steps():
            yield Compute(step)

    def tasks(self, plan: Parts) -> list[SessionTask]:
        """Returns the tasks of all parts, replica by replica."""
        settings = self.train, self.optimizer, self.overlap
        return [
            SessionTask(plan, machine, self.replica, *settings, replica, self.replicas)
            for replica in range(self.replicas)
            for machine in range(len(plan.cluster))
        ]
