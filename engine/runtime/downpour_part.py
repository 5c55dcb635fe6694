"""A part under Downpour: steps of its own replica, one after another, and the exchange with the shards.

Fetch, push and compute run side by side (DistBelief, section 4.1): this thread sends and receives, the
player's threads compute, and parameters are replaced only between two steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.downpour_client import (
    ClearGradient,
    DownpourClient,
    DownpourEvent,
    Drain,
    Drained,
    SavePushRecord,
    StepBegins,
    StepEnded,
)
from partita.engine.protocol.events import Received, Replaced, Tick
from partita.engine.protocol.instruction_scheduler import AHEAD
from partita.engine.protocol.messages import (
    Begin,
    Credit,
    Finished,
    Heartbeat,
    Parameters,
    PushAck,
    Report,
    ResumeStep,
    Tensor,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.shard_client import Started
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.nonfinite import NonfiniteArray
from partita.engine.runtime.part_role import PartRole, PartTask
from partita.engine.runtime.player import PlayedStep
from partita.engine.runtime.push_log import PushLog, pushes_of_part
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.runtime.updates import GradientAccumulation
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.plan import Plan

REPORT_EVERY_S: Final = 0.2
LATEST_REPORT_S: Final = 2.0
RESEND_S: Final = 1.0
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
        fetch_every, push_every, run_ahead, overlap: see `Downpour`.
        acknowledged: folder in which parts note the pushes that shards have acknowledged.
    """

    optimizer: Optimizer
    fetch_every: int
    push_every: int
    run_ahead: int
    acknowledged: Path
    overlap: int = 1

    def role(self, host: HostContext) -> DownpourPartRole:
        """See the protocol `HostTask`."""
        return DownpourPartRole(self, host)

    def client(self, host: HostContext, *, item_bytes: int) -> DownpourClient:
        """Makes the machine that talks to the shards."""
        return DownpourClient(
            incarnation=host.incarnation,
            shards=self.shard_spans,
            earlier=pushes_of_part(self.acknowledged, host.name, before=host.incarnation),
            fetch_every=self.fetch_every,
            push_every=self.push_every,
            run_ahead=self.run_ahead,
            item_bytes=item_bytes,
        )


