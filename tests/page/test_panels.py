"""The page of an invented run: every panel is there, hostile names are words, and 64 machines stay small."""

from __future__ import annotations

from functools import lru_cache
from itertools import count, pairwise

import msgspec
import pytest

from partita.engine.page import panels as panels_module
from partita.engine.page.facts import stalls
from partita.engine.page.frozen import freeze, frozen_page
from partita.engine.page.lanes import shown_sample
from partita.engine.page.panels import PANELS, Panels
from partita.engine.watch.records import (
    Event,
    HostRow,
    Hosts,
    Progress,
    Record,
    RunBegan,
    RunEnded,
    Wait,
    Waits,
)
from partita.engine.watch.state import State
from tests.properties.pages import read
from tests.watch.invented import Invented, digits_plan, stream, wide_plan

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}" + "long" * 40


@lru_cache
def records(machines: int = 2, seconds: float = 50.0) -> tuple[Record, ...]:
    plan = digits_plan() if machines == 2 else wide_plan(machines, width=machines)
    return tuple(stream(plan, Invented(seconds=seconds if machines == 2 else 12.0, ends=False)))


def state_at(second: float, machines: int = 2) -> State:
    state = State()
    for record in records(machines):
        if record.at_s <= second:
            state.add(record)
    return state


def text(html: str) -> str:
    return " ".join(" ".join(read(html).words).split())


@pytest.mark.parametrize("second", [-1.0, 0.0, 0.5, 4.1, 20.0, 50.0])
def test_any_beginning_of_a_run_is_a_whole_page(second: float) -> None:
    state = state_at(second)
    shown = Panels(state).render(max(second, 0.0))
    assert tuple(shown) == PANELS
    for html in shown.values():
        read(html)
    page = read(frozen_page(state))
    assert page.tags.count("script") == 1 and page.tags.count("section") == len(PANELS)


def test_each_panel_tells_what_it_is_for() -> None:
    shown = {name: text(html) for name, html in Panels(state_at(46.0)).render(46.0).items()}
    assert "digits training" in shown["head"] and "examples/s" in shown["head"]
    assert "of replica" in shown["lanes"] and "local1 compute" in shown["lanes"]
    assert "loss" in shown["curves"] and "accuracy" in shown["curves"] and "held-out" in shown["curves"]
    assert "local0 → local1 72.2 KiB 72.2 KiB" in shown["traffic"] and "staleness" in shown["traffic"]
    assert "planned 288.5 KiB" in shown["memory"] and "the dashed mark" in shown["memory"]
    assert "checkpoint 1 written" in shown["hosts"] and "part 0.0" in shown["hosts"]
    assert "hidden" in shown["plan"]


def test_a_stalled_host_is_named_within_five_seconds() -> None:
    """The invented host hangs in second 45, and its record says so two seconds later."""
    before, after = state_at(45.0), state_at(49.9)
    assert "holds up" not in text(Panels(before).render(45.0)["waits"])
    found = stalls(after, 49.9)
    assert [stall.host for stall in found] == ["part 1.1"] and found[0].seconds <= 5.0
    told = Panels(after).render(49.9)["waits"]
    assert "part 1.1 holds up coordinator, part 1.0 for 0:04" in text(told) and 'class="stall"' in told


def test_a_chain_of_waits_leads_to_its_end_and_a_circle_to_all_in_it() -> None:
    state = State()
    chain = [("a", "b"), ("b", "c"), ("d", "c"), ("x", "y"), ("y", "x")]
    state.add(Waits(at_s=9.0, waits=tuple(Wait(host=a, on=b, what="h", since_s=5.0) for a, b in chain)))
    assert [(one.host, one.waiting, one.seconds) for one in stalls(state, 9.0)] == [
        ("c", ("a", "b", "d"), 4.0)
    ]
    state.add(Waits(at_s=9.0, waits=tuple(Wait(host=a, on=b, what="h", since_s=5.0) for a, b in chain[3:])))
    assert {one.host for one in stalls(state, 9.0)} == {"x", "y"}


