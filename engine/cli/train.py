"""The command `partita train`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from typer import Option as TyperOption

from partita.engine.cli import drivers
from partita.engine.cli.fields import ByHand, Option, command, options_of, values_of
from partita.engine.cli.loading import UserFile
from partita.engine.cli.output import terminal_width
from partita.engine.cli.planning import File, Machines, Planning
from partita.engine.launch.on import On, OnOptions, begin, end, on_of
from partita.engine.parameters.files import check_target
from partita.engine.run.caller import Caller
from partita.engine.run.data import Data
from partita.engine.run.evaluate import evaluate
from partita.engine.run.loggers import CSVLog, JSONLinesLog, TensorBoardLog
from partita.engine.run.loggers.figures import Logger
from partita.engine.run.minibatches import minibatches_of
from partita.engine.run.run import Run
from partita.engine.run.train import train_as
from partita.engine.run.train_arguments import TrainArguments
from partita.layers.text import counted
from partita.partitioner.plan import Plan
from partita.partitioner.table import plan_table

RUN: Final = (
    *options_of(
        TrainArguments,
        "seed",
        "checkpoints",
        "checkpoint_every_s",
        "checkpoint_timeout_s",
        "start_timeout_s",
        "instruction_timeout_s",
        "resume",
        "overwrite",
        "initial",
        "listen",
        "max_steps",
        "validate_every",
        "watch",
        "page",
        "save_page",
        checkpoints="Folder or URL for checkpoints; FILE's name with .checkpoints if not given.",
    ),
    Option("max_s", "max_s", (TrainArguments,)),
)

Logs: TypeAlias = Annotated[
    list[str] | None,
    TyperOption(help="Write figures: csv:FILE, jsonl:FILE or tensorboard:FOLDER."),
]
Validation: TypeAlias = Annotated[bool, TyperOption(help="Evaluate the held-out data during the run.")]

DataPattern: TypeAlias = Annotated[
    str | None,
    TyperOption("--data", help="Files to train on, as 'shards/*.npz', in the place of the file's data()."),
]
HeldOut: TypeAlias = Annotated[str | None, TyperOption(help="Files to hold out, likewise.")]

_LOGGERS: Final[Mapping[str, Callable[[str], Logger]]] = {
    "csv": CSVLog,
    "jsonl": JSONLinesLog,
    "tensorboard": TensorBoardLog,
}


@command(driver=drivers.OPTIONS, run=RUN)
def train(
    file: File,
    machines: Machines = 2,
    *,
    planning: Planning,
    driver: ByHand,
    run: ByHand,
    place: OnOptions,
    data: DataPattern = None,
    held_out: HeldOut = None,
    validation: Validation = False,
    log: Logs = None,
    save: Annotated[Path | None, TyperOption(help="Write the parameters as a safetensors file.")] = None,
) -> None:
    """Trains the network on processes of this machine, or on other machines."""
    with used(place) as on:
        watch = Watch(validation, tuple(map(logger, log or ())))
        settings: Any = {"planning": planning, "driver": driver, "run": run, "watch": watch, "save": save}
        train_on(on, file, machines, patterns=Patterns(data, held_out), **settings)


@dataclass(frozen=True)
class Watch:
    """The options about what is evaluated and written in the course of a run."""

    validates: bool
    loggers: tuple[Logger, ...]


@dataclass(frozen=True)
class Patterns:
    """The options that name files of data."""

    data: str | None
    held_out: str | None

    def found(self, users: UserFile) -> tuple[Data, Data | None]:
        """Returns the data to train on, and to hold out: of files, or else of the user's `data()`."""
        if self.data is not None:
            return self.data, self.held_out
        data, held_out = users.data()
        return data, held_out if self.held_out is None else self.held_out


def logger(text: str) -> Logger:
    """Makes the logger that `--log` names. Raises ValueError."""
    kind, _, place = text.partition(":")
    if kind not in _LOGGERS or not place:
        raise ValueError(f"--log is {text!r}; give csv:FILE, jsonl:FILE or tensorboard:FOLDER")
    return _LOGGERS[kind](place)


@contextmanager
def used(place: OnOptions) -> Iterator[On | None]:
    """Yields where hosts are started, while a command lasts; a process that serves another one ends here."""
    if place.on is None:
        yield None
        return
    on = on_of(place.on, place, what="--on is")
    begin(on)
    try:
        yield on
    finally:
        end(on)


def train_on(
    on: On | None,
    file: Path,
    machines: int,
    *,
    planning: Planning,
    driver: ByHand,
    run: ByHand,
    watch: Watch,
    patterns: Patterns,
    save: Path | None,
) -> None:
    """Trains, and reports what it has come to."""
    users = UserFile.load(file)
    settings, epochs = drivers.make_driver(driver, users.driver())
    if planning.micro_batches is None and getattr(settings, "overlap", 1) > 1:
        # Whole minibatches overlap, unless both are asked for.
        planning = replace(planning, micro_batches=1)
    plan = planning.plan(users.network(), machines)
    data, held_out = patterns.found(users)
    check_end(plan, held_out, save)
    print(plan_table(plan, width=terminal_width()), flush=True)
    if watch.validates and held_out is None:
        raise ValueError(
            "--validation needs held-out data; give --held-out, or let data() of the file return "
            "(data, held_out)"
        )
    given = {"checkpoints": f"{file.stem}.checkpoints", **values_of(RUN, run), "callbacks": watch.loggers}
    given |= {"validation": held_out} if watch.validates else {}
    if on is not None:
        given["on"] = on
    caller = Caller.of_command(["partita", *sys.argv[1:]])
    trained = train_as(caller, TrainArguments(plan, data, driver=settings, epochs=epochs, **given))
    report(trained, held_out, save)


def check_end(plan: Plan, held_out: Data | None, save: Path | None) -> None:
    """Checks the inputs of the steps after the training: a mistake there must not cost the whole run."""
    if held_out is not None:
        try:
            with minibatches_of(plan, held_out, targets=True):
                pass
        except ValueError as mistake:
            raise ValueError(f"held-out data: {mistake}") from mistake
    if save is not None:
        check_target(save)


def report(run: Run, held_out: Data | None, save: Path | None) -> None:
    """Prints the last lines of a training."""
    done = [f"{counted(sum(run.steps), 'step')}"] if run.steps else []
    done += [f"{counted(run.iterations, 'iteration')}"] if run.outcome is not None else []
    print(f"trained {' and '.join(done)} in {run.seconds:.1f} s; checkpoint: {run.checkpoint}")
    if run.lost_pushes:
        print(f"failures cost {counted(run.lost_pushes, 'push', 'pushes')}")
    if save is not None:
        print(f"saved: {run.save(save)}")
    if held_out is not None:
        print(f"held-out: {evaluate(run, held_out)}")
