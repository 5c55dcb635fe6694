"""A chart of a step shows bars at their times, round ticks and the critical path."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.view.crowds import MOST, parted
from partita.engine.view.gantt import KINDS, Gantt, GanttBar, Lane, draw_gantt, merged, sliced
from partita.engine.view.steps import draw_step, predicted_gantt
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Bar, Cluster, Plan, partition
from tests.draws import examples
from tests.plans import plans
from tests.view.reading import digits, shapes, texts, tooltips


def bars(*spans: tuple[int, float, float, str]) -> Gantt:
    found = tuple(GanttBar(lane, start, stop, f"{kind}{start:g}", kind) for lane, start, stop, kind in spans)
    lanes = tuple(lane for name in "ab" for lane in (Lane(name), Lane("", thin=True)))
    return Gantt("test", "told", lanes, found)


@settings(max_examples=examples(24))
@given(st.floats(1e-7, 1e5))
def test_ticks_are_round_and_neither_few_nor_many(stop_s: float) -> None:
    root = ElementTree.fromstring(draw_gantt(bars((0, 0.0, stop_s, "forward"))))
    written = [
        words.split() for words in texts(root) if words.endswith(("s", " ms", " µs")) and words[0].isdigit()
    ]
    ticks = sorted({float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] for number, unit in written})
    assert 3 <= len(ticks) <= 12 and ticks[0] == 0 and ticks[-1] <= stop_s * (1 + 1e-9)
    assert len(written) == len(ticks)
    digits = ticks[1] / 10 ** math.floor(math.log10(ticks[1]) + 1e-9)
    assert round(digits, 6) in (1, 2, 5)
    assert all(b - a == pytest.approx(ticks[1]) for a, b in pairwise(ticks))


def test_bars_lie_where_their_time_is() -> None:
    root = ElementTree.fromstring(draw_gantt(bars((0, 0.0, 0.5, "forward"), (2, 0.25, 1.0, "backward"))))
    found = shapes(root)
    first, second = (
        found["a: forward0: 500 ms, from 0 µs on"],
        found["b: backward0.25: 750 ms, from 250 ms on"],
    )
    assert (first.get("x"), first.get("width")) == ("0%", "50%") and first.get("fill") == KINDS["forward"][0]
    assert (second.get("x"), second.get("width")) == ("25%", "75%")
    assert second.get("fill") == KINDS["backward"][0]
    assert float(second.attrib["y"]) > float(first.attrib["y"]) + float(first.attrib["height"])
    words = set(texts(root))
    assert {KINDS["forward"][1], KINDS["backward"][1], "a", "b", "0 s", "1 s", "forward0"} <= words
    assert KINDS["update"][1] not in words  # the legend names what there is


@given(st.lists(st.tuples(st.floats(0.001, 2), st.sampled_from(["forward", "backward"])), max_size=30))
def test_narrow_bars_that_follow_one_another_are_one(lengths: list[tuple[float, str]]) -> None:
    found, now = [], 0.0
    for length, kind in lengths:
        found.append(GanttBar(0, now, now + length, "x", kind))
        now += length
    shown = merged(found, narrow_s=1.0, gap_s=1e-6)
    assert sum(b.stop_s - b.start_s for b in shown) == pytest.approx(now)
    for kind in ("forward", "backward"):  # no kind's time is given to another
        of_kind = [b.stop_s - b.start_s for b in found if b.kind == kind]
        assert sum(b.stop_s - b.start_s for b in shown if b.kind == kind) == pytest.approx(sum(of_kind))
    assert merged(found, narrow_s=0.0, gap_s=1e-6) == found


def test_a_bar_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is of no known kind or lane; kinds are forward, backward, update"):
        draw_gantt(bars((0, 0.0, 1.0, "sleep")))
    with pytest.raises(ValueError, match="is of no known kind or lane"):
        draw_gantt(bars((4, 0.0, 1.0, "forward")))


@settings(max_examples=examples(16))
@given(plans(shared=True))
def test_a_machines_time_in_the_timeline_is_that_of_the_playback(plan: Plan) -> None:
    timeline, simulated_step = predicted_gantt(plan), plan.simulated_step
    for m in range(len(plan.cluster)):
        mine = sorted((b for b in timeline.bars if b.lane == 2 * m), key=lambda bar: bar.start_s)
        assert all(a.stop_s <= b.start_s + 1e-12 for a, b in pairwise(mine))
        busy = sum(b.stop_s - b.start_s for b in mine if b.kind != "wait")
        assert busy == pytest.approx(simulated_step.busy_s[m])
    if simulated_step.bars:
        assert max(b.stop_s for b in timeline.bars if b.critical) == pytest.approx(simulated_step.step_s)
    on_path = sum(isinstance(step, Bar) for step in simulated_step.critical_path)
    assert sum(b.critical for b in timeline.bars) == on_path
    ElementTree.fromstring(draw_gantt(timeline))


def test_a_wait_names_its_reason() -> None:
    timeline = predicted_gantt(digits(2))
    waits = {bar.label for bar in timeline.bars if bar.kind == "wait"}
    assert "waits for activations of hidden from m1" in waits
    assert "waits for summary of loss from m0" in waits


def test_of_many_machines_the_busiest_and_the_slowest_have_lanes() -> None:
    spans = [(2 * m, 0.0, 1.0 + (m == 7), "forward") for m in range(40)]
    spans += [(2 * 9, 3.0, 3.1, "backward")]
    lanes = tuple(lane for m in range(40) for lane in (Lane(f"m{m}"), Lane("", thin=True)))
    bars = tuple(GanttBar(n, start, stop, kind, kind) for n, start, stop, kind in spans)
    chart, rest = parted(Gantt("step", "", lanes, bars))
    names = [lane.name for lane in chart.lanes if lane.name]
    assert len(names) == MOST and names[:2] == ["m7", "m9"] and names[-1] == "25 other machines"
    assert rest is not None
    assert {*names[:-1], *(lane.name for lane in rest.lanes if lane.name)} == {f"m{m}" for m in range(40)}
    assert sum(bar.stop_s - bar.start_s for bar in rest.bars) == pytest.approx(25.0)
    assert parted(Gantt("step", "", lanes[:32], bars[:16])).rest is None


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["forward", "wait"])), max_size=20)
)
def test_a_slice_of_time_has_the_kind_that_takes_most_of_it(spans: list[tuple[float, float, str]]) -> None:
    bars = [GanttBar(0, min(a, b), max(a, b), kind, kind) for a, b, kind in spans]
    found = sliced(bars, stop_s=1.0, slices=10)
    for n in range(10):
        low, high = n / 10, (n + 1) / 10
        spent = dict.fromkeys(("forward", "wait"), 0.0)
        for bar in bars:
            spent[bar.kind] += max(min(bar.stop_s, high) - max(bar.start_s, low), 0.0)
        here = [bar.kind for bar in found if bar.start_s < (low + high) / 2 < bar.stop_s]
        if max(spent.values()) > 1e-9:
            assert len(here) == 1 and spent[here[0]] >= max(spent.values()) - 1e-9


def test_a_step_of_64_machines_is_small() -> None:
    net = Network("wide")
    net.loss = SoftmaxCrossEntropy()(Dense(64, name="scores")(net.input("x", shape=3)), net.target("y"))
    plan = partition(net, Cluster.local(64), batch=1, strategy="balanced")
    picture = draw_step(plan)
    root = ElementTree.fromstring(picture)
    assert float(root.attrib["height"]) < 1_000 and len(picture) < 250_000


def test_the_timeline_is_written_to_a_file(tmp_path: Path) -> None:
    plan = digits(2)
    target = plan.draw_timeline(tmp_path / "step.svg")
    assert target.read_text(encoding="utf-8") == draw_step(plan) == draw_gantt(predicted_gantt(plan))
    assert any("waits for" in tip for tip in tooltips(ElementTree.parse(target).getroot()))


def test_a_long_name_of_a_machine_is_shortened_and_given_in_full() -> None:
    name = "machine" * 20
    plan = digits(2, names=name + "{}")
    root = ElementTree.fromstring(draw_gantt(predicted_gantt(plan)))
    assert f"{name}0" in tooltips(root) and float(root.attrib["width"]) < 1_700
