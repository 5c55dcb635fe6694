"""`train` works from a script without a main guard, `python -c`, standard input, a prompt, threads, loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from partita.engine import AllReduce, train
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.run.display import Display
from partita.engine.run.metrics import Metrics
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

# The driver, the callback and the node are defined where no module is imported from, and reach the hosts.
BODY = """
import numpy as np
from dataclasses import dataclass
from partita.engine import SGD, Callback, Optimizer, train
from partita.engine.drivers import Driver
from partita.engine.protocol.actions import AllReduce, Apply, Compute, SafePoint
from partita.engine.protocol.exchange import Ring
from partita.layers import Dense, Network, OneToOne, SoftmaxCrossEntropy, node
from partita.partitioner import Cluster, partition

FACTOR = 2.0

@node(OneToOne())
def doubled(incoming):
    return incoming[0] * FACTOR

@doubled.downward
def doubled_errors(incoming, state, error):
    return [FACTOR * error]

@dataclass(frozen=True)
class Own(Driver):
    replicas: int = 1
    optimizer: Optimizer = SGD(0.1)

    def replica(self, me):
        for step in me.steps():
            yield Compute(step)
            yield AllReduce("gradient", by=Ring())
            yield Apply(self.optimizer)
            yield SafePoint()

class Seen(Callback):
    epochs = []

    def on_epoch(self, epoch, metrics, control):
        self.epochs.append(epoch)

net = Network("own")
x = net.input("x", shape=(4,))
net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(doubled(name="odd")(x)), net.target("y"))
draw = np.random.default_rng(0)
data = {"x": draw.normal(size=(32, 4)).astype("float32"), "y": draw.integers(0, 3, 32)}
plan = partition(net, Cluster.local(1), batch=8)
run = train(plan, data, driver=Own(replicas=2), epochs=2, validation=0.25, callbacks=[Seen()], show="nothing")
print("did", run.steps, Seen.epochs, len(run.validations))
"""


def python(arguments: list[str], given: str, folder: Path) -> str:
    """Runs Python with these arguments and this standard input; returns what it prints."""
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, input=given, cwd=folder, capture_output=True, text=True, timeout=240)
    assert "did" in done.stdout, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "-c", "standard input", "prompt", "thread", "loop"])
def test_functions_and_classes_of_any_main_reach_the_hosts(how: str, tmp_path: Path) -> None:
    (tmp_path / "body.py").write_text(BODY)
    runs = "exec(compile(open('body.py').read(), 'body.py', 'exec'), globals())"
    in_thread = f"import threading\nt = threading.Thread(target=lambda: {runs})\nt.start()\nt.join()"
    in_loop = f"import asyncio\nasync def main():\n    {runs}\nasyncio.run(main())"
    arguments, given = {
        "script": (["body.py"], ""),
        "-c": (["-c", BODY], ""),
        "standard input": (["-"], BODY),
        "prompt": (["-i"], runs + "\n"),
        "thread": (["-c", in_thread], ""),
        "loop": (["-c", in_loop], ""),
    }[how]
    assert "did (4, 4) [1, 2] 2" in python(arguments, given, tmp_path)


def test_a_thread_beside_a_running_loop_trains(on_threads: list[WatchedThreads]) -> None:
    """Signals cannot be handled there, and the loop of the main thread goes on meanwhile."""
    plan, found = partition(toy.network(), Cluster.local(1), batch=8), list[Any]()

    def work() -> None:
        assert threading.current_thread() is not threading.main_thread()
        found.append(train(plan, toy.data(24), driver=AllReduce(), epochs=1, show="nothing"))

    async def loop() -> None:
        await asyncio.to_thread(work)

    asyncio.run(loop())
    assert found[0].steps == (3,)


REPORT = Progress("part 0.0", 5, 8, {"loss": 8.0, "correct": 4})


class Kernel:
    """An IPython whose kernel shows outputs of a cell."""

    def __init__(self) -> None:
        self.shown: dict[str, list[str]] = {}
        self.kernel = self

    def display(self, data: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw and display_id not in self.shown
        self.shown[display_id] = [data["text/plain"]]

    def update_display(self, data: dict[str, str], *, raw: bool, display_id: str) -> None:
        self.shown[display_id].append(data["text/plain"])


def test_a_notebook_shows_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel, package = Kernel(), types.ModuleType("IPython")
    package.get_ipython = lambda: kernel  # type: ignore[attr-defined]
    package.display = kernel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    with Display("auto") as display:
        display.phase("starting 2 processes")
        display.follow(Metrics(20, done=(0,)))
        display.print_line("a line that stays")
        display.update(REPORT)
    ((first, last),) = kernel.shown.values()
    assert first == "starting 2 processes" and last.startswith("step 5/20  loss 1.0000  accuracy 0.500")
    assert capsys.readouterr() == ("a line that stays\n", "")
    with Display("lines") as display:  # as asked for: lines
        display.follow(Metrics(20, done=(0,)))
        display.update(REPORT)
    assert len(kernel.shown) == 1 and "step 5/20" in capsys.readouterr().err