def test_a_step_that_all_machines_have_reported_is_preferred_for_a_while() -> None:
    state = state_at(20.0)
    whole = shown_sample(state)
    assert whole is not None and whole is state.newest_sample(whole.replica) and len(whole.lanes) == 2
    half = msgspec.structs.replace(whole, at_s=whole.at_s + 5.0, lanes=whole.lanes[:1])
    state.add(half)
    assert shown_sample(state) == whole
    state.add(msgspec.structs.replace(half, at_s=whole.at_s + 60.0))
    assert shown_sample(state) == state.newest_sample()


def test_a_silent_stream_is_told() -> None:
    panels = Panels(state_at(20.0))
    assert "No news of the run" not in panels.render(22.0, silent_s=2.0)["head"]
    assert "No news of the run for 0:42" in text(panels.render(62.0, silent_s=42.0)["head"])


def test_hostile_names_are_words_on_the_page() -> None:
    state = State()
    for record in records():
        if isinstance(record, RunBegan):
            machines = tuple(msgspec.structs.replace(one, name=HOSTILE) for one in record.machines)
            record = msgspec.structs.replace(record, network=HOSTILE, machines=machines, links_text=HOSTILE)
        if isinstance(record, Progress):
            record = msgspec.structs.replace(record, metrics={HOSTILE: 0.5})
        state.add(record)
    state.add(Event(at_s=50.0, kind="warning", text=HOSTILE))
    state.add(Hosts(at_s=50.0, hosts=(HostRow(name=HOSTILE, kind="part", address=HOSTILE, place="a\nb"),)))
    state.add(Waits(at_s=50.0, waits=(Wait(host=HOSTILE, on=HOSTILE + "2", what=HOSTILE, since_s=40.0),)))
    page = frozen_page(state)
    assert "<img" not in page and "&lt;img" in page and "{{7*7}}" in page
    read(page)


@pytest.mark.parametrize("machines", [20, pytest.param(64, marks=pytest.mark.slow)])
def test_many_machines_stay_small(machines: int) -> None:
    state = state_at(12.0, machines=machines)
    shown = Panels(state).render(12.0)
    every_second = sum(len(html) for name, html in shown.items() if name != "plan")
    assert every_second < 150_000 and shown["lanes"].count("<rect") < 1_500
    assert f"{machines - 15} other machines" in shown["lanes"] and 'href="all"' in shown["lanes"]
    page = frozen_page(state)
    assert len(page) < 700_000
    assert all(f"local{m}:" in page or f">local{m}<" in page for m in range(machines))


def test_a_second_without_news_renders_nothing() -> None:
    panels = Panels(state_at(20.0))
    first, again = panels.render(20.0), panels.render(20.4)
    assert all(first[name] is again[name] for name in PANELS)


def test_a_panel_rests_the_longer_the_more_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs 50 ms here, and so rests for 10 s, but what says who waits; at its end all is made anew."""
    spent_s = count(step=0.05)
    monkeypatch.setattr(panels_module.time, "thread_time", lambda: next(spent_s))
    state = state_at(20.0)
    panels = Panels(state)
    made = [dict(panels.render(20.0))]
    for second in (24.0, 29.0, 31.0):
        for record in records():
            if state.at_s < record.at_s <= second:
                state.add(record)
        made.append(dict(panels.render(second)))
    renewed = [{name for name in PANELS if one[name] is not other[name]} for one, other in pairwise(made)]
    assert all("head" in some <= {"head", "waits"} for some in renewed[:2]), renewed
    assert {"curves", "traffic", "hosts"} <= renewed[2]
    last = panels.render(32.0)
    state.add(RunEnded(at_s=32.0, outcome="complete", text="complete"))
    assert panels.render(34.0)["hosts"] is not last["hosts"]


def test_the_file_is_whole_or_not_there(tmp_path: object) -> None:
    target = tmp_path / "page.html"  # type: ignore[operator]
    assert freeze(state_at(20.0), target) == target
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]
    with pytest.raises(FileNotFoundError):
        freeze(state_at(0.0), target.parent / "none" / "page.html")
