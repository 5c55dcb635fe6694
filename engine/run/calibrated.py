"""The line that says that a plan was calibrated on another processor than that of this machine."""

from __future__ import annotations

from partita.partitioner.cluster.processor import processor
from partita.partitioner.plan import Plan


def other_processor(plan: Plan) -> str:
    """Returns the line where a plan whose parts all run here was calibrated on another processor; else "".

    Results are those of the plan: it determines which library computes each product, wherever it runs.
    """
    here = processor().name
    found = (plan.products_of(machine) for machine in range(len(plan.cluster)))
    sources = (one.source or one.threads.source or one.forms.source for one in found)
    others = dict.fromkeys(one for one in sources if one and one.rpartition(", ")[0] != here)
    if not others:
        return ""
    return (
        f"the plan was calibrated on {' and '.join(others)}, and this machine is {here}: the predicted "
        "time and the chosen libraries are for the other processor; calibrate here: partita calibrate FILE"
    )
