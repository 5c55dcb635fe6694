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
from tests.storm.pairs import Pairs
from tests.storm.pool import StormPool
from tests.storm.processes import MARK, Process, hosts_below, is_host, name_of
from tests.storm.recovery import Recovery, recoveries
from tests.storm.victims import Fault, Victims, role_of

LIMIT_S: Final = 60.0
"""After so long a run is struck no more, and must come to its end."""

CALM_S: Final = 240.0
"""That it may take to do so."""

TICK_S: Final = 0.02
WAIT_S: Final = 0.1
"""Before processes of a role that was drawn are looked for again."""


@dataclass
class Setting:
    """What the runs of a storm have in common.

    Args:
        folder: of the storm.
        mark: see `processes.MARK`.
        every_s: seconds from one fault to the next.
        random: draws the faults.
        census: of memory.
        pool: for the runs whose place it is.
    """

    folder: Path
    mark: str
    every_s: float
    random: Random
    census: Census = field(default_factory=Census)
    pool: StormPool | None = None

    def env(self, temporary: Path) -> dict[str, str]:
        """Environment of what is started."""
        temporary.mkdir(exist_ok=True)
        return {MARK: self.mark, "TMPDIR": str(temporary)}


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    spec: Spec
    seconds: float
    lives: int
    faults: tuple[Fault, ...]
    counts: Counts
    recoveries: tuple[Recovery, ...]


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
        self._pairs: Pairs | None = None
        self._killed = False  # the run's own process, by us
        self._before = segments()

    def play(self, calm: Path | None = None) -> Outcome:
        """Plays the run to its end, and checks it.

        Args:
            calm: folder of the same run without faults, whose bits it must have; None: no bits are compared,
                as of a calm run itself.

        Raises:
            Violated: something does not hold; the folder tells the rest.
        """
        began = time.monotonic()
        try:
            self._weather(began, struck=calm is not None or self._spec.counts)
            seconds = time.monotonic() - began
            return Outcome(
                self._spec, seconds, len(self._starts), tuple(self._victims.faults), self._check(calm),
                tuple(recoveries(self.folder, self._victims.faults, self._starts)),
            )  # fmt: skip
        except Violated as violated:
            told = [f"  {fault}" for fault in self._victims.faults]
            violated.add_note("\n".join([f"{self._spec}", *told, f"kept: {self.folder}"]))
            raise
        finally:
            self._victims.thaw(everything=True)
            self._own.kill() if self._own.is_running else None

    def _weather(self, began: float, *, struck: bool) -> None:
        setting, victims = self._setting, self._victims
        self._start()
        due = time.monotonic() + setting.every_s
        while True:
            time.sleep(TICK_S)
            if self._own.code is not None and self._ended(self._own.code):
                return
            now = time.monotonic()
            victims.thaw()
            setting.census.sample(self._everything())
            if setting.pool is not None:
                setting.pool.revive()
            if now - began > LIMIT_S + CALM_S:
                raise Violated(f"it has not ended {CALM_S:g} s after the last fault")
            if struck and now >= due and now - began < LIMIT_S:
                due = now + (setting.every_s if self._strike() else WAIT_S)

    def _strike(self) -> bool:
        """Strikes what is drawn next; returns whether it is there, and may be struck."""
        drawn = self._victims.draw(self._spec.roles, self._there(), self._pairs)
        for fault in self._victims.strike(drawn, len(self._starts) - 1):
            self._killed |= fault.role == "coordinator" and fault.frozen_s is None
            if self._pairs is not None:
                self._pairs.struck(fault.name, fault.frozen_s)
        return bool(drawn)

    def _start(self) -> None:
        self._killed = False
        if self._spec.durability == "replicated":
            self._pairs = Pairs(self.folder / f"events-{len(self._starts)}")
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

    def _everything(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yields all processes of the run, by role, and this one."""
        yield "storm", psutil.Process()
        for name, root in self._roots():
            if root.is_running:
                yield role_of(name), psutil.Process(root.pid)
                yield from ((role_of(host), process) for host, process in hosts_below(root.pid))

    def _there(self) -> dict[str, list[tuple[str, psutil.Process]]]:
        """The processes that may be struck, by role."""
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
        return found

    def _check(self, calm: Path | None) -> Counts:
        spec, counts = self._spec, Counts()
        if spec.counts:
            counts = check_pushes(self.folder, spec, len(self._starts))
        elif calm is not None:
            check_bits(self.folder, calm)
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
