"""The text for Prometheus, read by the parser of its own client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from partita.engine.watch.prometheus import metrics_text
from partita.engine.watch.records import Event, HostRow, Hosts, Progress, Wait, Waits
from partita.engine.watch.state import State
from tests.watch.invented import Invented, digits_plan, stream


def _samples(state: State) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(metrics_text(state)))
    assert all(family.documentation for family in families)
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    assert len(found) == sum(len(family.samples) for family in families)  # no sample comes twice
    return found


def test_the_parser_of_prometheus_reads_what_the_state_has() -> None:
    state = State()
    for record in stream(digits_plan(), Invented(seconds=60.0)):
        state.add(record)
    assert state.run is not None and state.progress is not None
    samples = _samples(state)

    def of(family: str, **labels: str) -> float:
        return samples[family, frozenset(labels.items())]

    assert of("partita_steps_total") == state.progress.step
    assert of("partita_run_phase", phase="complete") == 1
    assert of("partita_run_phase", phase="training") == 0
    assert of("partita_figure", name="loss") == state.progress.loss
    lane = state.samples[1][-1].lanes[0]
    assert of("partita_step_part_seconds", replica="1", machine="0", part="wait") == lane.wait_s
    assert of("partita_host_resident_bytes", host="shard 0") == state.memory["shard 0"].resident_bytes
    assert of("partita_host_sent_bytes_total", host="part 0.1") == state.traffic["part 0.1"].sent_bytes
    assert of("partita_events_total", kind="checkpoint") == state.counts["checkpoint"]


def test_names_with_quotes_and_lines_are_escaped_and_unknown_numbers_left_out() -> None:
    state = State()
    odd = 'a "b"\\c\nd'
    state.add(Hosts(at_s=1.0, hosts=(HostRow(name=odd, kind="part"),)))
    state.add(Waits(at_s=5.0, waits=(Wait(host=odd, on="shard 0", what=odd, since_s=2.0),)))
    state.add(Event(at_s=5.0, kind="warning", text=odd))
    state.add(Progress(at_s=5.0, step=3, metrics={odd: 0.5, "none": None}))
    samples = _samples(state)
    waits = frozenset({"host": odd, "on": "shard 0", "what": odd}.items())
    assert samples["partita_host_waits_seconds", waits] == 3.0
    assert samples["partita_figure", frozenset({("name", odd)})] == 0.5
    assert [name for name, labels in samples if name == "partita_figure"] == ["partita_figure"]
    assert "partita_steps_planned" not in {name for name, _ in samples}


def test_an_empty_state_has_a_phase() -> None:
    assert _samples(State())["partita_run_phase", frozenset({("phase", "starting")})] == 1
