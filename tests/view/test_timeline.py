"""The timeline shows bars at their times, round ticks and the critical path; a page needs no other file."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.view import charts
from partita.engine.view.plan_page import plan_page
from partita.engine.view.steps import predicted_timeline
from partita.engine.view.time_axis import time_axis
from partita.engine.view.timeline import (
    KINDS,
    PLOT,
    Timeline,
    TimelineBar,
    draw_timeline,
    lanes_of,
    merged,
)
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, InputSplit, Machine, Plan, Whole, partition
from partita.partitioner.assign.cuts import Cut
from partita.partitioner.predict.playback import Bar
from tests.draws import examples
from tests.plans import plans
from tests.view.test_plan_picture import SVG, digits, texts, tooltips


def bars(*spans: tuple[int, float, float, str]) -> Timeline:
    found = tuple(
        TimelineBar(lane, start, stop, f"{kind}{start:g}", kind) for lane, start, stop, kind in spans
    )
    return Timeline("test", "told", lanes_of(("a", "b")), found)


@given(st.floats(1e-7, 1e5))
def test_ticks_are_round_and_neither_few_nor_many(stop_s: float) -> None:
    axis = time_axis(stop_s)
    assert 3 <= len(axis.ticks) <= 12 and axis.ticks[0] == 0 and axis.ticks[-1] <= stop_s * (1 + 1e-9)
    digits = axis.step_s / 10 ** math.floor(math.log10(axis.step_s) + 1e-9)
    assert round(digits, 6) in (1, 2, 5)
    written = [axis.text(tick) for tick in axis.ticks]
    assert len(set(written)) == len(written)
    for tick, words in zip(axis.ticks, written, strict=True):
        number, unit = words.split()
        assert float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(tick, abs=1e-12)


def test_bars_lie_where_their_time_is() -> None:
    root = ElementTree.fromstring(draw_timeline(bars((0, 0.0, 0.5, "up"), (2, 0.25, 1.0, "errors"))))
    rects = {g.findtext(f"{SVG}title", ""): g for g in root.iter(f"{SVG}rect")}
    first = rects["a: up0: 500 ms, from 0 µs on"].attrib
    second = rects["b: errors0.25: 750 ms, from 250 ms on"].attrib
    assert float(first["width"]) == pytest.approx(PLOT / 2) and first["fill"] == KINDS["up"][0]
    assert float(second["width"]) == pytest.approx(PLOT * 3 / 4) and second["fill"] == KINDS["errors"][0]
    assert float(second["x"]) - float(first["x"]) == pytest.approx(PLOT / 4)
    assert float(second["y"]) > float(first["y"])
    assert {"states", "errors", "a", "b", "0.0 s", "1.0 s", "up0"} <= set(texts(root))
    assert "learning" not in texts(root)  # the legend names what there is


@given(st.lists(st.tuples(st.floats(0.001, 2), st.sampled_from(["up", "errors"])), max_size=30))
def test_narrow_bars_that_follow_one_another_are_one(lengths: list[tuple[float, str]]) -> None:
    found, now = [], 0.0
    for length, kind in lengths:
        found.append(TimelineBar(0, now, now + length, "x", kind))
        now += length
    shown = merged(found, narrow_s=1.0, gap_s=1e-6)
    assert sum(b.stop_s - b.start_s for b in shown) == pytest.approx(now)
    for kind in ("up", "errors"):  # no kind's time is given to another
        of_kind = [b.stop_s - b.start_s for b in found if b.kind == kind]
        assert sum(b.stop_s - b.start_s for b in shown if b.kind == kind) == pytest.approx(sum(of_kind))
    assert merged(found, narrow_s=0.0, gap_s=1e-6) == found


def test_a_bar_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is of no known kind or lane; kinds are up, errors, learn"):
        draw_timeline(bars((0, 0.0, 1.0, "sleep")))
    with pytest.raises(ValueError, match="is of no known kind or lane"):
        draw_timeline(bars((4, 0.0, 1.0, "up")))


@settings(max_examples=examples(16))
@given(plans(shared=True))
def test_a_machines_time_in_the_timeline_is_that_of_the_playback(plan: Plan) -> None:
    timeline, playback = predicted_timeline(plan), plan.playback
    for m in range(len(plan.cluster)):
        mine = sorted((b for b in timeline.bars if b.lane == 2 * m), key=lambda bar: bar.start_s)
        assert all(a.stop_s <= b.start_s + 1e-12 for a, b in pairwise(mine))
        busy = sum(b.stop_s - b.start_s for b in mine if b.kind != "wait")
        assert busy == pytest.approx(playback.busy_s[m])
    if playback.bars:
        assert max(b.stop_s for b in timeline.bars if b.critical) == pytest.approx(playback.step_s)
    on_path = sum(isinstance(step, Bar) for step in playback.critical_path)
    assert sum(b.critical for b in timeline.bars) == on_path
    ElementTree.fromstring(draw_timeline(timeline))


def test_a_wait_says_for_what() -> None:
    timeline = predicted_timeline(digits(2))
    waits = {bar.label for bar in timeline.bars if bar.kind == "wait"}
    assert "waits for hidden's states from m1" in waits
    assert "waits for loss's sums over scores from m0" in waits


def test_many_machines_share_the_page() -> None:
    net = Network("wide")
    net.loss = SoftmaxCrossEntropy()(Dense(64, name="scores")(net.input("x", shape=3)), net.target("y"))
    plan = partition(net, Cluster.local(64), batch=1, strategy="balanced")
    root = ElementTree.fromstring(draw_timeline(predicted_timeline(plan)))
    assert {f"local{m}" for m in range(64)} <= set(texts(root))
    assert float(root.attrib["height"]) < 1_400


class _Reader(HTMLParser):
    """The tags of a page, and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]


