"""The present state of a run, folded from its records in the order in which they were written.

The page, `/metrics`, the terminal and the frozen report show this state, and nothing else. It does no I/O and
reads no clock: a reader that has taken the same records has an equal state. Its size is bounded by the number
of hosts and constants, not by the length of the run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from partita.engine.watch.curve import Curve, Point
from partita.engine.watch.records import (
    Event,
    Exchanges,
    HostMemory,
    HostRow,
    Hosts,
    HostTraffic,
    Memory,
    PlanPicture,
    Progress,
    Record,
    ReplicaProgress,
    RunBegan,
    RunEnded,
    SampledStep,
    Validation,
    Wait,
    Waits,
)

MOST_EVENTS: Final = 400
"""Events that are kept, the newest."""
MOST_SAMPLES: Final = 24
"""Sampled steps that are kept for each replica, the newest."""
WINDOW_S: Final = 60.0
"""Seconds of "the last minute"."""


@dataclass(eq=True)
class State:
    """The state of a run after some of its records.

    Attributes:
        run: the first record; None before it.
        picture: the plan as SVG; "" for none.
        at_s: the newest time of any record, in seconds of the run.
        hosts: by name.
        samples: of each replica, the newest sampled steps, oldest first.
        waits: present waits, longest first.
        progress: the newest progress; None before the first.
        replicas: newest progress of each replica.
        curves: by name: "loss", "examples_per_s", "staleness", each metric, "loss of replica 0", and
            "validation loss" (and other figures) for held-out examples.
        validation: the newest validation; None before the first.
        traffic: newest counters by host.
        memory: newest memory by host.
        events: the newest ones, oldest first.
        counts: number of events of each kind since the beginning.
        ended: the end; None while the run goes on.
    """

    run: RunBegan | None = None
    picture: str = ""
    at_s: float = 0.0
    hosts: dict[str, HostRow] = field(default_factory=dict)
    samples: dict[int, deque[SampledStep]] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    progress: Progress | None = None
    replicas: dict[int, ReplicaProgress] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    validation: Validation | None = None
    traffic: dict[str, HostTraffic] = field(default_factory=dict)
    memory: dict[str, HostMemory] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    counts: dict[str, int] = field(default_factory=dict)
    ended: RunEnded | None = None
    _staleness: dict[str, deque[tuple[float, int, tuple[int, ...]]]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Takes the next record of the stream."""
        self.at_s = max(self.at_s, record.at_s)
        match record:
            case RunBegan():
                self.run = record
            case PlanPicture(svg=svg):
                self.picture = svg
            case Hosts(hosts=rows):
                self.hosts.update((row.name, row) for row in rows)
            case SampledStep():
                self._add_sample(record)
            case Waits(waits=waits):
                self.waits = tuple(sorted(waits, key=lambda wait: (wait.since_s, wait.host, wait.on)))
            case Progress():
                self._add_progress(record)
            case Validation():
                self.validation = record
                for name, value in record.metrics.items():
                    self._plot(f"validation {name}", record.at_s, record.step, value)
            case Exchanges(hosts=counters):
                for one in counters:
                    self._add_traffic(record.at_s, one)
            case Memory(hosts=memories):
                self.memory.update((one.host, one) for one in memories)
            case Event():
                self.events.append(record)
                self.counts[record.kind] = self.counts.get(record.kind, 0) + 1
            case RunEnded():
                self.ended, self.waits = record, ()

    def _add_sample(self, sample: SampledStep) -> None:
        self.samples.setdefault(sample.replica, deque(maxlen=MOST_SAMPLES)).append(sample)

    def _add_progress(self, record: Progress) -> None:
        self.progress = record
        shown = {
            "loss": record.loss,
            "examples_per_s": record.examples_per_s,
            "staleness": record.staleness,
            **record.metrics,
        }
        for name, value in shown.items():
            self._plot(name, record.at_s, record.step, value)
        for replica in record.replicas:
            self.replicas[replica.replica] = replica
            self._plot(f"loss of replica {replica.replica}", record.at_s, record.step, replica.loss)

    def _plot(self, name: str, at_s: float, step: int, value: float | None) -> None:
        if value is not None:
            self.curves.setdefault(name, Curve()).add(Point(at_s, step, value))

    def _add_traffic(self, at_s: float, counters: HostTraffic) -> None:
        self.traffic[counters.host] = counters
        if counters.staleness:
            known = self._staleness.setdefault(counters.host, deque())
            known.append((at_s, counters.incarnation, counters.staleness))
            while len(known) > 2 and known[1][0] <= at_s - WINDOW_S:
                known.popleft()

    # Questions.

    @property
    def is_over(self) -> bool:
        """Returns whether the run has ended."""
        return self.ended is not None

    @property
    def phase(self) -> str:
        """One word for what the run does: "starting", "training", "complete", "interrupted" or "failed"."""
        if self.ended is not None:
            return self.ended.outcome
        return "starting" if self.progress is None else "training"

    def newest_sample(self, replica: int | None = None) -> SampledStep | None:
        """Returns the newest sampled step of a replica, or of any; None where there is none."""
        chosen = self.samples.values() if replica is None else [self.samples.get(replica, deque())]
        return max((one[-1] for one in chosen if one), key=lambda sample: sample.at_s, default=None)

    @property
    def step_s(self) -> float | None:
        """The median of the kept samples' seconds of a step, over all replicas; None without samples."""
        found = sorted(sample.step_s for samples in self.samples.values() for sample in samples)
        return found[len(found) // 2] if found else None

    def staleness_counts(self) -> list[int]:
        """Pushes of the last minute by staleness, over all replicas: entry n had n updates in between; the
        last entry also counts those with more. Empty without pushes.
        """
        found: list[int] = []
        for known in self._staleness.values():
            (_, first, before), (_, last, after) = known[0], known[-1]
            base = before if first == last and len(known) > 1 else (0,) * len(after)
            found += [0] * (len(after) - len(found))
            for n, (one, other) in enumerate(zip(after, base, strict=False)):
                found[n] += max(one - other, 0)
        return found

    def sent_per_step(self) -> dict[tuple[int, int], float]:
        """Bytes of activations and gradients that a machine of a replica sends to another one in a step, as
        counted: the mean over all replicas and all steps of the present processes.
        """
        totals: dict[tuple[int, int], list[float]] = {}
        for name, counters in self.traffic.items():
            row = self.hosts.get(name)
            if row is None or row.machine is None or not counters.steps:
                continue
            for peer, n_bytes in counters.step_bytes:
                found = totals.setdefault((row.machine, peer), [0.0, 0.0])
                found[0] += n_bytes
                found[1] += counters.steps
        return {link: n_bytes / steps for link, (n_bytes, steps) in sorted(totals.items())}

    def unique_memory(self) -> list[HostMemory]:
        """Memory of each process once, where several hosts are threads of one; by host."""
        seen: dict[tuple[str, int], HostMemory] = {}
        for name in sorted(self.memory):
            one, row = self.memory[name], self.hosts.get(name)
            place = row.place if row is not None else name
            seen.setdefault((place if one.pid else name, one.pid), one)
        return list(seen.values())
