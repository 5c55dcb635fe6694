"""The command `partita`: what a plan looks like, and training, for a file that declares a network and its
data.

The file is ordinary Python with a function `network()`, and for training `data()`: a dictionary of arrays by
the names of inputs and targets, or two of them, to train on and to hold out.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import cloudpickle
import typer
from rich.console import Console

from partita import layers, partitioner
from partita.engine.drivers.data import Data, check_data
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.evaluate import evaluate
from partita.engine.drivers.interrupt import Interrupted
from partita.engine.drivers.run import Run
from partita.engine.drivers.step import HostError
from partita.engine.drivers.supervisor import RunFailed
from partita.engine.drivers.train import train
from partita.engine.kernels.products import calibration, calibration_table
from partita.engine.parameters.files import check_target
from partita.engine.parameters.rules.options import SLOW, make_rule
from partita.layers.network import Network
from partita.partitioner.cluster import Cluster
from partita.partitioner.cut_text import parse_cut
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan

app = typer.Typer(
    help="One network, played in parts: train neural networks cut over several machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Rules(StrEnum):
    """Update rules by name."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"
    ADAM = "adam"
    ADAMW = "adamw"
    LARS = "lars"


class Drivers(StrEnum):
    """Drivers by name."""

    DOWNPOUR = "downpour"


File = Annotated[Path, typer.Argument(help="Python file with network() and, for training, data().")]
Machines = Annotated[int, typer.Option(help="Machines of one replica.")]
Threads = Annotated[int, typer.Option(help="Kernel threads of each machine.")]
Batch = Annotated[int, typer.Option(help="Examples in a minibatch.")]
CutOption = Annotated[
    list[str],
    typer.Option(
        "--cut",
        help="A cut by hand, LAYER=MACHINE[,MACHINE...], for example hidden=0,1, hidden=0:3,1:5, "
        "pool=repeat:0,1, pool=margin:2:0,1, hidden=inputs:0,1 or hidden=summed:0,1; may be given several "
        "times.",
    ),
]


@app.command()
def plan(
    file: File,
    machines: Machines = 2,
    threads: Threads = 1,
    batch: Batch = 32,
    cut: CutOption = [],  # noqa: B006 - typer reads the default once
    draw: Annotated[Path | None, typer.Option(help="Write the plan as an SVG picture.")] = None,
    programs: Annotated[bool, typer.Option(help="Print each machine's program.")] = False,
) -> None:
    """Who owns what, which messages follow, and the predicted step."""
    with one_sentence_each():
        module = load_module(file)
        found = make_plan(module, file, machines=machines, threads=threads, batch=batch, cuts=cut)
        print(found)
        if programs:
            for machine, program in zip(found.cluster.machines, found.programs, strict=True):
                print(f"\nprogram of {machine.name}:\n{program}")
        if draw is not None:
            print(f"\ndrawn: {found.draw(draw)}")


@app.command(name="train")
def train_command(
    file: File,
    machines: Machines = 2,
    threads: Threads = 1,
    batch: Batch = 32,
    cut: CutOption = [],  # noqa: B006
    driver: Annotated[
        Drivers, typer.Option(help="How replicas and shards work together.")
    ] = Drivers.DOWNPOUR,
    replicas: Annotated[
        int, typer.Option(help="Copies of the network, each with its share of the data.")
    ] = 1,
    shards: Annotated[int, typer.Option(help="Servers among which the parameters are divided.")] = 1,
    rule: Annotated[Rules, typer.Option(help="What a shard does with a gradient.")] = Rules.ADAGRAD,
    rate: Annotated[
        float | None, typer.Option(help=f"Learning rate. [default: 0.05; {', '.join(SLOW)}: 0.001]")
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="How much of a velocity is kept; for momentum, rmsprop and lars.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay, 0 or above.")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Scale a step's gradient down to this norm where it is larger.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="How the rate changes with the updates of a shard: step:EVERY[:FACTOR], "
            "exponential:STEPS:FACTOR, inverse:STEPS[:POWER], cosine:STEPS[:END], warmup:STEPS, or "
            "warmup:STEPS,OTHER."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 10,
    fetch_every: Annotated[int, typer.Option(help="Steps from one fetch of parameters to the next.")] = 1,
    push_every: Annotated[int, typer.Option(help="Steps from one push of gradients to the next.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first parameters and the order of the examples.")] = 0,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints. [default: FILE's name with .checkpoints]")
    ] = None,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds from one checkpoint to the next.")] = 30.0,
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint in the folder.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the parameters as a safetensors file.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="The coordinator's endpoint, tcp://127.0.0.1:PORT.")
    ] = None,
) -> None:
    """Trains the network on processes of this machine."""
    with one_sentence_each():
        module = load_module(file)
        found = make_plan(module, file, machines=machines, threads=threads, batch=batch, cuts=cut)
        settings = Downpour(
            replicas=replicas,
            shards=shards,
            rule=make_rule(
                rule.value,
                rate,
                schedule=schedule,
                momentum=momentum,
                weight_decay=weight_decay,
                clip_norm=clip_norm,
            ),
            fetch_every=fetch_every,
            push_every=push_every,
        )
        training, held_out = split_data(call(module, file, "data"), file)
        check_end(found, held_out, save)
        print(found, flush=True)
        run = train(
            found,
            training,
            driver=settings,
            epochs=epochs,
            seed=seed,
            checkpoints=checkpoints or Path(f"{file.stem}.checkpoints"),
            checkpoint_every_s=checkpoint_every,
            resume=resume,
            listen=listen,
        )
        report(run, held_out, save)


