"""The state of a run as text for Prometheus.

Source: "Exposition formats", text format 0.0.4, of the Prometheus documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from partita.engine.page.facts import stalls
from partita.engine.watch.state import State

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Sample(NamedTuple):
    """A number of a family with its labels."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()


def exposition(state: State, now_s: float) -> str:
    """Returns all families of a run; those of which nothing is known are left out."""
    written = []
    for name, kind, words, samples in _families(state, now_s):
        if samples:
            written += [f"# HELP partita_{name} {words}", f"# TYPE partita_{name} {kind}"]
            written += [f"partita_{name}{_labels(sample.labels)} {sample.value:.10g}" for sample in samples]
    return "\n".join(written) + "\n"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    written = (f'{name}="{_escaped(value)}"' for name, value in labels)
    return "{" + ",".join(written) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _families(state: State, now_s: float) -> Iterator[tuple[str, str, str, list[_Sample]]]:
    run, progress = state.run, state.progress
    if run is None:
        return
    labels = (("run", run.run), ("network", run.network), ("driver", run.driver))
    yield "run_info", "gauge", "The run; always 1.", [_Sample(1, (*labels, ("phase", state.phase)))]
    yield "run_seconds", "counter", "Seconds since the run began.", [_Sample(now_s)]
    if progress is not None:
        yield "steps_total", "counter", "Steps of all replicas, or iterations.", [_Sample(progress.step)]
        yield "examples_total", "counter", "Examples of this run.", [_Sample(progress.examples)]
        for name, words, value in (
            ("loss", "Mean loss of the last second.", progress.loss),
            ("examples_per_second", "Examples a second.", progress.examples_per_s),
            ("staleness_mean", "Mean staleness of all pushes.", progress.staleness),
            ("remaining_seconds", "Estimated seconds until the end.", progress.remaining_s),
        ):
            yield name, "gauge", words, [] if value is None else [_Sample(value)]
        known = {name: value for name, value in progress.metrics.items() if value is not None}
        metrics = [_Sample(value, (("name", name),)) for name, value in known.items()]
        yield "metric", "gauge", "Other figures that the run reports.", metrics
    held = state.validation.metrics if state.validation else {}
    shown = [_Sample(value, (("name", name),)) for name, value in held.items() if value is not None]
    yield "validation", "gauge", "Figures over held-out examples.", shown
    if state.step_s is not None:
        yield "step_seconds", "gauge", "Median seconds of the sampled steps.", [_Sample(state.step_s)]
    if run.predicted_step_s is not None:
        yield (
            "predicted_step_seconds",
            "gauge",
            "Predicted seconds of a step.",
            [_Sample(run.predicted_step_s)],
        )
    yield from _of_hosts(state, now_s)


def _of_hosts(state: State, now_s: float) -> Iterator[tuple[str, str, str, list[_Sample]]]:
    replicas = [_Sample(one.step, (("replica", str(one.replica)),)) for one in state.replicas.values()]
    yield "replica_steps_total", "counter", "Steps of a replica.", replicas
    hosts = [
        _Sample(1, (("host", row.name), ("state", row.state), ("place", row.place)))
        for row in state.hosts.values()
    ]
    yield "host_state", "gauge", "The state of a host; always 1.", hosts
    stalled = [_Sample(stall.seconds, (("host", stall.host),)) for stall in stalls(state, now_s)]
    yield "stalled_seconds", "gauge", "Seconds for which others have waited for a host.", stalled
    traffic = [(name, one) for name, one in state.traffic.items()]
    for name, words, samples in (
        (
            "sent_bytes_total",
            "Bytes of payloads that a host has sent.",
            [(n, t.sent_bytes) for n, t in traffic],
        ),
        ("received_bytes_total", "Bytes received.", [(n, t.received_bytes) for n, t in traffic]),
        ("pushes_total", "Gradients pushed.", [(n, t.pushes) for n, t in traffic]),
        ("refused_total", "Messages out of place.", [(n, t.refused) for n, t in traffic]),
    ):
        yield name, "counter", words, [_Sample(value, (("host", host),)) for host, value in samples]
    memory = [_Sample(one.resident_bytes, (("host", name),)) for name, one in state.memory.items()]
    yield "resident_bytes", "gauge", "Memory of a host's process in RAM.", memory
    events = [_Sample(count, (("kind", kind),)) for kind, count in state.counts.items()]
    yield "events_total", "counter", "Events by kind.", events