class DownpourPartRole(PartRole[GradientAccumulation]):
    """The training loop of a part."""

    def __init__(self, task: DownpourPartTask, host: HostContext) -> None:
        plan, machine, optimizer = task.plan, task.machine, task.optimizer
        kind = StepKind(norms=optimizer.needs_norms, overlap=task.overlap)
        program = plan.programs_for(kind)[machine]
        self._sampler = Sampler(
            examples=task.examples,
            batch=plan.batch,
            minibatches=task.overlap,
            seed=task.seed,
            replica=task.replica,
            replicas=task.replicas,
        )
        self._feed = DatasetFeed({name: file.open() for name, file in task.data.items()}, self._sampler)
        updates = partial(GradientAccumulation, optimizer, per_step=task.overlap)
        super().__init__(task, host, program, feed=self._feed, updates=updates)
        self._player = self._start_player()
        self._client = task.client(host, item_bytes=self._vectors.parameters.itemsize)
        self._push_log = PushLog(task.acknowledged, host.name, host.incarnation, shards=task.shards)
        self._replica, self._shards = task.replica, [shard for shard, _, _ in task.shard_spans]
        self._others = task.other_parts
        self._counted_of = partial(_examples_counted, plan, machine)
        self._delay = program.pipeline.delay
        self._newest_updates: int | None = None  # reported by shards since the last step began
        self._early: list[Received] = []
        self._most_early = (AHEAD + 1) * (len(program.instructions) + len(self._others))
        self._revision = 0
        self._peers: Mapping[str, int] | None = None  # None until all parts of the replica can be reached
        self._step, self._stop = -1, 0
        self._played = 0  # steps: those without examples are not played
        self._inside = self._draining = False
        self._reports = _Reports()
        self._raises: tuple[NotFinite, float] | None = None
        self._sent_at = float("-inf")

    # Messages and time

    def receive(self, event: Received, now: float) -> None:
        """Gives messages of other parts to the player, and those of shards to the client."""
        match event.message:
            case Tensor() | Credit():
                self._receive_of_part(event)
            case Parameters(updates=updates):
                self._newest_updates = max(updates, self._newest_updates or 0)
                self._handle(event, now)
                self._send_resume_step(now)
            case PushAck():
                self._handle(event, now)
            case Begin(step=step, stop=stop):
                self._start(step, stop)
            case Heartbeat():
                return
            case _:
                kind = type(event.message).__name__
                self._host.refuse(event.sender, f"a {kind}, which is not for a part in training")

    def _receive_of_part(self, event: Received) -> None:
        """Gives the player a message, or keeps it until the first step is known."""
        if self._step >= 0:
            self._player.receive(event)
        elif len(self._early) < self._most_early:
            self._early.append(event)
        else:
            self._host.refuse(event.sender, "more than the messages of the first steps")

    def peers_changed(self, revision: int, peers: Mapping[str, int], now: float) -> None:
        """Starts the client when all parts are there, and repeats requests to shards that were replaced."""
        self._revision = revision
        if self._peers is not None:
            for shard in self._shards:
                if peers.get(shard, 0) > self._peers.get(shard, 0):
                    self._handle(Replaced(shard, peers[shard]), now)
        elif not all(part in peers for part in self._others):
            return
        else:
            self._peers = peers
            self._handle(Started(), now)
            self._send_resume_step(now)
        self._peers = dict(peers)

    def tick(self, now: float) -> None:
        """Repeats what was not answered."""
        if self._raises is not None and now >= self._raises[1]:
            raise self._raises[0]
        self._check_computations(now)
        self._handle(Tick(), now)
        self._send_resume_step(now)
        if self._client.drained and now - self._sent_at >= RESEND_S:
            self._send_finished(now)
        self._report_waits(*self._waits(), now)

    def _waits(self) -> tuple[int, Sequence[tuple[str, str]]]:
        """The step, and (host, what) that the part gets no further without."""
        client, step = self._client, self._step
        if client.drained or (step < 0 and (self._peers is None or client.informed)):
            return step, ()
        if step < 0 or self._draining or not (self._inside or client.ready):
            return step, [(shard, "an answer") for shard in client.waits_for]
        played, missing = self._player.stuck_on
        return played, [(host, f"{what} in step {step}") for host, what in missing]

    def _send_resume_step(self, now: float) -> None:
        """Reports the step to go on with, which the coordinator waits for before it sends `Begin`."""
        known = self._step < 0 and self._peers is not None and self._client.informed
        if known and now - self._sent_at >= RESEND_S:
            self._sent_at = now
            self._host.send(COORDINATOR, ResumeStep(self._client.continues), None)

    def _send_finished(self, now: float) -> None:
        self._sent_at = now
        self._host.send(COORDINATOR, Finished(self._step, self._revision), None)

    # Steps

    def poll(self, now: float) -> None:
        """Ends the step that is over, and begins the next one."""
        for step in self._player.poll():
            self._end(step, now)
        self._refuse_all(self._player.refused())
        if self._may_begin():
            self._begin(now)

    def _start(self, step: int, stop: int) -> None:
        if self._step >= 0:
            return  # a repeat
        self._step, self._stop = step, stop
        self._player.start(0)
        for event in self._early:
            self._player.receive(event)
        self._early.clear()

    def _may_begin(self) -> bool:
        known = self._step >= 0 and self._peers is not None
        if not known or self._inside or self._draining or not self._client.ready:
            return False
        return self._step >= self._stop or self._player.may_begin()

    def _begin(self, now: float) -> None:
        self._skip_empty_steps()
        if self._step >= self._stop:
            self._draining = True
            self._handle(Drain(), now)
            return
        self._inside = True
        self._handle(StepBegins(self._step), now)
        self._updates.advance(self._newest_updates)
        self._newest_updates = None
        self._feed.choose(self._step)
        self._player.begin(self._played)

    def _skip_empty_steps(self) -> None:
        """Skips steps at the end of an epoch that have no example of this replica, but of others."""
        before = self._step
        while self._step < self._stop and not self._sampler.count(self._step):
            self._step += 1
        if before < self._step == self._stop:
            self._report()

    def _end(self, over: PlayedStep, now: float) -> None:
        assert over.step == self._played, (over, self._played)
        if not self._is_finite(now):
            return
        self._inside = False
        self._handle(StepEnded(self._step), now)
        self._reports.examples += self._counted_of(self._feed.count)
        self._played += 1
        self._step += 1
        passed_s = now - self._sent_at
        if self._step == self._stop or self._reports.is_due(self._step, passed_s):
            self._sent_at = now
            self._report()
            self._reports.space(passed_s)
        self._host.wake()

    def _is_finite(self, now: float) -> bool:
        """Checks the arrays of a step, before anything of it is pushed.

        An array from another machine may have an earlier cause there: that machine is given the time to
        raise first.

        Raises:
            NotFinite: an array of this machine is the first that is not finite.
        """
        computations = self._computations
        finite = self._vectors.device.updates_were_finite()  # asked whatever else is wrong: it starts anew
        if finite and math.isfinite(computations.metrics.loss) and not computations.not_finite:
            return True
        computations.watch.look()
        suspect = computations.watch.suspect or NonfiniteArray("the loss is")
        error = NotFinite(
            f"in step {self._step} of replica {self._replica}, {suspect.what} not finite; lower the "
            f"learning rate, clip the gradients, or look at the data of this step{suspect.hint}"
        )
        if not suspect.received:
            raise error
        self._raises = error, now + OTHERS_FIRST_S
        return False

    def _report(self) -> None:
        metrics, client = self._computations.metrics, self._client
        examples, self._reports.examples = self._reports.examples, 0
        staleness = client.staleness + client.pushes * self._delay
        report = Report(self._step, examples, metrics.loss, metrics.correct, staleness, client.pushes)
        self._host.send(COORDINATOR, report, None)
        metrics.clear()

    def _handle(self, event: DownpourEvent, now: float) -> None:
        """Gives the client an event, and carries out its effects."""
        for effect in self._client.receive(event, now):
            match effect:
                case ClearGradient(span=span):
                    self._updates.clear(slice(span.start, span.stop))
                case SavePushRecord(shard=shard, record=record):
                    self._push_log.note(shard, record)
                case Drained():
                    self._send_finished(time.monotonic())
                case _:
                    self._carry_out(effect)

    def close(self) -> None:
        """Ends the kernel threads."""
        self._player.close()
        self._push_log.close()


class _Reports:
    """When a part reports: about every `REPORT_EVERY_S`, at steps that are multiples of a power of two.

    So all parts of a replica report at steps at which the others report, and their sums can be put together.
    """

    def __init__(self) -> None:
        self.examples = 0  # since the last report
        self._every = 1  # steps

    def is_due(self, step: int, passed_s: float) -> bool:
        return step % self._every == 0 or passed_s >= LATEST_REPORT_S

    def space(self, passed_s: float) -> None:
        if passed_s < REPORT_EVERY_S / 2:
            self._every *= 2
        elif passed_s > 2 * REPORT_EVERY_S and self._every > 1:
            self._every //= 2


def _examples_counted(plan: Plan, machine: int, examples: int) -> int:
    """The number of a step's examples that this machine reports.

    The machines that evaluate the first loss share them, as they share its sum, so that the sum of some
    reports is about right, too.
    """
    counted = plan.ownership.loss_owners(plan.graph.losses[0])
    if machine not in counted:
        return 0
    index = counted.index(machine)
    return examples * (index + 1) // len(counted) - examples * index // len(counted)
