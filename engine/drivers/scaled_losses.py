"""Plans in float16, whose gradients need a loss scale: who can train in it, and the gradient of a step.

The scale is that of all replicas where they compute one gradient together, and each one's own where they make
steps alone.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.loss_scale import LossScale
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Tree
from partita.engine.protocol.views import Member
from partita.partitioner.plan import Plan

_INSTEAD = 'or partition(..., precision="bfloat16")'


def check_driver(driver: Driver, plan: Plan) -> None:
    """Raises ValueError where a plan is in float16 and the driver does not scale losses."""
    if plan.precision == "float16" and not driver.scales_losses:
        raise ValueError(
            f"{type(driver).__name__} does not scale losses, and small gradients vanish in float16; train "
            f"with AllReduce, LocalSGD or DiLoCo, {_INSTEAD}"
        )


def scale_for(driver: Driver, settings: LossScale | None, plan: Plan) -> LossScale | None:
    """Returns the settings of a driver's loss scale under a plan; None: losses are not scaled.

    Raises:
        ValueError: a gradient of the plan cannot be scaled, or needs no scale and has settings of one.
    """
    if plan.precision == "float16":
        check_scalable(plan)
        return settings or LossScale()
    if settings is not None:
        raise ValueError(
            f"{type(driver).__name__} has a loss_scale, and the plan computes in {plan.precision}, whose "
            'gradients do not vanish; leave it out, or partition(..., precision="float16")'
        )
    return None


def computed(
    me: Member, step: int, settings: LossScale | None, *, alone: bool = False
) -> Generator[a.Action, Any, bool]:
    """Yields the actions that compute a gradient, and returns whether the step may use it.

    With a loss scale all parts of all replicas, or of this one `alone`, have a finite gradient then, divided
    by the scale; or none of them uses its own.
    """
    if settings is None:
        yield a.Compute(step, alone=alone)
        return True
    state = me.loss_scale or settings.first
    yield a.Compute(step, alone=alone, loss_scale=state.scale)
    among = (me.rank,) if alone else None
    norms = yield a.Dots((("gradient", "gradient"),), by=Tree(), among=among)
    of_members = norms if among is None else [norms[rank] for rank in among]
    finite = all(math.isfinite(norm) for norms_of_replica in of_members for norm in norms_of_replica)
    me.loss_scale = settings.after(state, finite=finite)
    if finite:
        yield a.Combine("gradient", {"gradient": 1.0 / state.scale})
    return finite


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
