"""An invented stream of a run, for tests of what reads streams: plausible numbers, every kind of record.

The plan is real, and so are the predicted lanes; what is measured is drawn from a seed. The run loses a part
and gets it back, a shard is slow, a host hangs for a while, checkpoints are written.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from partita.engine import Adagrad, Downpour
from partita.engine.watch.planned import Extent, began, picture
from partita.engine.watch.records import (
    Event,
    Exchanges,
    HostMemory,
    HostRow,
    Hosts,
    HostTraffic,
    Interval,
    Lane,
    Memory,
    Progress,
    Record,
    ReplicaProgress,
    RunBegan,
    RunEnded,
    SampledStep,
    Validation,
    Wait,
    Waited,
    Waits,
)
from partita.layers import Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition


def digits_plan(machines: int = 2) -> Plan:
    """The plan of a small network over a few machines."""
    net = Network("digits")
    image = net.input("image", shape=(8, 8, 1))
    hidden = LocallyConnected2D(16, kernel_size=3, activation="relu", name="hidden")(image)
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("digit"))
    return partition(net, Cluster.local(machines=machines), batch=32, strategy="balanced")


def wide_plan(machines: int = 64, width: int = 1024) -> Plan:
    """The plan of a network that is cut over many machines."""
    net = Network("wide")
    x = net.input("x", shape=(256,))
    for n in range(2):
        x = Dense(width, activation="relu", name=f"hidden{n}")(x)
    net.loss = SoftmaxCrossEntropy()(Dense(max(64, machines), name="scores")(x), net.target("label"))
    return partition(net, Cluster.local(machines=machines), batch=64, strategy="balanced")


@dataclass(frozen=True, kw_only=True)
class Invented:
    """What is invented.

    Args:
        replicas, shards: their numbers.
        seconds: of the run.
        seed: of all that is drawn.
        fails: whether the run ends with an error.
        ends: whether the stream has the run's end.
    """

    replicas: int = 2
    shards: int = 2
    seconds: float = 190.0
    seed: int = 0
    fails: bool = False
    ends: bool = True


def stream(plan: Plan, settings: Invented = Invented()) -> Iterator[Record]:
    """Yields the records of an invented run of a plan, in order of time."""
    yield from _Story(plan, settings).records()


class _Story:
    """The run so far."""

    def __init__(self, plan: Plan, settings: Invented) -> None:
        self._settings, self._draw = settings, random.Random(settings.seed)
        driver = Downpour(replicas=settings.replicas, shards=settings.shards, optimizer=Adagrad(0.05))
        self._steps = int(settings.seconds * 90) * settings.replicas
        extent = Extent(
            run="1f" * 16,
            unit="step",
            examples=1438,
            steps=self._steps,
            steps_before=0,
            steps_per_epoch=45,
            started_unix_s=1_795_000_000.0,
        )
        self._began = began(plan, driver, extent)
        self._picture = picture(plan)
        self._machines = len(plan.cluster)
        self._incarnations: dict[str, int] = {}
        self._done = [0] * settings.replicas
        self._waits: list[Wait] = []

    @property
    def _parts(self) -> list[tuple[str, int, int]]:
        return [
            (f"part {r}.{m}", r, m) for r in range(self._settings.replicas) for m in range(self._machines)
        ]

    def records(self) -> Iterator[Record]:
        """Yields all records."""
        yield self._began
        if self._picture is not None:
            yield self._picture
        yield from self._starting()
        second = 0.0
        while second < self._settings.seconds:
            second += 1.0
            yield from self._second(second)
        if self._settings.ends:
            yield from self._end(second)

    def _row(self, name: str, state: str, since_s: float) -> HostRow:
        words = name.split()
        kind = words[0]
        replica, machine = map(int, words[1].split(".")) if kind == "part" else (None, None)
        incarnation = self._incarnations.get(name, 0)
        order = sum(map(ord, name)) * 37 % 20_000
        return HostRow(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            replica=replica,
            machine=machine,
            incarnation=incarnation,
            state=state,  # type: ignore[arg-type]
            since_s=since_s,
            place="a" if (machine or 0) % 2 == 0 else "b",
            address="" if state == "starting" else f"tcp://127.0.0.1:{40_000 + order}",
            pid=0 if kind == "coordinator" else 9_000 + order + incarnation,
            cores=1,
            compiled=0 if state == "starting" else 14,
        )

    def _starting(self) -> Iterator[Record]:
        names = [name for name, _, _ in self._parts] + [f"shard {k}" for k in range(self._settings.shards)]
        yield Hosts(at_s=0.1, hosts=tuple(self._row(name, "starting", 0.1) for name in names))
        yield Hosts(at_s=1.2, hosts=tuple(self._row(name, "preparing", 1.2) for name in names))
        yield Hosts(at_s=4.1, hosts=tuple(self._row(name, "ready", 4.1) for name in names))
        yield Event(at_s=4.1, kind="started", text=f"{len(names)} hosts ready after 4.1 s")

    def _second(self, at_s: float) -> Iterator[Record]:
        late = at_s - 4.0
        if late <= 0:
            return
        yield self._progress(at_s)
        if late % 3 == 0:
            yield from (self._sample(at_s, replica) for replica in range(self._settings.replicas))
        if late % 2 == 0:
            yield self._exchanges(at_s)
        if late % 10 == 0:
            yield self._memory(at_s)
        if late % 15 == 0:
            loss, right = self._loss(at_s)
            yield Validation(
                at_s=at_s,
                step=sum(self._done),
                epoch=sum(self._done) / 45,
                examples=359,
                metrics={"loss": loss * 1.2 + 0.02, "accuracy": right - 0.01},
            )
        if late % 30 == 0:
            number = int(late // 30)
            text = f"checkpoint {number} written ({sum(self._done):,} steps, 0 lost)"
            yield Event(at_s=at_s, kind="checkpoint", text=text, step=sum(self._done))
        yield from self._troubles(int(late), at_s)

    def _troubles(self, late: int, at_s: float) -> Iterator[Record]:
        """A part hangs from second 41 on, is lost at 51, and back at 54; a shard is slow at 20."""
        victim = self._parts[-1][0]
        others = [name for name, _, _ in self._parts[:-1] if name.split(".")[0] == victim.split(".")[0]]
        if late == 20 and self._settings.shards:
            what = "parameters"
            yield Waits(
                at_s=at_s, waits=(Wait(host=self._parts[0][0], on="shard 0", what=what, since_s=at_s - 1.2),)
            )
        elif late == 22:
            yield Waits(at_s=at_s, waits=())
        elif 43 <= late < 51:
            waiting = [
                Wait(host=name, on=victim, what="activations of hidden", since_s=at_s - late + 41)
                for name in others
            ]
            silent = Wait(host="coordinator", on=victim, what="a sign of life", since_s=at_s - late + 41.2)
            yield Hosts(at_s=at_s, hosts=(self._row(victim, "silent", at_s - late + 43),))
            yield Waits(at_s=at_s, waits=(*waiting, silent))
        elif late == 51:
            yield Hosts(at_s=at_s, hosts=(self._row(victim, "lost", at_s),))
            yield Event(at_s=at_s, kind="lost", host=victim, text=f"{victim} lost: no news for 10 s")
            self._incarnations[victim] = 1
            yield Hosts(at_s=at_s, hosts=(self._row(victim, "starting", at_s),))
            yield Event(
                at_s=at_s, kind="restarted", host=victim, text=f"{victim} restarted: no news for 10 s"
            )
        elif late == 54:
            yield Hosts(at_s=at_s, hosts=(self._row(victim, "ready", at_s),))
            yield Event(at_s=at_s, kind="joined", host=victim, text=f"{victim} is ready again")
            yield Waits(at_s=at_s, waits=())

    def _loss(self, at_s: float) -> tuple[float, float]:
        falls = math.exp(-at_s / 40)
        return 0.07 + 2.2 * falls, 0.985 - 0.8 * falls

    def _progress(self, at_s: float) -> Progress:
        loss, right = self._loss(at_s)
        rows = []
        for replica in range(self._settings.replicas):
            if not (41 <= at_s - 4 < 54 and replica == self._settings.replicas - 1):
                self._done[replica] += 88 + self._draw.randrange(5) - 3 * replica
            rows.append(
                ReplicaProgress(
                    replica=replica,
                    step=self._done[replica],
                    examples=32 * self._done[replica],
                    examples_per_s=2_816.0 + self._draw.randrange(200),
                    loss=loss * self._draw.uniform(0.9, 1.1),
                    pushes=self._done[replica] * self._machines * max(self._settings.shards, 1),
                    staleness=self._draw.uniform(0.5, 1.5) if self._settings.shards else None,
                )
            )
        done = min(sum(self._done), self._steps)
        return Progress(
            at_s=at_s,
            step=done,
            epoch=done / 45,
            examples=32 * done,
            examples_per_s=2_850.0 * self._settings.replicas,
            loss=loss,
            staleness=0.93 if self._settings.shards else None,
            metrics={"accuracy": right},
            replicas=tuple(rows),
            remaining_s=max(self._settings.seconds - at_s, 0.0),
        )

    def _sample(self, at_s: float, replica: int) -> SampledStep:
        lanes = tuple(self._lane(lane) for lane in self._began.predicted)
        length = max(lane.compute_s + lane.transfer_s + lane.wait_s + lane.idle_s for lane in lanes)
        return SampledStep(
            at_s=at_s, replica=replica, step=self._done[replica], step_s=length, lanes=lanes, cost_s=3e-4
        )

    def _lane(self, lane: Lane) -> Lane:
        """The predicted lane, stretched unevenly: each interval by a factor of its own."""
        at, before, intervals = 0.0, 0.0, []
        sums = {"compute": 0.0, "transfer": 0.0, "wait": 0.0}
        groups = {"send": "transfer", "receive": "transfer", "wait": "wait"}
        for one in lane.intervals:
            at += (one.start_s - before) * self._draw.uniform(0.8, 1.6)
            length = (one.stop_s - one.start_s) * self._draw.uniform(0.9, 1.7)
            intervals.append(Interval(at, at + length, one.kind, one.what, one.layer, one.peer, one.joined))
            sums[groups.get(one.kind, "compute")] += length
            at, before = at + length, one.stop_s
        total = lane.compute_s + lane.transfer_s + lane.wait_s + lane.idle_s
        known = sum(sums.values())
        waited = lane.waited and (Waited(lane.waited[0].peer, sums["wait"], lane.waited[0].what),)
        return msgspec.structs.replace(
            lane,
            compute_s=sums["compute"],
            transfer_s=sums["transfer"],
            wait_s=sums["wait"],
            idle_s=max(1.3 * total - known, 0.0),
            between_s=0.2 * total,
            uncertainty_s=2e-5,
            intervals=tuple(intervals),
            waited=waited,
        )

    def _exchanges(self, at_s: float) -> Exchanges:
        rows = []
        shards = self._settings.shards
        for name, replica, machine in self._parts:
            steps = self._done[replica]
            planned = self._began.machines[machine]
            links = [(x.destination, x.n_bytes * steps) for x in self._began.links if x.source == machine]
            between = sum(n_bytes for _, n_bytes in links)
            rows.append(
                HostTraffic(
                    host=name,
                    incarnation=self._incarnations.get(name, 0),
                    steps=steps,
                    step_bytes=tuple(links),
                    push_bytes=planned.push_bytes * steps,
                    pushes=steps * shards,
                    pull_bytes=planned.pull_bytes * steps,
                    pulls=steps * shards,
                    sent_bytes=between + planned.push_bytes * steps,
                    received_bytes=between + planned.pull_bytes * steps,
                    shared_bytes=between,
                    staleness=tuple(int(steps * shards * share) for share in (0.4, 0.35, 0.15, 0.07, 0.03))
                    if shards
                    else (),
                )
            )
        for shard in range(shards):
            pushes = sum(self._done) * self._machines
            n_bytes = sum(one.push_bytes for one in self._began.machines) * sum(self._done) // shards
            rows.append(
                HostTraffic(
                    host=f"shard {shard}",
                    push_bytes=n_bytes,
                    pushes=pushes,
                    pull_bytes=n_bytes,
                    pulls=pushes,
                    sent_bytes=n_bytes,
                    received_bytes=n_bytes,
                )
            )
        return Exchanges(at_s=at_s, hosts=tuple(rows))

    def _memory(self, at_s: float) -> Memory:
        names = [name for name, _, _ in self._parts] + [f"shard {k}" for k in range(self._settings.shards)]
        rows = tuple(
            HostMemory(
                host=name,
                incarnation=self._incarnations.get(name, 0),
                pid=self._row(name, "ready", 0.0).pid,
                resident_bytes=180_000_000 + self._draw.randrange(4_000_000),
                pss_bytes=61_000_000 + self._draw.randrange(4_000_000),
                cpu_s=round(0.9 * at_s, 2),
            )
            for name in names
        )
        return Memory(at_s=at_s, hosts=rows)

    def _end(self, at_s: float) -> Iterator[Record]:
        done = sum(self._done)
        if self._settings.fails:
            text = "part 0.0: a number has become NaN in step 412 of replica 0; lower the learning rate"
            yield Event(at_s=at_s, kind="ended", text=text)
            yield RunEnded(at_s=at_s, outcome="failed", text=text, steps=done, seconds=at_s)
            return
        text = f"complete: {done:,} steps in {at_s:.0f} s"
        yield Event(at_s=at_s, kind="ended", text=text)
        yield RunEnded(
            at_s=at_s,
            outcome="complete",
            text=text,
            steps=done,
            examples=32 * done,
            seconds=at_s,
            lost_pushes=0,
            checkpoint=6,
        )


def first_record(plan: Plan) -> RunBegan:
    """The first record of an invented run of a plan."""
    return _Story(plan, Invented())._began
