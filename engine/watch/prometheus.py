"""The present state of a run in the text format of Prometheus, for a server that is asked for `/metrics`.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4). Names follow
https://prometheus.io/docs/practices/naming/: seconds and bytes, and `_total` for what only grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from partita.engine.watch.state import State

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of the text."""

_PHASES: Final = ("starting", "training", "complete", "interrupted", "failed")
_HOST_STATES: Final = ("starting", "preparing", "ready", "silent", "lost", "gone")


@dataclass(slots=True)
class _Family:
    """A metric: its samples by labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: object) -> None:
        """Adds a sample, unless the number is not known."""
        if value is not None:
            self.samples.append(({name: str(label) for name, label in labels.items()}, float(value)))

    def lines(self) -> Iterator[str]:
        """Yields the lines of the text."""
        if self.samples:
            yield f"# HELP {self.name} {_escaped(self.help)}"
            yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            named = ",".join(f'{name}="{_escaped(label, quoted=True)}"' for name, label in labels.items())
            yield f"{self.name}{{{named}}} {_number(value)}" if named else f"{self.name} {_number(value)}"


def metrics_text(state: State) -> str:
    """Returns the metrics of a run; those that are not known yet are left out."""
    families = (*_of_run(state), *_of_replicas(state), *_of_machines(state), *_of_hosts(state))
    lines = [line for family in families for line in family.lines()]
    return "".join(f"{line}\n" for line in lines)


def _of_run(state: State) -> Iterable[_Family]:
    info = _Family("partita_run_info", "gauge", "The run; always 1.")
    phase = _Family("partita_run_phase", "gauge", "1 for the phase of the run, 0 for the others.")
    for name in _PHASES:
        phase.add(float(name == state.phase), phase=name)
    seconds = _Family("partita_run_seconds", "gauge", "Seconds since the run began.")
    seconds.add(state.at_s)
    total = _Family("partita_steps_planned", "gauge", "Steps of all replicas, or iterations, until the end.")
    steps = _Family("partita_steps_total", "counter", "Steps of all replicas, or iterations, that are done.")
    examples = _Family("partita_examples_total", "counter", "Examples of this run.")
    rate = _Family("partita_examples_per_second", "gauge", "Examples in a second.")
    figures = _Family(
        "partita_figure", "gauge", "Loss, metrics and staleness, as means since the last record."
    )
    held = _Family("partita_validation_figure", "gauge", "Loss and metrics over held-out examples.")
    events = _Family("partita_events_total", "counter", "Events by kind.")
    if state.run is not None:
        run = state.run
        info.add(1.0, run=run.run, network=run.network, driver=run.driver)
        total.add(run.steps)
    if state.progress is not None:
        now = state.progress
        steps.add(now.step)
        examples.add(now.examples)
        rate.add(now.examples_per_s)
        for name, value in {"loss": now.loss, "staleness": now.staleness, **now.metrics}.items():
            figures.add(value, name=name)
    if state.validation is not None:
        for name, value in state.validation.metrics.items():
            held.add(value, name=name)
    for kind, count in sorted(state.counts.items()):
        events.add(count, kind=kind)
    return info, phase, seconds, total, steps, examples, rate, figures, held, events


def _of_replicas(state: State) -> Iterable[_Family]:
    steps = _Family("partita_replica_steps_total", "counter", "Steps of a replica.")
    pushes = _Family("partita_replica_pushes_total", "counter", "Pushes that shards have acknowledged.")
    staleness = _Family("partita_replica_staleness", "gauge", "Mean staleness of its pushes of late.")
    for index, one in sorted(state.replicas.items()):
        steps.add(one.step, replica=index)
        pushes.add(one.pushes, replica=index)
        staleness.add(one.staleness, replica=index)
    return steps, pushes, staleness


def _of_machines(state: State) -> Iterable[_Family]:
    spent = _Family("partita_step_part_seconds", "gauge", "Where the last sampled step of a machine went.")
    length = _Family("partita_step_seconds", "gauge", "The last sampled step of a replica.")
    planned = _Family("partita_step_predicted_seconds", "gauge", "Predicted seconds of a step.")
    if state.run is not None:
        planned.add(state.run.predicted_step_s)
    for replica, samples in sorted(state.samples.items()):
        length.add(samples[-1].step_s, replica=replica)
        for lane in samples[-1].lanes:
            where = {"replica": replica, "machine": lane.machine}
            spent.add(lane.compute_s, **where, part="compute")
            spent.add(lane.transfer_s, **where, part="transfer")
            spent.add(lane.wait_s, **where, part="wait")
            spent.add(lane.idle_s, **where, part="idle")
    return planned, length, spent


def _of_hosts(state: State) -> Iterable[_Family]:
    up = _Family("partita_host_state", "gauge", "1 for the state of a host, 0 for the others.")
    waits = _Family("partita_host_waits_seconds", "gauge", "Seconds for which a host waits for another one.")
    resident = _Family("partita_host_resident_bytes", "gauge", "Memory of a host's process in RAM.")
    shared = _Family("partita_host_pss_bytes", "gauge", "Likewise, shared pages divided by their users.")
    cpu = _Family("partita_host_cpu_seconds_total", "counter", "Processor seconds of a host's process.")
    sent = _Family("partita_host_sent_bytes_total", "counter", "Bytes of payloads that a host has sent.")
    received = _Family("partita_host_received_bytes_total", "counter", "Bytes of payloads received.")
    for name, row in sorted(state.hosts.items()):
        for one in _HOST_STATES:
            up.add(float(one == row.state), host=name, state=one)
    for wait in state.waits:
        waits.add(max(state.at_s - wait.since_s, 0.0), host=wait.host, on=wait.on, what=wait.what)
    for name, memory in sorted(state.memory.items()):
        resident.add(memory.resident_bytes, host=name)
        shared.add(memory.pss_bytes, host=name)
        cpu.add(memory.cpu_s, host=name)
    for name, counters in sorted(state.traffic.items()):
        sent.add(counters.sent_bytes, host=name)
        received.add(counters.received_bytes, host=name)
    return up, waits, resident, shared, cpu, sent, received


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quoted else escaped


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)
