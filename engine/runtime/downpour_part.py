"""A part in training: steps of its own replica, one after another, and Downpour's conversation with the
shards.

Fetch, push and compute run side by side (DistBelief, section 4.1): this thread talks, the player's threads
compute, and parameters change hands only between two steps.
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
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.downpour_client import (
    ClearGradient,
    DownpourClient,
    DownpourEffect,
    Drain,
    Drained,
    SavePushRecord,
    StepBegins,
    StepEnded,
)
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
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
from partita.engine.protocol.names import COORDINATOR, part_name, shard_name
from partita.engine.protocol.shard_client import Install, Stage, Started, SwapBuffers
from partita.engine.protocol.stall_detector import StallDetector
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.nonfinite import NonfiniteArray
from partita.engine.runtime.player import PlayedStep, Player
from partita.engine.runtime.push_log import PushLog, pushes_of_part
from partita.engine.runtime.replica_task import ReplicaTask
from partita.engine.runtime.task import CannotGoOn, HostContext, Role
from partita.engine.runtime.updates import GradientAccumulation
from partita.engine.transport.payload import Payload
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.plan import Plan

REPORT_EVERY_S: Final = 0.2
LATEST_REPORT_S: Final = 2.0
RESEND_S: Final = 1.0
OTHERS_FIRST_S: Final = 2.0
"""For a machine that sent what is not finite to say where that began."""


class NotFinite(CannotGoOn):
    """A number has become NaN or infinite. What the shards hold is of the steps before."""


@dataclass(frozen=True)
class DownpourPartTask(ReplicaTask):
    """One machine's part of one replica, under Downpour.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards: see `ReplicaTask`.
        optimizer: how the part steps by itself between two fetches.
        fetch_every, push_every, run_ahead, overlap: see `Downpour`.
        acknowledged: folder in which parts note what shards have acknowledged.
    """

    optimizer: Optimizer
    fetch_every: int
    push_every: int
    run_ahead: int
    acknowledged: Path
    overlap: int = 1

    def role(self, link: HostContext) -> DownpourPartRole:
        """See `HostTask`."""
        return DownpourPartRole(self, link)


class DownpourPartRole(Role):
    """The training loop of a part."""

    def __init__(self, task: DownpourPartTask, link: HostContext) -> None:
        plan, machine = task.plan, task.machine
        kind = StepKind(norms=task.optimizer.needs_norms, overlap=task.overlap)
        program = plan.programs_for(kind)[machine]
        self._task, self._link = task, link
        self._sampler = sampler = Sampler(
            examples=task.examples,
            batch=plan.batch,
            minibatches=task.overlap,
            seed=task.seed,
            replica=task.replica,
            replicas=task.replicas,
        )
        self._feed = DatasetFeed({name: file.open() for name, file in task.data.items()}, sampler)
        self._vectors = Vectors(plan, machine, gradient=program.kind.gradients == "whole")
        self._accumulation = GradientAccumulation(task.optimizer, self._vectors, per_step=task.overlap)
        self._buffers = buffers = Buffers(plan, machine, program, self._vectors, keep=plan.kept)
        self._computations = Computations(
            plan,
            machine,
            program,
            buffers=buffers,
            vectors=self._vectors,
            feed=self._feed,
            updates=self._accumulation,
        )
        self._player = Player(
            program,
            self._computations,
            buffers,
            host_of=lambda other: part_name(task.replica, other),
            send=link.send,
            wake=link.wake,
            lanes=task.threads,
        )
        earlier = pushes_of_part(task.acknowledged, link.name, before=link.incarnation)
        self._acknowledged = PushLog(task.acknowledged, link.name, link.incarnation, shards=task.shards)
        self._client = DownpourClient(
            incarnation=link.incarnation,
            shards=tuple(
                (shard_name(o.shard), o.machine_start, o.machine_stop) for o in task.layout.shards_of(machine)
            ),
            earlier=earlier,
            fetch_every=task.fetch_every,
            push_every=task.push_every,
            run_ahead=task.run_ahead,
            item_bytes=self._vectors.parameters.itemsize,
        )
        self._mates = [part_name(task.replica, m) for m in range(len(plan.cluster)) if m != machine]
        self._counted_of = partial(_examples_counted, plan, machine)
        self._delay = program.pipeline.delay
        self._staged: dict[int, Payload] = {}
        self._heard: int | None = None  # of the updates, since the last step began
        self._stuck = StallDetector()
        self._early: list[Received] = []
        self._most_early = (AHEAD + 1) * (len(program.instructions) + len(self._mates))
        self._revision = 0
        self._known = False
        self._epochs: dict[str, int] = {}
        self._step, self._stop = -1, 0
        self._played = 0  # steps: those without examples are not played
        self._inside = self._draining = self._drained = False
        self._unreported = 0  # examples
        self._raises: tuple[NotFinite, float] | None = None
        self._report_every = 1  # steps
        self._said_at = float("-inf")

    # What it hears

    def receive(self, event: Received, now: float) -> None:
        """Messages of other parts go to the player, those of shards to the client."""
        match event.message:
            case Tensor() | Credit():
                self._of_mate(event)
            case Parameters(updates=updates):
                self._heard = max(updates, self._heard or 0)
                self._carry_out(self._client.receive(event, now))
                self._say_continues(now)
            case PushAck():
                self._carry_out(self._client.receive(event, now))
            case Begin(step=step, stop=stop):
                self._start(step, stop)
            case Heartbeat():
                return
            case _:
                kind = type(event.message).__name__
                self._link.refuse(event.sender, f"a {kind}, which is not for a part in training")

    def _of_mate(self, event: Received) -> None:
        """Gives a message of another part to the player, once that knows where to begin."""
        if self._step >= 0:
            self._player.receive(event)
        elif len(self._early) < self._most_early:
            self._early.append(event)
        else:
            self._link.refuse(event.sender, "more than the messages of the first steps")

    def peers_changed(self, revision: int, peers: Mapping[str, int], now: float) -> None:
        """Shards that were started again are asked again; the first time all are there, the client starts."""
        self._revision = revision
        if self._known:
            for overlap in self._task.layout.shards_of(self._task.machine):
                name = shard_name(overlap.shard)
                if peers.get(name, 0) > self._epochs.get(name, 0):
                    self._drained = False
                    self._carry_out(self._client.receive(Replaced(name, peers[name]), now))
        elif all(mate in peers for mate in self._mates):
            self._known = True
            self._carry_out(self._client.receive(Started(), now))
            self._say_continues(now)
        self._epochs = dict(peers)

    def tick(self, now: float) -> None:
        """What was not answered is asked again."""
        if self._raises is not None and now >= self._raises[1]:
            raise self._raises[0]
        self._computations.check_underway(now, self._task.instruction_timeout_s)
        self._carry_out(self._client.receive(Tick(), now))
        self._say_continues(now)
        if self._drained and now - self._said_at >= RESEND_S:
            self._said_at = now
            self._link.send(COORDINATOR, Finished(self._step, self._revision), None)
        for waits in self._stuck.look(*self._waits(), now):
            self._link.send(COORDINATOR, waits, None)

    def _waits(self) -> tuple[object, Sequence[tuple[str, str]]]:
        """Where the part is, and what it gets no further without."""
        if self._drained or (self._step < 0 and (not self._known or self._client.informed)):
            return self._step, ()
        if self._step < 0 or self._draining or not (self._inside or self._client.ready):
            return self._step, [(shard, "an answer") for shard in self._client.waits_for]
        step, missing = self._player.stuck_on
        return step, [(host, f"{what} in step {self._step}") for host, what in missing]

    def _say_continues(self, now: float) -> None:
        """The coordinator waits for this before it says `Begin`."""
        if self._step < 0 and self._known and self._client.informed and now - self._said_at >= RESEND_S:
            self._said_at = now
            self._link.send(COORDINATOR, ResumeStep(self._client.continues), None)

    # Steps

    def poll(self, now: float) -> None:
        """Ends the step that is over, begins the next one."""
        for step in self._player.poll():
            self._end(step, now)
        for refused in self._player.refused():
            self._link.refuse(refused.sender, refused.reason)
        if self._may_begin():
            self._begin(now)

    def _start(self, step: int, stop: int) -> None:
        if self._step >= 0:
            return  # said again: the first one was heard
        self._step, self._stop = step, stop
        self._player.start(0)
        for event in self._early:
            self._player.receive(event)
        self._early.clear()

    def _may_begin(self) -> bool:
        if self._step < 0 or self._inside or not self._known or not self._client.ready or self._draining:
            return False
        return self._step >= self._stop or self._player.may_begin()

    def _begin(self, now: float) -> None:
        self._skip_empty_steps()
        if self._step >= self._stop:
            self._draining = True
            self._carry_out(self._client.receive(Drain(), now))
            return
        self._inside = True
        self._carry_out(self._client.receive(StepBegins(self._step), now))
        self._accumulation.advance(self._heard)
        self._heard = None
        self._feed.choose(self._step)
        self._player.begin(self._played)

    def _skip_empty_steps(self) -> None:
        """At the end of an epoch a replica may have no example left while others have."""
        before = self._step
        while self._step < self._stop and not self._sampler.count(self._step):
            self._step += 1
        if before < self._step == self._stop:
            self._report()

    def _end(self, over: PlayedStep, now: float) -> None:
        assert over.step == self._played, (over, self._played)
        if not self._is_finite(self._step, now):
            return
        self._inside = False
        self._carry_out(self._client.receive(StepEnded(self._step), now))
        self._unreported += self._counted_of(self._feed.count)
        self._played += 1
        self._step += 1
        passed_s = now - self._said_at
        is_due = self._step % self._report_every == 0 or passed_s >= LATEST_REPORT_S
        if self._step == self._stop or is_due:
            self._said_at = now
            self._report()
            self._space_reports(passed_s)
        self._link.wake()

    def _space_reports(self, passed_s: float) -> None:
        """Reports are about `REPORT_EVERY_S` apart, at multiples of a power of two: so all parts of a replica
        report steps at which the others report too, and their sums can be put together.
        """
        if passed_s < REPORT_EVERY_S / 2:
            self._report_every *= 2
        elif passed_s > 2 * REPORT_EVERY_S and self._report_every > 1:
            self._report_every //= 2

    def _is_finite(self, step: int, now: float) -> bool:
        """Looks at what a step has done, before anything of it is pushed.

        What came from another machine may have an earlier cause there: that machine is given the time to
        raise first.

        Raises:
            NotFinite: it has done what is not finite, and no other machine is to blame.
        """
        computations = self._computations
        finite = self._vectors.device.updates_were_finite()  # asked whatever else is wrong: it starts anew
        if finite and math.isfinite(computations.metrics.loss) and not computations.not_finite:
            return True
        computations.watch.look()
        suspect = computations.watch.suspect or NonfiniteArray("the loss is")
        error = NotFinite(
            f"in step {step} of replica {self._task.replica}, {suspect.what} not finite; lower the "
            f"learning rate, clip the gradients, or look at the data of this step{suspect.hint}"
        )
        if not suspect.received:
            raise error
        self._raises = error, now + OTHERS_FIRST_S
        return False

    def _report(self) -> None:
        metrics, client = self._computations.metrics, self._client
        examples, self._unreported = self._unreported, 0
        staleness = client.staleness + client.pushes * self._delay
        report = Report(self._step, examples, metrics.loss, metrics.correct, staleness, client.pushes)
        self._link.send(COORDINATOR, report, None)
        metrics.clear()

    # Effects of the client

    def _carry_out(self, effects: list[DownpourEffect]) -> None:
        for effect in effects:
            match effect:
                case Send(to=to, message=message, payload=span):
                    self._link.send(to, message, None if span is None else self._numbers(span))
                case Stage(span=span, payload=payload):
                    assert isinstance(payload, Payload)
                    self._staged[span.start] = payload
                case Install(span=span):
                    own = slice(span.start, span.stop)
                    payload = self._staged.pop(span.start)
                    payload.copy_into(self._vectors.arriving(own))
                    payload.release()
                    self._vectors.changed(own)
                case SwapBuffers(span=span):
                    self._accumulation.swap_buffers(slice(span.start, span.stop))
                case ClearGradient(span=span):
                    self._accumulation.discard(slice(span.start, span.stop))
                case SavePushRecord(shard=shard, record=record):
                    self._acknowledged.note(shard, record)
                case Drained():
                    self._drained = True
                    self._said_at = time.monotonic()
                    self._link.send(COORDINATOR, Finished(self._step, self._revision), None)
                case Refuse(sender=sender, reason=reason):
                    self._link.refuse(sender, reason)

    def _numbers(self, span: Span) -> Vector:
        assert span.vector == "in_flight", span
        return self._vectors.device.given(self._accumulation.in_flight[span.start : span.stop])

    def close(self) -> None:
        """Ends the kernel threads."""
        self._player.close()
        self._acknowledged.close()


def _examples_counted(plan: Plan, machine: int, examples: int) -> int:
    """How many of so many examples the machine reports.

    Those that judge the first loss share them, as they share its sum, so that what some of them have reported
    is about right, too.
    """
    judges = plan.ownership.counted(plan.graph.losses[0])
    if machine not in judges:
        return 0
    turn = judges.index(machine)
    return examples * (turn + 1) // len(judges) - examples * turn // len(judges)