@app.command()
def kernels(
    forget: Annotated[bool, typer.Option("--forget", help="Delete what was measured.")] = False,
) -> None:
    """What was measured of kernels on this machine, and what is used."""
    with one_sentence_each():
        if forget:
            print("forgotten" if calibration.forget() else "nothing was remembered")
            return
        if (trouble := calibration.trouble()) is not None:
            print(trouble)
        print(calibration.signature())
        Console().print(calibration_table.table(calibration.measured()))


def check_end(plan: Plan, held_out: Data | None, save: Path | None) -> None:
    """What follows the training is looked at before it: a mistake there must not cost the whole run."""
    if held_out is not None:
        try:
            check_data(plan.graph, held_out, targets=True, precision=plan.precision)
        except ValueError as mistake:
            raise ValueError(f"held-out data: {mistake}") from mistake
    if save is not None:
        check_target(save)


def report(run: Run, held_out: Data | None, save: Path | None) -> None:
    """The last lines of a training."""
    print(f"trained {sum(run.steps)} steps in {run.seconds:.1f} s; checkpoint: {run.checkpoint}")
    if run.lost_pushes:
        print(f"failures cost {run.lost_pushes} pushes")
    if save is not None:
        print(f"saved: {run.save(save)}")
    if held_out is not None:
        print(f"held-out: {evaluate(run, held_out)}")


def make_plan(
    module: ModuleType, file: Path, *, machines: int, threads: int, batch: int, cuts: list[str]
) -> Plan:
    """The plan of the file's network."""
    network = call(module, file, "network")
    if not isinstance(network, Network):
        raise ValueError(
            f"network() in {file} returns a {type(network).__name__}; return a partita.layers.Network"
        )
    by_hand = dict(parse_cut(written) for written in cuts)
    return partition(network, Cluster.local(machines=machines, threads=threads), batch=batch, cuts=by_hand)


def split_data(given: Any, file: Path) -> tuple[Data, Data | None]:
    """What `data()` returned: a dictionary, or a pair of them."""
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise ValueError(f"data() in {file} returns {len(given)} things; return one dictionary, or two")
        return given[0], given[1]
    return given, None


def call(module: ModuleType, file: Path, name: str) -> Any:
    """What a function of the file returns."""
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{file} has no function {name}(); define one")
    with users_code(file, f"{name}()"):
        return function()


def load_module(file: Path) -> ModuleType:
    """Runs the file as a module. Its functions travel to hosts by value, so hosts need not find the file."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}; give the path of a Python file with network()")
    spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    with users_code(file, "the file"):
        spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


class UserCodeError(Exception):
    """The user's own code raised: one sentence, and the traceback from the user's first line on as note."""


@contextmanager
def users_code(file: Path, what: str) -> Iterator[None]:
    """An error of the user's code is told with the user's own lines, and not with ours above them."""
    try:
        yield
    except SyntaxError as error:
        raise UserCodeError(f"{error.filename}, line {error.lineno}: {error.msg}; correct it") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [n for n, frame in enumerate(frames) if Path(frame.filename) == file.resolve()]
        where = f"{file}, line {frames[own[-1]].lineno}" if own else str(file)
        told = UserCodeError(f"{where}: {what} raised {type(error).__name__}: {error}")
        if is_ours(frames[-1].filename) and isinstance(error, ValueError | TypeError):
            told = UserCodeError(
                f"{where}: {error}"
            )  # a mistake in a declaration, which says itself what to do
        else:
            told.add_note("".join(traceback.format_list(frames[own[0] if own else 0 :])).rstrip())
        raise told from error


def is_ours(filename: str) -> bool:
    """Whether a file belongs to the rooms in which networks are declared and cut."""
    found = Path(filename).resolve()
    return any(found.is_relative_to(Path(room.__path__[0]).resolve()) for room in (layers, partitioner))


@contextmanager
def one_sentence_each() -> Iterator[None]:
    """What goes wrong ends the command with one sentence and a non-zero exit. Tracebacks are the user's."""
    failure: BaseException
    try:
        yield
    except Interrupted as stopped:
        code, failure = 130, stopped
    except KeyboardInterrupt:
        code, failure = (
            130,
            KeyboardInterrupt("stopped at once; the last checkpoint, if there was one, is kept"),
        )
    except (HostError, RunFailed, UserCodeError, ValueError, OSError) as error:
        code, failure = 1, error
    else:
        return
    for note in getattr(failure, "__notes__", ()):
        print(note, file=sys.stderr)
    print(f"partita: {failure}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """Runs the command."""
    app()


if __name__ == "__main__":
    main()