def test_the_page_is_whole_and_needs_no_other_file(tmp_path: Path) -> None:
    net = Network("net")
    net.loss = SoftmaxCrossEntropy()(Dense(6, name="scores")(net.input("x", shape=3)), net.target("y"))
    cluster = Cluster((Machine("<a>", memory_bytes=10**6), Machine("b")))
    plan = partition(net, cluster, batch=2, strategy="balanced")
    page = plan.write_page(tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page == plan_page(plan, str(plan))
    reader = _Reader()
    reader.feed(page)
    assert reader.references == [] and "@import" not in page and reader.tags.count("script") == 1
    assert set(re.findall(r"https?://[^\s\"'<)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert reader.tags.count("svg") == 4 and reader.tags.count("h2") == 5
    assert "&lt;a&gt;" in page and "<a>" not in page
    assert "predicted step" in page and "sums over scores of softmax_cross_entropy" in page
    for picture in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(picture)


def test_messages_of_all_micro_batches_are_one_bar_of_a_chart() -> None:
    net = Network("two")
    hidden = Dense(12, activation="tanh", name="hidden")(net.input("x", shape=4))
    top = Dense(6, name="top")(hidden)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(top), net.target("digit"))
    cuts: dict[str, Cut] = {"top": InputSplit(2), "scores": Whole(1)}
    plan = partition(net, Cluster.local(2), batch=8, strategy="balanced", cuts=cuts, micro_batches=4)
    root = ElementTree.fromstring(charts.messages(plan))
    told = dict(tip.split(": ", 1) for tip in tooltips(root) if ": " in tip)
    # one machine has half of the states, and hears half of the errors
    expected = {
        "partial sums of top": 8,
        "errors of top": 8,
        "states of top": 4,
        "errors of top from scores": 4,
    }
    assert {what: int(words.split()[3]) for what, words in told.items()} == expected
    fills = {
        g.findtext(f"{SVG}title", "").partition(":")[0]: g.find(f"{SVG}rect") for g in root.iter(f"{SVG}g")
    }
    blue = {what for what, rect in fills.items() if rect is not None and rect.get("fill") == charts.STATES}
    assert blue == {"partial sums of top", "states of top"}
    assert "batch 8 as 4 micro-batches of 2" in predicted_timeline(plan).subtitle


def test_the_timeline_is_written_to_a_file(tmp_path: Path) -> None:
    plan = digits(2)
    target = plan.draw_timeline(tmp_path / "step.svg")
    assert target.read_text(encoding="utf-8") == draw_timeline(predicted_timeline(plan))
    assert any("waits for" in tip for tip in tooltips(ElementTree.parse(target).getroot()))
