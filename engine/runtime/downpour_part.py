"""The body of a part under Downpour: it computes the steps that its machine orders, and exchanges arrays.

Fetch, push and compute run side by side (DistBelief, section 4.1): this thread sends and receives, the
player's threads compute, and parameters are replaced only between two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Program
from partita.engine.protocol.instruction_scheduler import AHEAD
from partita.engine.protocol.link import Install
from partita.engine.protocol.linked_part import (
    ClearMetrics,
    FailNonfinite,
    HasSteps,
    LinkedPart,
    Nonfinite,
    PlayerReady,
    RunStep,
    StepPlayed,
)
from partita.engine.protocol.messages import PushRecord
from partita.engine.protocol.parameter_links import ClearGradient, ParameterLinks, SavePushRecord
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.program_effects import Deliver, StuckOn
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.metrics import examples_counted
from partita.engine.runtime.part_body import PartBody, PartTask
from partita.engine.runtime.player import PlayedStep
from partita.engine.runtime.push_log import PushLog, pushes_of_part
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.runtime.updates import GradientAccumulation
from partita.partitioner.ir.step_kind import StepKind


class NotFinite(CannotGoOn):
    """A number has become NaN or infinite. What the shards hold is of the steps before."""


@dataclass(frozen=True)
class DownpourPartTask(PartTask):
    """One machine's part of one replica, under Downpour.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards: see `PartTask`.
        optimizer: updates the part's own parameters between two fetches.
        program: the `replica` of the driver.
        acknowledged: folder in which parts note the pushes that shards have acknowledged.
        overlap: see `Downpour`.
        merges: one push holds the gradients of several steps or minibatches.
    """

    optimizer: Optimizer
    program: Callable[[HasSteps], Program]
    acknowledged: Path
    overlap: int = 1
    merges: bool = False

    def role(self, host: HostContext) -> tuple[LinkedPart, DownpourBody]:
        """See the protocol `HostTask`."""
        body = DownpourBody(self, host)
        earlier = pushes_of_part(self.acknowledged, host.name, before=host.incarnation)
        return self.machine_of(host.incarnation, earlier, body.item_bytes), body

    def machine_of(
        self, incarnation: int, earlier: Mapping[str, tuple[PushRecord, ...]], item_bytes: int
    ) -> LinkedPart:
        """Makes the machine of the part."""
        links = ParameterLinks(
            incarnation=incarnation,
            shards=self.shard_spans,
            earlier=earlier,
            alone=self.alone,
            stateful=bool(self.optimizer.state_names),
            item_bytes=item_bytes,
        )
        program = self.plan.programs_for(self.kind)[self.machine]
        messages = len(program.instructions) + len(self.other_parts)
        return LinkedPart(
            links,
            self.program,
            others=self.other_parts,
            delay=program.pipeline.delay,
            most_early=(AHEAD + 1) * messages,
        )

    @property
    def alone(self) -> bool:
        """Whether no other replica pushes to the shards."""
        return self.replicas == 1

    @property
    def kind(self) -> StepKind:
        """The kind of a step."""
        return StepKind(norms=self.optimizer.needs_norms, overlap=self.overlap)


class DownpourBody(PartBody[GradientAccumulation]):
    """The arrays and threads of a part."""

    def __init__(self, task: DownpourPartTask, host: HostContext) -> None:
        plan, machine = task.plan, task.machine
        program = plan.programs_for(task.kind)[machine]
        self._sampler = Sampler(
            examples=task.examples,
            batch=plan.batch,
            minibatches=task.overlap,
            seed=task.seed,
        )
        self._feed = DatasetFeed({name: file.open() for name, file in task.data.items()}, self._sampler)
        updates = partial(
            GradientAccumulation,
            task.optimizer,
            per_step=task.overlap,
            follows_shard=task.alone and task.merges,
        )
        super().__init__(task, host, program, feed=self._feed, updates=updates)
        self._player = self._start_player()
        self._push_log = PushLog(task.acknowledged, host.name, host.incarnation, shards=task.shards)
        self._replica = task.replica
        self._counted_of = partial(examples_counted, plan, machine)
        self._step = self._played = 0  # by the replica, and by this process
        self._reported_ready = True

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        match effect:
            case Deliver(event=event):
                self._player.receive(event)
            case RunStep(step=step, unit=unit, updates=updates):
                self._step = step
                self._updates.advance(updates)
                self._feed.choose(unit)
                self._player.begin(self._played)
            case Install(span=span, unheld=unheld, updates=updates):
                super().carry_out(effect, now)
                self._updates.install(slice(span.start, span.stop), unheld, updates)
            case ClearGradient(span=span):
                self._updates.clear(slice(span.start, span.stop))
            case SavePushRecord(shard=shard, record=record):
                self._push_log.note(shard, record)
            case ClearMetrics():
                self._computations.metrics.clear()
            case LookForWaits():
                return StuckOn(*self._player.stuck_on)
            case FailNonfinite(reason=reason):
                raise NotFinite(reason)
            case _:
                super().carry_out(effect, now)
        return None

    @override
    def poll(self, now: float) -> Iterator[Any]:
        for over in self._player.poll():
            yield self._end(over)
        self._refuse_all(self._player.refused())
        if not self._reported_ready and self._player.may_begin():
            self._reported_ready = True
            yield PlayerReady()

    def _end(self, over: PlayedStep) -> StepPlayed | Nonfinite:
        assert over.step == self._played, (over, self._played)
        computations = self._computations
        finite = self._vectors.device.updates_were_finite()  # asked whatever else is wrong: it starts anew
        if not finite or not math.isfinite(computations.metrics.loss) or computations.not_finite:
            return Nonfinite(*computations.watch.describe(step=self._step, replica=self._replica))
        self._played += 1
        self._reported_ready = self._player.may_begin()
        return StepPlayed(
            self._counted_of(self._feed.count),
            computations.metrics.loss,
            computations.metrics.correct,
            self._reported_ready,
        )

    @override
    def close(self) -> None:
        self._player.close()
        self._push_log.close()
