"""The panels of the page as HTML, each made of the state of a run; nothing here knows a server or a browser.

A page is rendered once for all who look at it. What follows from records that have not come since is kept, so
a second without news costs next to nothing; and a panel of many machines is made the less often the more it
costs, except those that say who waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from partita.engine.page import facts
from partita.engine.page.lanes import shown_sample, slowest_wait, step_gantt
from partita.engine.view import theme
from partita.engine.view.bars import Row, draw_bars
from partita.engine.view.crowds import parted
from partita.engine.view.gantt import draw_gantt
from partita.engine.view.palette import Palette
from partita.engine.view.series import Line, Moment, draw_series
from partita.engine.watch.curve import Curve
from partita.engine.watch.records import HostMemory
from partita.engine.watch.state import State
from partita.layers.text import counted, readable_bytes
from partita.partitioner.text import readable_seconds

PANELS: Final = ("head", "lanes", "waits", "curves", "traffic", "memory", "hosts", "plan")
"""The panels, in their order on the page; the first is the heading."""
TEMPLATES: Final = Environment(
    loader=PackageLoader("partita.engine.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals.update(
    counted=counted, seconds=readable_seconds, size=readable_bytes, clock=facts.clock, dark=theme.dark_of
)
_REPLICAS: Final = 8
"""Replicas up to which each has a line of its own."""
_EVENTS: Final = 60
_URGENT: Final = frozenset({"head", "waits"})
"""Panels that are made whenever something has changed."""
_RESTS: Final = 200.0
"""Time for which a panel stays, over the processor time that it took to make it: half a percent of a core."""
_OLDEST_S: Final = 15.0
"""Seconds for which a panel stays at most."""
_MARKED: Final = {"checkpoint": theme.SOFT, "lost": theme.WARNING, "restarted": theme.WARNING}
_WHOLE: Final = 100
"""Rows of a table that shows all; of more machines, links are too many for any reader."""
_METRICS: Final = 3
"""Charts of metrics beside the loss."""


class Panels:
    """Renders the panels of one run."""

    def __init__(self, state: State) -> None:
        """Panels of a state that grows; `note` is a line of the page about itself."""
        self.state, self.note = state, ""
        self._kept: dict[str, tuple[Hashable, str]] = {}
        self._stays_until_s: dict[str, float] = {}

    def render(self, now_s: float, *, silent_s: float = 0.0, whole: bool = False) -> dict[str, str]:
        """Returns the HTML of each panel.

        Args:
            now_s: seconds of the run now.
            silent_s: seconds since the newest record came; 0 for a run that has ended.
            whole: shows all machines and rows, also those that are left out where there are many.
        """
        state, second = self.state, int(now_s)
        news: dict[str, Hashable] = {
            "head": (second, int(silent_s), self.note, state.phase),
            "lanes": (id(state.newest_sample()), state.run is None),
            "waits": (second if state.waits else 0, state.waits, id(state.newest_sample())),
            "curves": (_count(state), second // 2 if state.progress else 0),
            "traffic": (second // 2,),
            "memory": (id(next(iter(state.memory.values()), None)), len(state.memory)),
            "hosts": (second // 2, len(state.events)),
            "plan": (state.picture != "", state.run is None),
        }
        if whole:
            return {name: self._made(name, now_s, silent_s, whole=True) for name in PANELS}
        for name in PANELS:
            before = self._kept.get(name)
            if before is None or (before[0] != news[name] and not self._stays(name, now_s)):
                began = time.thread_time()
                self._kept[name] = news[name], self._made(name, now_s, silent_s, whole=False)
                rests_s = min(_RESTS * (time.thread_time() - began), _OLDEST_S)
                self._stays_until_s[name] = now_s + rests_s
        return {name: self._kept[name][1] for name in PANELS}

    def _stays(self, name: str, now_s: float) -> bool:
        """Returns whether a panel is too new to be made again. The end of a run is shown at once."""
        return name not in _URGENT and not self.state.is_over and now_s < self._stays_until_s[name]

    def _made(self, name: str, now_s: float, silent_s: float, *, whole: bool) -> str:
        facts_of: dict[str, Callable[[], dict[str, Any]]] = {
            "head": lambda: self._head(now_s, silent_s),
            "lanes": lambda: self._lanes(now_s, whole),
            "waits": lambda: self._waits(now_s, whole),
            "curves": lambda: {"charts": list(self._curves(now_s))},
            "traffic": lambda: self._traffic(whole),
            "memory": lambda: self._memory(),
            "hosts": lambda: self._hosts(now_s, whole),
            "plan": lambda: {"picture": theme.embedded(self.state.picture)},
        }
        return TEMPLATES.get_template(f"{name}.html").render(
            state=self.state, run=self.state.run, **facts_of[name]()
        )

    def _head(self, now_s: float, silent_s: float) -> dict[str, Any]:
        quiet = silent_s if silent_s > facts.SILENT_S and not self.state.is_over else 0.0
        return {
            "numbers": facts.headline(self.state, now_s),
            "done": facts.done(self.state),
            "silent_s": quiet,
            "note": self.note,
        }

    def _lanes(self, now_s: float, whole: bool) -> dict[str, Any]:
        state, sample = self.state, shown_sample(self.state)
        gantt = step_gantt(state)
        if gantt is None:
            return {"gantt": None}
        chart, rest = parted(gantt)
        words = "The plan's prediction; steps are sampled once the run computes."
        if sample is not None and state.run is not None:
            shift = max((lane.uncertainty_s for lane in sample.lanes), default=0.0)
            words = (
                f"{gantt.title}, {facts.clock(sample.at_s)} after the start: "
                f"{readable_seconds(sample.step_s)}. The pale lane below the broad one was predicted. "
                f"{slowest_wait(state.run, sample)}"
            )
            words += f" Clocks of two machines agree within {readable_seconds(shift)}." if shift else ""
        return {
            "gantt": chart,
            "words": words,
            "picture": theme.embedded(draw_gantt(chart, bare=True)),
            "rest": rest,
            "rest_picture": theme.embedded(draw_gantt(rest, bare=True)) if rest and whole else "",
        }

    def _waits(self, now_s: float, whole: bool) -> dict[str, Any]:
        waits = [(wait, max(now_s - wait.since_s, 0.0)) for wait in self.state.waits]
        return {
            "stalls": facts.stalls(self.state, now_s),
            "waits": waits if whole else waits[: facts.MOST_ROWS],
            "more": 0 if whole else max(len(waits) - facts.MOST_ROWS, 0),
            "stalled_s": facts.STALLED_S,
            "table": _cut(facts.wait_table(self.state), whole=whole, most=8),
        }

    def _curves(self, now_s: float) -> Iterator[dict[str, Any]]:
        """Yields the charts: of the loss, of metrics, of the speed."""
        state, curves = self.state, self.state.curves
        until_s = max((curve.last.at_s for curve in curves.values() if curve.last), default=0.0)
        moments = [
            Moment(event.at_s, event.text, _MARKED[event.kind])
            for event in state.events
            if event.kind in _MARKED
        ]
        metrics = list(state.progress.metrics)[:_METRICS] if state.progress else []
        for name, words in (
            ("loss", "loss"),
            *((one, one) for one in metrics),
            ("examples_per_s", "examples/s"),
        ):
            lines = [*self._replica_lines()] if name == "loss" else []
            if name in curves:
                lines.append(_line(words, curves[name], theme.INK))
            if f"validation {name}" in curves:
                lines.append(_line("held-out", curves[f"validation {name}"], theme.WARNING, dots=True))
            if lines:
                legend = [(line.colour, line.name) for line in lines]
                picture = theme.embedded(draw_series(words, lines, moments, until_s=until_s))
                yield {"title": words, "legend": legend if len(lines) > 1 else [], "picture": picture}

    def _replica_lines(self) -> Iterator[Line]:
        replicas = sorted(self.state.replicas)
        if 1 < len(replicas) <= _REPLICAS:
            for number in replicas:
                curve = self.state.curves.get(f"loss of replica {number}")
                if curve is not None:
                    yield _line(f"replica {number}", curve, theme.LINES[number % len(theme.LINES)], thin=True)

    def _traffic(self, whole: bool) -> dict[str, Any]:
        counts = self.state.staleness_counts()
        curve = self.state.curves.get("staleness")
        picture = ""
        if curve is not None and curve.last is not None:
            line = _line("staleness", curve, theme.INK)
            picture = theme.embedded(draw_series("staleness", [line], until_s=curve.last.at_s, height=90))
        return {
            "replicas": _cut(facts.replica_table(self.state), whole=whole, most=8),
            "links": self._links(_WHOLE if whole else 10),
            "counts": counts,
            "most": max(counts, default=0),
            "picture": picture,
        }

    def _links(self, most: int) -> dict[str, Any]:
        head, rows, more = facts.link_table(self.state, most)
        return {"head": head, "rows": rows, "more": more}

    def _memory(self) -> dict[str, Any]:
        run = self.state.run
        palette = Palette(tuple(machine.name for machine in run.machines) if run else ())
        rows = [self._memory_row(one, palette) for one in self.state.unique_memory()]
        rows.sort(key=lambda row: -row.segments[0][0])
        total = sum(row.segments[0][0] for row in rows)
        shown = rows[: facts.MOST_ROWS]
        return {
            "picture": theme.embedded(draw_bars("memory of hosts", shown)) if rows else "",
            "more": len(rows) - len(shown),
            "total": total,
            "n": len(rows),
        }

    def _memory_row(self, one: HostMemory, palette: Palette) -> Row:
        run, row = self.state.run, self.state.hosts.get(one.host)
        used = one.resident_bytes if one.pss_bytes is None else one.pss_bytes
        words, colour = [f"{readable_bytes(used)} in use"], theme.DOING["other"][0]
        limit: int | None = None
        expected: int | None = None
        if (
            run is not None
            and row is not None
            and row.machine is not None
            and row.machine < len(run.machines)
        ):
            planned, colour = run.machines[row.machine], palette.colour(row.machine)
            expected, limit = planned.memory_bytes, planned.memory_limit_bytes
            words += [f"planned {readable_bytes(expected)}"] if expected is not None else []
            words += [f"limit {readable_bytes(limit)}"] if limit else []
        return Row(one.host, ((float(used), colour),), " · ".join(words), limit, expected)

    def _hosts(self, now_s: float, whole: bool) -> dict[str, Any]:
        events = list(self.state.events)[::-1]
        return {
            "counts": facts.host_counts(self.state),
            "hosts": _cut(facts.host_table(self.state, now_s), whole=whole, most=facts.MOST_ROWS),
            "events": events if whole else events[:_EVENTS],
            "troubled": facts.troubled,
        }


def _line(name: str, curve: Curve, colour: str, *, dots: bool = False, thin: bool = False) -> Line:
    points = [(point.at_s, point.value) for point in curve.points]
    return Line(name, points, colour, dots=dots, thin=thin)


def _cut(table: tuple[list[str], list[list[str]]], *, whole: bool, most: int) -> dict[str, Any]:
    """Returns a table whose rows are at most so many, and the number of the others."""
    head, rows = table
    shown = rows[: _WHOLE if whole else most]
    return {"head": head, "rows": shown, "more": len(rows) - len(shown)}


def _count(state: State) -> int:
    return sum(len(curve) for curve in state.curves.values())
