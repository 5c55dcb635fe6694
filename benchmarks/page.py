"""The live page of a run of 64 machines with 20 open tabs: what it takes from a step, and how soon it names a
host that stalls.

    python -m benchmarks.page [--rows step,stall] [--rounds N] [--json FILE]

step: a session of two hosts plays steps of a dense network on this machine. In every second turn the page of
a run of 64 machines is served beside it, to 20 tabs that are WebSocket clients of one process; in the other
turns server and tabs are stopped (SIGSTOP). "server" is the processor time of the server alone, as a share of
what all cores have: browsers are often elsewhere.

stall: `partita train --page` over two machines, with the tabs open. A process is stopped, and the clock runs
until a tab has received a panel that names it; then it goes on, and the page must have forgotten it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks._harness import (
    Row,
    in_turn,
    options,
    print_table,
    ratios,
    readable_seconds,
    report,
    row,
    spread,
)
from benchmarks._machine import describe
from benchmarks._page_server import Feed, Page
from benchmarks._page_tabs import Tabs
from benchmarks._rounds import Rounds
from benchmarks._slowed import hosts
from partita.engine import SGD, Session
from partita.engine.parameters import initialise
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

MACHINES: Final = 64
TABS: Final = 20
BATCH: Final = 64
TURN_S: Final = 4.0
RECORDS_S: Final = 150
STALLS: Final = 4
WITHIN_S: Final = 5.0
"""Seconds within which the page names a host that stalls."""
_RUNS_S: Final = 2.0
"""Seconds for which the run goes on between two stalls."""
STALLED: Final = "part 0.1"


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=12, rows=("step", "stall"), measurements=1)
    print(describe(), flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        if "step" in asked.rows:
            rows += step_rows(Path(folder), asked.rounds)
        if "stall" in asked.rows:
            rows.append(stall_row(Path(folder)))
    report("page", rows, file=asked.json)


@contextmanager
def session() -> Iterator[tuple[Session, dict[str, np.ndarray]]]:
    """Yields a session over two hosts of this machine, and a minibatch."""
    net = Network("dense")
    x = net.input("x", shape=512)
    for n in range(2):
        x = Dense(1024, activation="relu", name=f"hidden{n}")(x)
    net.loss = SoftmaxCrossEntropy()(Dense(64, name="scores")(x), net.target("label"))
    plan = partition(net, Cluster.local(2), batch=BATCH, strategy="balanced")
    draw = np.random.default_rng(0)
    batch = {
        "x": draw.normal(size=(BATCH, 512)).astype(np.float32),
        "label": draw.integers(0, 64, BATCH),
    }
    parameters = initialise(plan.graph.parameters.values(), 0)
    with Session(plan, parameters, train=True, optimizer=SGD(0.01)) as opened:
        opened.step(batch)
        yield opened, batch


def step_rows(folder: Path, rounds: Rounds) -> list[Row]:
    """The step beside the page over the step alone, and the server's share of the cores."""
    records = folder / "records-1.jsonl"
    feed = Feed(records, machines=MACHINES, seconds=RECORDS_S)
    shares: list[tuple[float, float]] = []
    with session() as (opened, batch), Page(records, tabs=TABS) as page:

        def step_s() -> float:
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < TURN_S:
                opened.step(batch)
                steps += 1
            return (time.perf_counter() - began) / steps

        def alone() -> float:
            page.rest()
            return step_s()

        def beside() -> float:
            page.resume()
            before, began = page.busy_s(), time.perf_counter()
            with feed.writing():
                found = step_s()
            have_s = (time.perf_counter() - began) * len(os.sched_getaffinity(0))
            after = page.busy_s()
            shares.append(((after[0] - before[0]) / have_s, (after[1] - before[1]) / have_s))
            return found

        measured = in_turn({"alone": alone, "beside the page": beside}, rounds=rounds)
        page.resume()
        received = page.counted()
    print_table(
        f"a step of two hosts, and the page of {MACHINES} machines in {TABS} tabs",
        ("what", "median (min to max)"),
        [
            *((f"a step {name}", readable_seconds(found)) for name, found in measured.items()),
            ("the server, share of the cores", spread([100 * one for one, _ in shares], unit="%", digits=2)),
            ("the tabs, share of the cores", spread([100 * one for _, one in shares], unit="%", digits=2)),
            ("updates that tabs received", f"{received['updates']:.0f}, {received['n_bytes'] / 1e6:.1f} MB"),
        ],
    )
    left = [1.0 - server for server, _ in shares]
    return [
        row(
            "a step alone over one beside the page",
            ratios(measured["alone"], measured["beside the page"]),
            at_least=0.99,
            note=f"with {TABS} tabs on the same cores",
        ),
        row("what the server leaves of the cores", left, at_least=0.99, note="processor time"),
    ]


def stall_row(folder: Path) -> Row:
    """The limit over the seconds until a stopped process is named in a tab."""
    with trained(folder) as address:
        tabs = Tabs(address)
        tabs.open(TABS)
        found = [_named_s(tabs, hosts()[STALLED]) for _ in range(STALLS)]
        tabs.close()
    note = f"named after {spread(found, unit='s')}; at most {WITHIN_S:g} s"
    return row("a host that stalls is named", [WITHIN_S / s for s in found], at_least=1.0, note=note)


def _named_s(tabs: Tabs, pid: int) -> float:
    """Stops a process, and returns the seconds until a tab names it. Waits until it is no longer named."""
    named = f"<b>{STALLED}</b> holds up"
    time.sleep(_RUNS_S)
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        seen = tabs.await_text(named, since=began)
    finally:
        os.kill(pid, signal.SIGCONT)
    tabs.await_text("No host waits", since=time.monotonic())
    return seen - began


@contextmanager
def trained(folder: Path) -> Iterator[str]:
    """Trains over two machines while the block lasts, and yields the address of the page."""
    checkpoints = str(folder / "digits.checkpoints")
    command: Sequence[str] = (
        *(sys.executable, "-m", "partita.engine.cli", "train", "examples/digits.py", "--machines", "2"),
        *("--strategy", "balanced", "--epochs", "100000", "--max-s", "200", "--page"),
        *("--checkpoints", checkpoints, "--save", str(folder / "digits.safetensors")),
    )
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            for said in process.stderr:
                if said.startswith("page of this run: "):
                    break
            else:
                raise RuntimeError(f"the run has no page; it ended with: {said}")
            yield said.removeprefix("page of this run: ").strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()


if __name__ == "__main__":
    main()
