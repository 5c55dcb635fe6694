"""One run in the storm: it is started, struck every two seconds until it is done, and checked."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import psutil

from tests.storm.cells import Spec
from tests.storm.census import Census, left_behind, segments
from tests.storm.checks import Counts, Violated, check_bits, check_pushes
from tests.storm.moments import Moments
from tests.storm.pool import StormPool
from tests.storm.processes import MARK, Process, hosts_below, is_host, name_of
from tests.storm.recovery import Recovery, recoveries
from tests.storm.victims import EARLY_S, Fault, Victims, role_of

CALM_S: Final = 240.0
"""A run that is struck no more must come to its end in this time."""

LULL_S: Final = 8.0
"""Longest pause after the death of a run's own process, until its successor is at work: else the next fault
would always come before that, and its recovery would not be known.
"""

LULLS: Final = 0.6
"""Share of those deaths after which there is a pause."""

ENDS: Final = 0.6
"""Share of the runs that are struck while they end, however long that is after the other faults."""

TICK_S: Final = 0.02
WAIT_S: Final = 0.05
"""Before processes of a role that was drawn are looked for again."""


@dataclass
class Setting:
    """What the runs of a storm have in common.

    Args:
        folder: of the storm.
        mark: see `processes.MARK`.
        every_s: seconds from one fault to the next.
        random: draws the faults.
        struck_s: seconds after which a run is struck no more.
        roles: that are struck; all if empty.
        census: of memory.
        pool: for the runs whose place it is.
    """

    folder: Path
    mark: str
    every_s: float
    random: Random
    struck_s: float = 60.0
    roles: frozenset[str] = frozenset()
    census: Census = field(default_factory=Census)
    pool: StormPool | None = None

    def env(self, temporary: Path) -> dict[str, str]:
        """Environment of what is started."""
        temporary.mkdir(exist_ok=True)
        return {MARK: self.mark, "TMPDIR": str(temporary)}


@dataclass(frozen=True)
class Outcome:
    """What came of one run. `violated`: what did not hold; "" if everything did."""

    spec: Spec
    seconds: float
    lives: int
    faults: tuple[Fault, ...]
    counts: Counts
    recoveries: tuple[Recovery, ...]
    violated: str = ""


class StormyRun:
    """One run, its faults and its checks."""

    def __init__(self, setting: Setting, spec: Spec, folder: Path) -> None:
        """Writes what the run's own process reads; starts nothing yet."""
        folder.mkdir()
        self._setting, self._spec, self.folder = setting, spec, folder
        (folder / "spec.json").write_bytes(msgspec.json.encode(spec))
        self._temporary = folder / "tmp"
        self._own = Process(
            folder / "output", "tests.storm.run", str(folder), env=setting.env(self._temporary)
        )
        self._victims = Victims(setting.random)
        self._starts: list[float] = []
        self._moments = Moments(folder / "events-0")
        self._lull_until = self._look_at = 0.0
        self._killed = False  # the run's own process, by us
        self._before = segments()

    def play(self, calm: Path | None = None) -> Outcome:
        """Plays the run to its end, and checks it. Its folder has what is needed to see why something does
        not hold.

        Args:
            calm: folder of the same run without faults, whose bits it must have; None: no bits are compared,
                as of a calm run itself.
        """
        began, violated, counts = time.monotonic(), "", Counts()
        try:
            self._weather(began, struck=calm is not None or self._spec.counts)
            seconds = time.monotonic() - began
            counts = self._check(calm)
        except Violated as error:
            seconds, violated = time.monotonic() - began, str(error)
        finally:
            self._victims.thaw(everything=True)
            self._own.kill() if self._own.is_running else None
        faults = tuple(self._victims.faults)
        (self.folder / "faults").write_text("".join(f"{fault}\n" for fault in faults))
        found = () if violated else tuple(recoveries(self.folder, faults, self._starts))
        return Outcome(self._spec, seconds, len(self._starts), faults, counts, found, violated)

    def _weather(self, began: float, *, struck: bool) -> None:
        setting, victims = self._setting, self._victims
        self._start()
        due, ends = time.monotonic() + setting.every_s, self._setting.random.random() < ENDS
        while True:
            time.sleep(TICK_S)
            if self._own.code is not None and self._ended(self._own.code):
                return
            now = time.monotonic()
            victims.thaw()
            setting.census.sample(self._measured())
            if setting.pool is not None:
                setting.pool.revive()
            if now - began > setting.struck_s + CALM_S:
                raise Violated(f"it has not ended {CALM_S:g} s after the last fault")
            if not struck:
                continue
            if ends and self._moments.now("end"):
                ends = not self._strike(ends=True)
            elif now - began < setting.struck_s and self._struck(now, due):
                due = max(due, now) + setting.every_s

    def _is_lull(self, now: float) -> bool:
        """Whether a new process of the run itself is given the time to be at work."""
        if now >= self._lull_until:
            return False
        if self._moments.now("any") and self._moments.is_working:
            self._lull_until = 0.0
        return True

    def _struck(self, now: float, due: float) -> bool:
        """Strikes if a fault is due, or soon and its moment has come; returns whether it did."""
        return now >= due - EARLY_S and not self._is_lull(now) and self._strike(waits=now < due)

    def _strike(self, *, waits: bool = False, ends: bool = False) -> bool:
        """Strikes what is drawn next; returns whether it is there, and may be struck."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + WAIT_S
        wanted = self._setting.roles
        roles = [role for role in self._spec.roles if role in wanted or not wanted]
        drawn = self._victims.draw(roles, self._there(), self._moments, waits=waits, ends=ends)
        for fault in self._victims.strike(drawn, len(self._starts) - 1):
            self._moments.struck(fault.name, fault.frozen_s)
            if fault.role == "coordinator" and fault.frozen_s is None:
                self._killed = True
                if self._setting.random.random() < LULLS:
                    self._lull_until = time.monotonic() + LULL_S
        return bool(drawn)

    def _start(self) -> None:
        self._killed, spec = False, self._spec
        self._moments = Moments(
            self.folder / f"events-{len(self._starts)}",
            pairs=spec.durability == "replicated",
            length=0 if spec.driver == "sandblaster" else spec.length,
        )
        self._starts.append(time.monotonic())
        self._own.start(str(len(self._starts) - 1))

    def _ended(self, code: int) -> bool:
        """Whether the run is done; starts it again where it was killed. Raises Violated."""
        if code == 0:
            return True
        if code != -signal.SIGKILL or not self._killed:
            raise Violated(f"the run ended with {code}: {self.tail()}")
        self._start()
        return False

    def tail(self) -> str:
        """The last lines that it printed."""
        return "\n".join(self._own.output.read_text(errors="replace").splitlines()[-12:])

    def _roots(self) -> Iterator[tuple[str, Process]]:
        """Yields the processes that hosts descend from, and the pool's server, by name."""
        yield "coordinator", self._own
        if self._setting.pool is not None and self._spec.place == "pool":
            yield from self._setting.pool.all.items()

    def _measured(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yields all processes whose memory shall be flat, by role, and this one. The run's own process draws
        its data first, and plans.
        """
        yield "storm", psutil.Process()
        for name, root in self._roots():
            if root.is_running:
                if name != "coordinator" or self._moments.is_working:
                    yield role_of(name), psutil.Process(root.pid)
                yield from ((role_of(host), process) for host, process in hosts_below(root.pid))

    def _there(self) -> dict[str, list[tuple[str, psutil.Process]]]:
        """The processes that may be struck, by role: "two" are of these, too."""
        found: dict[str, list[tuple[str, psutil.Process]]] = {}
        for name, root in self._roots():
            if not root.is_running:
                continue
            found.setdefault(role_of(name), []).append((name, psutil.Process(root.pid)))
            for host, process in hosts_below(root.pid):
                found.setdefault(role_of(host), []).append((host, process))
                parent = process.parent()
                if parent is not None and parent.pid != root.pid and not is_host(name_of(parent)):
                    found["template"] = [("template", parent)]
        return {role: named for role, named in found.items() if role in self._spec.roles}

    def _check(self, calm: Path | None) -> Counts:
        spec, counts = self._spec, Counts()
        if spec.counts:
            counts = check_pushes(self.folder, spec, len(self._starts))
        elif calm is not None:
            check_bits(self.folder, calm, spec)
        setting = self._setting
        pool = {}
        if setting.pool is not None:
            setting.pool.revive()
            pool = {name: one.pid for name, one in setting.pool.all.items()}
        below = [child.pid for pid in pool.values() for child in psutil.Process(pid).children(recursive=True)]
        within_s = (
            5.0 if spec.place == "here" else 30.0
        )  # where a run is silent, workers end its hosts in 20 s
        left = left_behind(
            setting.mark, {*pool.values(), *below}, self._temporary, self._before, within_s=within_s
        )
        if left:
            raise Violated(f"left behind: {', '.join(left)}")
        if grown := [*setting.census.grown(), *setting.census.more_descriptors(pool)]:
            raise Violated(f"it grows: {', '.join(grown)}")
        return counts
