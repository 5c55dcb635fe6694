"""Hands of a part whose work is assigned unit by unit, and whose shards sum gradients.

One thread sends and receives, others compute, and one fetches the examples of the next portion. Points are
replaced only between two assignments; a gradient is in flight while the next one accumulates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.part import Part
from partita.engine.protocol.point_links import PointLinks
from partita.engine.runtime.assignments import MultiPartRunner, Prepare, SinglePartRunner
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.gradient_sum import GradientSum
from partita.engine.runtime.link_arrays import LinkArrays
from partita.engine.runtime.part_body import PartBody
from partita.engine.runtime.part_task import Hands, PartTask
from partita.engine.runtime.portion_feed import PortionFeed, PortionOrder
from partita.engine.runtime.shared_part import SharedBody
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.validation import start_player
from partita.partitioner.ir.program import COMPUTES
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True, kw_only=True)
class AssignedHands(Hands):
    """Settings of a part that evaluates. A portion has `plan.batch` examples.

    Args:
        shuffled: whether examples come in a new order each epoch, or else as they lie.
    """

    shuffled: bool

    @override
    def build(self, task: PartTask, host: HostContext) -> tuple[RoleMachine, PartBody]:
        plan = task.plan
        vectors = Vectors(plan, task.machine, gradient=False)
        links = PointLinks(streams=task.streams, item_bytes=vectors.parameters.itemsize)
        work = AssignedWork(links, alone=not task.other_parts)
        needed = (*task.other_parts, *links.shards)
        machine = Part(task.program, work, needed=needed, watched=links.shards)
        portions = Portions(task.examples, plan.batch)
        order = PortionOrder(portions, seed=task.seed, shuffled=self.shuffled, ordering=task.ordering)
        updates, program = GradientSum(vectors), plan.programs_for(StepKind())[task.machine]
        feed = PortionFeed(task.opened(host, program), order)
        buffers = Buffers(plan, task.machine, program, vectors, keep=plan.kept)
        computations = Computations(buffers, feed, updates, metrics=task.metrics)
        arrays, prepare = LinkArrays(vectors, updates), _prepared(work, feed, updates)
        settings: dict[str, Any] = {
            "watchdog": computations.watchdog,
            "timeout_s": task.instruction_timeout_s,
            "validation": task.validator(host, vectors),
        }
        if any(instruction.op not in COMPUTES for instruction in program.instructions):
            player = start_player(host, computations, replica=task.replica, lanes=task.threads)
            several = MultiPartRunner(player, computations, prepare=prepare, times=lambda: feed.times)
            return machine, PartBody(host, several, arrays, feed, **settings)
        one = SinglePartRunner(
            computations,
            prepare=prepare,
            is_over=lambda evaluation: not task.other_parts and work.is_over(evaluation),
            wake=host.wake,
            times=lambda: feed.times,
        )
        body = SharedBody(host, one, arrays, feed, machine, **settings)
        one.start(body.finish)
        return body.machine, body


def _prepared(work: AssignedWork, feed: PortionFeed, updates: GradientSum) -> Prepare:
    def prepare(assignment: RunAssignment, n: int) -> None:
        """Chooses portion number n of an assignment, and has the one after it fetched."""
        updates.begin(first=n == 0)
        feed.choose(assignment.first + n)
        following = work.following
        if n + 1 < assignment.count:
            feed.ahead(assignment.first + n + 1)
        elif following is not None:
            feed.ahead(following.first)

    return prepare
