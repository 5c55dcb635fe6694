"""The measurements of `single_part`: which network, which players, and by what factor ours should be
faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks._worker import Worker, threads_of

TUNED: Final = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 40)}
"""For glibc: memory that is freed stays with the process, so that no step asks the kernel for fresh pages."""

AGREE: Final = {"float32": 1e-4, "bfloat16": 1e-2, "autocast": 1e-2}
"""By how much losses may differ, relatively: a player's, or that of "float32" for all others."""


@dataclass(frozen=True)
class Player:
    """The player of the steps: one of ours or PyTorch, in some form.

    Args:
        module: the process.
        form: what it takes as such: a precision, or a form of PyTorch.
        environment: on top of this process's.
    """

    module: str
    form: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, folder: Path, threads: int, *, most: int = 1) -> Worker:
        """The process, for the recipe in a folder, with so many threads; later with up to `most`."""
        steering = threads_of(max(threads, most)) if self.module == "_torch_player" else {}
        environment = {**steering, **self.environment}
        return Worker(self.module, str(folder), self.form, str(threads), environment=environment)


@dataclass(frozen=True)
class Claim:
    """Ours is at least so many times as fast as theirs.

    Args:
        theirs: a player's name.
        at_least: the factor.
        ours: our player's name, which is its precision.
    """

    theirs: str
    at_least: float
    ours: str = "float32"


@dataclass(frozen=True)
class Group:
    """Players that train one network with one batch, and what is claimed of them.

    Args:
        title: what rows are called.
        network: its name.
        batch: examples in it.
        theirs: PyTorch's players by name. The first says what the losses must be.
        claims: of speed, with one thread and with two.
        memory: our player and the one of PyTorch whose peak of memory it should not exceed.
        agree: by how much a player's losses may differ from the first's, relatively.
        layer: the share of the machine's rate that our kernels of the first layer should reach, if any.
    """

    title: str
    network: str
    batch: int
    theirs: Mapping[str, Player]
    claims: tuple[Claim, ...]
    memory: tuple[tuple[str, str], ...]
    agree: Mapping[str, float] = field(default_factory=lambda: AGREE)
    layer: float | None = None

    @property
    def players(self) -> dict[str, Player]:
        """All of them by name: PyTorch's, then ours, each once."""
        ours = dict.fromkeys(claim.ours for claim in self.claims)
        return {**self.theirs, **{name: Player("_partita_player", name) for name in ours}}


def _torch(*forms: str, tuned: str | None = None) -> dict[str, Player]:
    """Players of these forms, and one of them once more with an allocator that keeps its pages."""
    players = {form: Player("_torch_player", form) for form in forms}
    if tuned is not None:
        players[f"{tuned}, tuned"] = Player("_torch_player", tuned, TUNED)
    return players


def _first(batch: int) -> Group:
    return Group(
        f"first image layer, batch {batch}",
        "first",
        batch,
        _torch("view", "rows", "einsum", tuned="view"),
        (Claim("view", 5.0), Claim("view, tuned", 5.0), Claim("rows", 5.0), Claim("einsum", 15.0)),
        (("float32", "view"),),
        layer=0.6,
    )


def _modules(title: str, network: str, batch: int = 32) -> Group:
    claims = (Claim("eager", 1.0), Claim("compile", 1.0))
    players, memory = _torch("eager", "compile"), (("float32", "eager"),)
    return Group(f"{title}, batch {batch}", network, batch, players, claims, memory)


GROUPS: Final = {
    "speech-128": Group(
        "speech, batch 128",
        "speech",
        128,
        _torch("eager", "compile", "autocast"),
        (
            Claim("eager", 1.15),
            Claim("compile", 1.15),
            Claim("autocast", 2.0, "bfloat16"),
            Claim("eager", 3.5, "bfloat16"),
        ),
        (("float32", "eager"), ("bfloat16", "autocast")),
    ),
    "speech-32": Group(
        "speech, batch 32",
        "speech",
        32,
        _torch("eager", tuned="eager"),
        (Claim("eager", 1.15), Claim("eager, tuned", 1.15)),
        (("float32", "eager"),),
    ),
    "first-8": _first(8),
    "first-32": _first(32),
    "first-128": _first(128),
    "image": Group(
        "three-stage image network, batch 32",
        "image",
        32,
        _torch("view", "rows", tuned="view"),
        (Claim("view", 4.0), Claim("view, tuned", 4.0), Claim("rows", 4.0)),
        (("float32", "view"),),
    ),
    "caltech": Group(
        "convolutional network, batch 32",
        "caltech",
        32,
        _torch("eager", "channels-last"),
        (Claim("eager", 1.0), Claim("channels-last", 1.0)),
        (("float32", "eager"),),
    ),
    "perceptron": Group(
        "perceptron 64-128-10, batch 32",
        "perceptron",
        32,
        _torch("eager"),
        (Claim("eager", 2.0),),
        (("float32", "eager"),),
    ),
    "transformer": _modules("transformer block", "transformer"),
    "lstm": _modules("LSTM", "lstm"),
    "words": _modules("embedding model", "words"),
    "resnet": _modules("ResNet-18 by from_torch", "resnet", 8),
    "gpt2": _modules("GPT-2 by from_torch", "gpt2", 8),
}
"""By the name that `--rows` takes."""
