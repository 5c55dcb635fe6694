"""The slowdown of a training beside a flood of strangers at the ports of its hosts.

    python -m benchmarks.strangers [--rounds N] [--rows KIND[,KIND]] [--json FILE]

One Downpour run of a replica of two machines and a shard, each a process, for each kind of flood. In it a
calm window and one with the flood follow each other; the first two, in which each port lets its first few
hundred strangers in, are not counted. The flood comes from another process, of the lowest
priority. In a calm window it floods a port of its own: so what it takes of the cores, caches and the kernel
by itself is in both windows, and the ratio is what it costs the training to be its target (with an unlisted
key it is silent instead). "step time" is of the wall clock; "processor time" is what all processes of the
training spend for a step. Both vary with what else the machine does; what does not is
"I/O threads": what the threads of libzmq, which accept and greet, take of one core in the processes of the
training, beside a flood and without one. A flood with an unlisted key is at the coordinator's port, whose key
it knows; all others are at every port.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil

from benchmarks._flood import KINDS
from benchmarks._harness import Row, options, print_table, report, row, spread
from benchmarks._machine import describe
from examples import digits
from partita.engine import SGD, Downpour, Interrupted, train
from partita.engine.launch import ProcessLauncher
from partita.engine.run.metrics import Record
from partita.partitioner import Cluster, partition

WINDOW_S: Final = 2.0
AT_LEAST: Final = 1 / 1.05
"""The aim: a step takes at most 5% more."""


class _Measured:
    """A run in windows, every other one with a flood."""

    def __init__(self, kind: str, rounds: int) -> None:
        self._kind, self._left, self._first = kind, 2 * rounds + 3, 2 * rounds + 1
        self._steps: dict[int | None, int] = {}
        self._until = float("inf")
        self._flood: subprocess.Popen[str] | None = None
        self._is_flooded = True  # the first window is not counted
        self.tried = 0
        self.step_s: dict[bool, list[float]] = {False: [], True: []}
        self.processor_s: dict[bool, list[float]] = {False: [], True: []}
        self.io_share: dict[bool, list[float]] = {False: [], True: []}

    def _start(self) -> None:
        """Finds the ports, and starts the stranger."""
        self._processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        ports = sorted(
            {
                c.laddr.port
                for process in self._processes
                for c in process.net_connections("tcp")
                if c.status == psutil.CONN_LISTEN
            }
        )
        mailbox = _launchers[-1].mailbox
        if self._kind == "unlisted key":
            ports = [int(mailbox.endpoint.rpartition(":")[2])]
        self._flood = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._flood", self._kind, mailbox.public_key, *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _switch(self) -> None:
        assert self._flood is not None and self._flood.stdin is not None and self._flood.stdout is not None
        self._flood.stdin.write("\n")
        self._flood.stdin.flush()
        self._is_flooded = not self._is_flooded
        if not self._is_flooded:
            self.tried = int(self._flood.stdout.readline() or 0)

    def _processor_s(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._processes)

    def _io_s(self) -> float:
        """Processor time of the threads of libzmq."""
        return sum(
            thread.user_time + thread.system_time
            for one in self._processes
            for thread in one.threads()
            if Path(f"/proc/{one.pid}/task/{thread.id}/comm").read_text().startswith("ZMQbg")
        )

    def _begin(self) -> None:
        self._io_before = self._io_s()
        self._began, self._before = time.monotonic(), self._processor_s()
        self._from = sum(self._steps.values())
        self._until = self._began + WINDOW_S

    def on_record(self, record: Record) -> None:
        """Counts steps; ends a window when its time is over, and the run after the last."""
        self._steps[record.replica] = record.step
        if self._flood is None:
            self._start()
            self._is_flooded = False
            self._begin()
        if time.monotonic() < self._until or not self._left:
            return
        steps = max(sum(self._steps.values()) - self._from, 1)
        if self._left <= self._first:
            self.step_s[self._is_flooded].append((time.monotonic() - self._began) / steps)
            self.processor_s[self._is_flooded].append((self._processor_s() - self._before) / steps)
            seconds = time.monotonic() - self._began
            self.io_share[self._is_flooded].append((self._io_s() - self._io_before) / seconds)
        self._left -= 1
        if self._left:
            self._switch()
            self._begin()
            return
        assert self._flood is not None
        self._flood.kill()
        self._flood.communicate()
        signal.raise_signal(signal.SIGINT)


_launchers: list[ProcessLauncher] = []


class _Watched(ProcessLauncher):
    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        _launchers.append(self)


def measure(kind: str, rounds: int) -> _Measured:
    """A run beside a kind of flood."""
    measured = _Measured(kind, rounds)
    plan = partition(digits.network(), Cluster.local(machines=2), batch=32, strategy="balanced")
    training, _ = digits.data()
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(
                plan,
                training,
                driver=Downpour(optimizer=SGD(0.01)),
                epochs=10**6,
                show="nothing",
                checkpoints=folder,
                checkpoint_every_s=3600.0,
                on_record=measured.on_record,
            )
        except Interrupted:
            return measured
    raise AssertionError("the run ended by itself")


def main() -> None:
    """Measures and reports."""
    chosen = options(__doc__ or "", rounds=6, rows=KINDS)
    sys.modules["partita.engine.run.train"].ProcessLauncher = _Watched  # type: ignore[attr-defined]
    rows: list[Row] = []
    lines: list[list[str]] = []
    for kind in chosen.rows:
        found = measure(kind, chosen.rounds.most)
        ratios = {
            "step time": _ratios(found.step_s),
            "processor time": _ratios(found.processor_s),
        }
        micro = {what: [1e6 * s for s in all_s] for what, all_s in found.step_s.items()}
        lines.append(
            [
                kind,
                f"{found.tried:,}",
                spread(micro[False], unit="us", digits=0),
                spread(micro[True], unit="us", digits=0),
                *(f"{statistics.median(r):.3f}" for r in ratios.values()),
                " / ".join(f"{statistics.mean(found.io_share[what]):.1%}" for what in (False, True)),
            ]
        )
        note = f"{found.tried:,} connections tried in {chosen.rounds.most} windows of {WINDOW_S:g} s"
        rows += [row(f"{kind}: {what}", r, at_least=AT_LEAST, note=note) for what, r in ratios.items()]
    print(describe())
    print_table(
        "Downpour beside strangers; calm against flood",
        [
            "flood",
            "connections tried",
            "step, calm",
            "step, flood",
            "step time",
            "processor time",
            "I/O threads",
        ],
        lines,
    )
    report("Calm against flood", rows, file=chosen.json)


def _ratios(found: dict[bool, list[float]]) -> list[float]:
    """Calm over flood; a window with the flood lies between two calm ones."""
    calm = found[False]
    between = [statistics.mean(pair) for pair in pairwise(calm)]
    return [a / b for a, b in zip(between, found[True], strict=True)]


if __name__ == "__main__":
    main()
