"""Plans in float16, whose gradients need a loss scale: which drivers and networks can train in it."""

from __future__ import annotations

from partita.engine.drivers.driver import Driver
from partita.engine.parameters.optimizers import Optimizer
from partita.partitioner.plan import Plan

_INSTEAD = 'or partition(..., precision="bfloat16")'


def check_driver(driver: Driver, plan: Plan) -> None:
    """Raises ValueError where a plan is in float16 and the driver does not scale losses."""
    if plan.precision == "float16" and not driver.scales_losses:
        raise ValueError(
            f"{type(driver).__name__} does not scale losses, and small gradients vanish in float16; train "
            f"with AllReduce, {_INSTEAD}"
        )


def check_session(optimizer: Optimizer | None, plan: Plan) -> None:
    """Raises ValueError where the optimizer of a session would get gradients in float16."""
    if plan.precision == "float16" and optimizer is not None:
        raise ValueError(
            "a session does not scale losses, and small gradients vanish in float16; leave the optimizer "
            f"out, train with AllReduce, {_INSTEAD}"
        )


def check_scalable(plan: Plan) -> None:
    """Checks that every gradient is that of the loss alone, which is scaled. Raises ValueError."""
    graph = plan.graph
    if graph.averaged:
        raise ValueError(
            f"'{min(graph.averaged)}' is a running average, whose changes a loss scale would scale, too; "
            f"write GroupNorm for BatchNorm, {_INSTEAD}"
        )
    regularised = sorted(name for name, one in graph.parameters.items() if one.regulariser is not None)
    if regularised:
        raise ValueError(
            f"'{regularised[0]}' has a regulariser, whose gradient is not that of the scaled loss; give the "
            f"optimizer weight_decay, {_INSTEAD}"
        )
