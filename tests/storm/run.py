"""A training, or evaluations, as a program: `python -m tests.storm.run FOLDER LIFE`. Given again, it goes on.

Writes events with their times (`CLOCK_MONOTONIC`, the same in all processes) to `events-LIFE`, one line of
JSON each, and at its end the parameters and what it says of itself.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from partita.engine import HostError, Pool, Run, evaluate, train
from partita.engine.launch.on import On
from partita.engine.launch.start import die_with_parent
from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpoint_messages import LostPushes, Save
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import Commit, EndRun, Progress, Restart
from partita.engine.protocol.events import Received, Send
from partita.engine.run.display import Display
from tests.faults.oracle import Oracle
from tests.storm import networks
from tests.storm.cells import Result, Spec, data_of, driver_of, epochs_of, plan_of

_NO_WORK: Final = (
    m.Hello, m.SetUpProgress, m.Ready, m.Heartbeat, m.DirectoryAck, m.WaitReport, m.Failed, m.ResumeStep,
    m.Refused, LostPushes,
)  # fmt: skip


class Events:
    """Appends events to a file, each by one call."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, **more: Any) -> None:
        os.write(self._file, msgspec.json.encode({"at": time.monotonic(), "what": what, **more}) + b"\n")


def watch(events: Events) -> None:
    """Writes down restarts, hosts that are ready and at work, checkpoints, progress and lines."""
    receive, print_line = Coordinator.receive, Display.print_line
    at_work: set[tuple[str, int]] = set()

    def watched(self: Coordinator, event: Any, now: float) -> Any:
        if isinstance(event, Received):
            host = event.sender, event.incarnation
            if isinstance(event.message, m.Ready):
                events.write("ready", host=host)
            elif host not in at_work and not isinstance(event.message, _NO_WORK):
                at_work.add(host)
                events.write("work", host=host, by=type(event.message).__name__)
        effects = receive(self, event, now)
        for effect in effects:
            if isinstance(effect, Restart):
                events.write("restart", hosts=effect.hosts, reason=effect.reason)
            elif isinstance(effect, Progress):
                events.write("progress", source=effect.source, step=effect.step)
            elif isinstance(effect, Send) and isinstance(effect.message, Save):
                events.write("saving", host=effect.to)
            elif isinstance(effect, Commit):
                events.write("committing")
            elif isinstance(effect, EndRun):
                events.write("ending")
        return effects

    def printed(self: Display, text: str) -> None:
        events.write("line", text=text)
        print_line(self, text)

    Coordinator.receive = watched  # type: ignore[method-assign]
    Display.print_line = printed  # type: ignore[method-assign]


def main() -> None:
    die_with_parent(os.getppid())
    folder, life = Path(sys.argv[1]), int(sys.argv[2])
    spec = msgspec.json.decode((folder / "spec.json").read_bytes(), type=Spec)
    events = Events(folder / f"events-{life}")
    events.write("imported")
    watch(events)
    if spec.counts:
        (folder / f"log-{life}").mkdir()
        Oracle.watching(folder / f"log-{life}")
    on: On | None = Pool(spec.pool, keys=spec.keys, workers=1) if spec.place == "pool" else None
    if spec.driver == "evaluate":
        evaluations(folder, spec, on, events)
    else:
        training(folder, spec, on)
    events.write("ended")


def evaluations(folder: Path, spec: Spec, on: On | None, events: Events) -> None:
    """Evaluates a network again and again, and appends what came of each time to a file."""
    plan, data = plan_of(spec), data_of(spec)
    run = Run(plan, networks.digits_start(plan, spec.seed))
    path = folder / "evaluations"
    done = path.read_text().count("\n") if path.exists() else 0
    while done < spec.length:
        try:
            found = evaluate(run, data, replicas=2, hosts=on or "processes", show="nothing")
        except HostError as error:  # a host that died several times
            events.write("line", text=f"evaluated in vain: {error}")
            continue
        with path.open("a") as file:
            file.write(f"{found.loss.hex()} {found.accuracy.hex()}\n")
        done += 1
        events.write("progress", source="coordinator", step=done)
    (folder / "result.json").write_bytes(msgspec.json.encode(Result(0, done)))


def training(folder: Path, spec: Spec, on: On | None) -> None:
    """Trains, and saves the parameters."""
    run = train(
        plan_of(spec),
        data_of(spec),
        driver=driver_of(spec),
        epochs=epochs_of(spec),
        initial=networks.counting_start() if spec.counts else None,
        checkpoints=folder / "checkpoints",
        checkpoint_every_s=spec.checkpoint_every_s,
        resume=True,
        show="lines",
        on=on,
    )
    run.save(folder / "result.safetensors")
    result = Result(run.lost_pushes, sum(run.steps) or run.iterations)
    (folder / "result.json").write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
