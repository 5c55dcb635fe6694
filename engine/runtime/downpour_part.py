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
from typing import Any, Final

import numpy as np
from typing_extensions import override

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Program
from partita.engine.protocol.events import Send
from partita.engine.protocol.leased_work import HasSteps, LeasedWork, RunUnit
from partita.engine.protocol.link import Install
from partita.engine.protocol.messages import PushRecord
from partita.engine.protocol.parameter_links import ClearGradient, ParameterLinks, SavePushRecord
from partita.engine.protocol.part import LookForWaits, Part
from partita.engine.protocol.program_effects import Deliver, StepDone, StuckOn
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.metrics import examples_counted
from partita.engine.runtime.part_body import PartBody, PartTask
from partita.engine.runtime.player import PlayedStep
from partita.engine.runtime.push_log import PushLog, pushes_of_part
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.runtime.updates import GradientAccumulation
from partita.engine.transport.payload import Steady
from partita.partitioner.ir.step_kind import StepKind

OTHERS_FIRST_S: Final = 2.0
"""The time for a machine that sent a nonfinite array to report where that began."""


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

    def role(self, host: HostContext) -> tuple[Part, DownpourBody]:
        """See the protocol `HostTask`."""
        body = DownpourBody(self, host)
        earlier = pushes_of_part(self.acknowledged, host.name, before=host.incarnation)
        return self.machine_of(host.incarnation, earlier, body.item_bytes), body

    def machine_of(
        self, incarnation: int, earlier: Mapping[str, tuple[PushRecord, ...]], item_bytes: int
    ) -> Part:
        """Makes the machine of the part."""
        links = ParameterLinks(
            incarnation=incarnation,
            shards=self.shard_spans,
            earlier=earlier,
            alone=self.alone,
            stateful=bool(self.optimizer.state_names),
            item_bytes=item_bytes,
        )
        delay = self.plan.programs_for(self.kind)[self.machine].pipeline.delay
        return Part(
            self.program,
            LeasedWork(links, delay=delay),
            needed=self.other_parts,
            watched=links.shards,
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
            memory=host.memory,
        )
        super().__init__(task, host, program, feed=self._feed, updates=updates)
        self._player = self._start_player()
        self._push_log = PushLog(task.acknowledged, host.name, host.incarnation, shards=task.shards)
        self._replica = task.replica
        self._counted_of = partial(examples_counted, plan, machine)
        self._next: RunUnit | None = None  # ordered, not begun
        self._step: RunUnit | None = None  # under way
        self._raises: tuple[NotFinite, float] | None = None

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        match effect:
            case Deliver(event=event):
                self._player.receive(event)
            case RunUnit():
                self._next = effect
                self._begin()
            case Install(span=span, unheld=unheld, updates=updates):
                super().carry_out(effect, now)
                self._updates.install(slice(span.start, span.stop), unheld, updates)
            case ClearGradient(span=span):
                self._updates.clear(slice(span.start, span.stop))
            case SavePushRecord(shard=shard, record=record):
                self._push_log.note(shard, record)
            case LookForWaits():
                return StuckOn(*self._player.stuck_on)
            case _:
                super().carry_out(effect, now)
        return None

    @override
    def payload(self, send: Send) -> Steady:
        found = super().payload(send)
        assert isinstance(found, np.ndarray)
        return Steady(found)  # nothing writes there before the shard has acknowledged it

    @override
    def poll(self, now: float) -> Iterator[Any]:
        for over in self._player.poll():
            done = self._end(over, now)
            if done is not None:
                yield done
        self._refuse_all(self._player.refused())
        self._begin()

    @override
    def tick(self, now: float) -> None:
        if self._raises is not None and now >= self._raises[1]:
            raise self._raises[0]
        super().tick(now)

    def _begin(self) -> None:
        """Begins the step that was ordered, as soon as it may begin."""
        step = self._next
        if step is None or not self._player.may_begin():
            return
        self._next, self._step = None, step
        self._computations.metrics.clear()
        self._updates.advance(step.updates)
        self._feed.choose(step.unit)
        self._player.begin(step.number)

    def _end(self, over: PlayedStep, now: float) -> StepDone | None:
        step, metrics = self._step, self._computations.metrics
        assert step is not None and over.step == step.number, (over, step)
        finite = self._vectors.device.updates_were_finite()  # asked whatever else is wrong: it starts anew
        if not finite or not math.isfinite(metrics.loss) or self._computations.not_finite:
            self._fail(step, now)
            return None
        self._step = None
        return StepDone(over.step, self._counted_of(self._feed.count), metrics.loss, metrics.correct)

    def _fail(self, step: RunUnit, now: float) -> None:
        """Raises `NotFinite`; later if the array came from a machine that may raise an earlier cause."""
        reason, received = self._computations.watch.describe(step=step.step, replica=self._replica)
        self._raises = NotFinite(reason), now + (OTHERS_FIRST_S if received else 0.0)
        if not received:
            raise self._raises[0]

    @override
    def close(self) -> None:
        self._player.close()
        self._push_log.close()
