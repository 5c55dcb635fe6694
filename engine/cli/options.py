"""The options of the commands, by name: what each means is said once, here."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from typer import Argument, Option

from partita.engine.parameters.optimizers.options import SLOW

_DOWNPOUR: Final = "Downpour"
_SANDBLASTER: Final = "Sandblaster"


class Optimizers(StrEnum):
    """Optimizers by name."""

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
    SANDBLASTER = "sandblaster"


class Methods(StrEnum):
    """Batch methods by name."""

    LBFGS = "lbfgs"
    CG = "cg"
    DESCENT = "descent"


# What is planned

File: TypeAlias = Annotated[Path, Argument(help="Python file with network() and, for training, data().")]
Machines: TypeAlias = Annotated[int, Option(help="Machines of one replica.")]
Threads: TypeAlias = Annotated[int, Option(help="Kernel threads of each machine.")]
Batch: TypeAlias = Annotated[int, Option(help="Examples in a minibatch.")]
CutsByHand: TypeAlias = Annotated[
    list[str],
    Option(
        "--cut",
        help="A cut by hand, LAYER=MACHINE[,MACHINE...], for example hidden=0,1, hidden=0:3,1:5, "
        "pool=repeat:0,1, pool=halo:2:0,1, hidden=inputs:0,1, hidden=summed:0,1 or "
        "conv=tiles:2x2:0,1,2,3; may be given several times.",
    ),
]
Strategy: TypeAlias = Annotated[
    Literal["automatic", "balanced", "layers"],
    Option(help="What decides for layers that are not cut by hand."),
]
ClusterFile: TypeAlias = Annotated[
    Path | None,
    Option(
        "--cluster", help="TOML file that describes the machines; --machines and --threads are not used then."
    ),
]
MicroBatches: TypeAlias = Annotated[
    int | None,
    Option(help="Into how many portions a minibatch is divided. [default: the automatic strategy's; else 1]"),
]
Draw: TypeAlias = Annotated[Path | None, Option(help="Write the plan as an SVG picture.")]
Timeline: TypeAlias = Annotated[
    Path | None, Option(help="Write the timeline of the predicted step as an SVG picture.")
]
Programs: TypeAlias = Annotated[bool, Option(help="Print each machine's program.")]

# What is measured

MachineCounts: TypeAlias = Annotated[
    str | None,
    Option("--machines", help="Numbers of machines, with commas. [default: 1,2,4,8; or those of a cluster]"),
]
Described: TypeAlias = Annotated[
    Path | None, Option("--cluster", help="TOML file: simulates its first machines, and measures nothing.")
]
Uncalibrated: TypeAlias = Annotated[
    bool, Option("--uncalibrated", help="Predict by guessed rates; measure no kernels and no links before.")
]
Precision: TypeAlias = Annotated[
    Literal["float32", "float64", "bfloat16"], Option(help="Of states and errors.")
]
Steps: TypeAlias = Annotated[int, Option(help="Steps to measure of each plan.")]
TraceFile: TypeAlias = Annotated[
    Path | None, Option("--trace", help="Write what each machine did when, for https://ui.perfetto.dev.")
]
PageFile: TypeAlias = Annotated[Path | None, Option("--page", help="Write everything as a page of HTML.")]
JsonFile: TypeAlias = Annotated[Path | None, Option("--json", help="Write the numbers as JSON.")]
Forget: TypeAlias = Annotated[bool, Option("--forget", help="Delete all that calibrations have measured.")]

# How it is trained

Driver: TypeAlias = Annotated[Drivers, Option(help="How replicas and shards work together.")]
Replicas: TypeAlias = Annotated[int, Option(help="Copies of the network, which compute side by side.")]
Shards: TypeAlias = Annotated[int, Option(help="Servers among which the parameters are divided.")]
PushEvery: TypeAlias = Annotated[
    int | None,
    Option(
        help="Steps (or portions, under sandblaster) from one push of gradients to the next. "
        "[default: 1; sandblaster: up to 4]"
    ),
]
Seed: TypeAlias = Annotated[int, Option(help="Of the first parameters and the order of the examples.")]
Listen: TypeAlias = Annotated[str | None, Option(help="The coordinator's endpoint, tcp://127.0.0.1:PORT.")]

# Of Downpour, also where it comes before a batch method. What is not given by hand is None.

OptimizerName: TypeAlias = Annotated[
    Optimizers | None,
    Option(help="What a shard does with a gradient. [default: adagrad]", rich_help_panel=_DOWNPOUR),
]
LearningRate: TypeAlias = Annotated[
    float | None,
    Option(help=f"Learning rate. [default: 0.05; {', '.join(SLOW)}: 0.001]", rich_help_panel=_DOWNPOUR),
]
MomentumKept: TypeAlias = Annotated[
    float | None,
    Option(help="How much of a velocity is kept; for momentum, rmsprop and lars.", rich_help_panel=_DOWNPOUR),
]
WeightDecay: TypeAlias = Annotated[
    float | None, Option(help="Weight decay, 0 or above.", rich_help_panel=_DOWNPOUR)
]
ClipNorm: TypeAlias = Annotated[
    float | None,
    Option(help="Scale a step's gradient down to this norm where it is larger.", rich_help_panel=_DOWNPOUR),
]
Schedule: TypeAlias = Annotated[
    str | None,
    Option(
        help="How the rate changes with the updates of a shard: step:EVERY[:FACTOR], "
        "exponential:STEPS:FACTOR, inverse:STEPS[:POWER], cosine:STEPS[:END], warmup:STEPS, or "
        "warmup:STEPS,OTHER.",
        rich_help_panel=_DOWNPOUR,
    ),
]
Epochs: TypeAlias = Annotated[
    int | None, Option(help="Passes over the data. [default: 10]", rich_help_panel=_DOWNPOUR)
]
FetchEvery: TypeAlias = Annotated[
    int | None,
    Option(help="Steps from one fetch of parameters to the next. [default: 1]", rich_help_panel=_DOWNPOUR),
]
Overlap: TypeAlias = Annotated[
    int | None,
    Option(
        help="Minibatches of a step, one after another through the machines of a horizontal cut. "
        "[default: 1]",
        rich_help_panel=_DOWNPOUR,
    ),
]

# Of Sandblaster

Method: TypeAlias = Annotated[
    Methods | None,
    Option(
        help="What is done with values and gradients: L-BFGS, conjugate gradients, gradient descent. "
        "[default: lbfgs]",
        rich_help_panel=_SANDBLASTER,
    ),
]
History: TypeAlias = Annotated[
    int | None, Option(help="Pairs that L-BFGS keeps. [default: 10]", rich_help_panel=_SANDBLASTER)
]
MaxIterations: TypeAlias = Annotated[
    int | None, Option(help="Never more than these. [default: 1000]", rich_help_panel=_SANDBLASTER)
]
GTol: TypeAlias = Annotated[
    float | None,
    Option(
        "--gtol",
        help="Done when no number in the gradient is larger. [default: 1e-5]",
        rich_help_panel=_SANDBLASTER,
    ),
]
FTol: TypeAlias = Annotated[
    float | None,
    Option(
        "--ftol",
        help="Done when an iteration lowers the loss by no more than this part. [default: 2.2e-9]",
        rich_help_panel=_SANDBLASTER,
    ),
]
L2: TypeAlias = Annotated[
    float | None,
    Option("--l2", help="Adds L2 / 2 * |x|^2 to the mean loss. [default: 0]", rich_help_panel=_SANDBLASTER),
]
Portion: TypeAlias = Annotated[
    int | None,
    Option(
        help="Examples that a replica computes in one step. [default: --batch]",
        rich_help_panel=_SANDBLASTER,
    ),
]
Sample: TypeAlias = Annotated[
    int | None,
    Option(help="Examples in a sampled batch. [default: all of the data]", rich_help_panel=_SANDBLASTER),
]
OverlapShare: TypeAlias = Annotated[
    float | None,
    Option(
        help="What part of a sampled batch the next one shares, at most 0.5. [default: 0.25]",
        rich_help_panel=_SANDBLASTER,
    ),
]
Backups: TypeAlias = Annotated[
    bool | None,
    Option(
        "--backups/--no-backups",
        help="Whether what others still owe at the end of a batch is handed out twice. [default: backups]",
        rich_help_panel=_SANDBLASTER,
    ),
]
WarmEpochs: TypeAlias = Annotated[
    int | None,
    Option(help="Epochs of Downpour that come first. [default: none]", rich_help_panel=_SANDBLASTER),
]

# What is kept

Checkpoints: TypeAlias = Annotated[
    Path | None, Option(help="Folder for checkpoints. [default: FILE's name with .checkpoints]")
]
CheckpointEvery: TypeAlias = Annotated[float, Option(help="Seconds from one checkpoint to the next.")]
CheckpointTimeout: TypeAlias = Annotated[
    float, Option(help="Seconds without progress after which the writing of a checkpoint is given up.")
]
StartTimeout: TypeAlias = Annotated[
    float, Option(help="Seconds that a process may take to start without a sign of life.")
]
InstructionTimeout: TypeAlias = Annotated[
    float, Option(help="Seconds that one computation of a part may take.")
]
Resume: TypeAlias = Annotated[bool, Option(help="Go on from the newest checkpoint in the folder.")]
Overwrite: TypeAlias = Annotated[bool, Option(help="Replace the earlier run in the folder.")]
Save: TypeAlias = Annotated[Path | None, Option(help="Write the parameters as a safetensors file.")]
