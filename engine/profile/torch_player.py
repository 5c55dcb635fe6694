"""A process of PyTorch that trains a module: in eager mode, or as one of two under a pipeline or a mesh.

It reads a line of JSON with the fields of `Start`, then a number of steps in each line, and answers each with
a line of JSON. What the module prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from partita.engine.profile.torch_cuts import first_line, staged
from partita.engine.pytorch.results import loss_of

PARTS: Final = 2


@dataclass(frozen=True)
class TorchJob:
    """A module and the minibatch with which all processes train it.

    Args:
        module: in training, with its first numbers.
        inputs: of a minibatch, in the order of the module's arguments.
        target: of the loss; None where the module returns its own.
        loss: "cross-entropy", "squared-error", or "" for the module's own.
        learning_rate: of SGD.
        split: path of the part with which the second stage begins.
        micro_batches: of the pipeline.
        pairs: linear layers that are cut by outputs, and by inputs.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor | None
    loss: str
    learning_rate: float
    split: str = ""
    micro_batches: int = 1
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def micro_batch(self) -> tuple[torch.Tensor, ...]:
        """The inputs of the first micro-batch."""
        return tuple(one.chunk(self.micro_batches)[0] for one in self.inputs)

    def loss_of(self, output: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        """The mean loss of the examples."""
        if not self.loss or target is None:
            return loss_of(output)
        if self.loss == "cross-entropy":
            return functional.cross_entropy(output.flatten(0, -2), target.flatten())
        return (output - target).square().sum() / (2 * len(output))


@dataclass(frozen=True)
class Start:
    """The first line of a process.

    Args:
        job: file with a `TorchJob`.
        form: "eager", "pipelining" or "tensor parallelism".
        threads: of the process.
        rank: which of the two processes, if there are two.
        meeting: file by which they find one another.
        path: where modules are imported from.
    """

    job: str
    form: str
    threads: int
    rank: int
    meeting: str
    path: list[str]


class Player(ABC):
    """Plays steps in eager mode, in one process or its part of two."""

    last = 0
    """The rank that knows the loss."""

    def __init__(self, job: TorchJob, rank: int) -> None:
        self.job, self.rank = job, rank

    @abstractmethod
    def step(self) -> float:
        """Plays a step; returns the loss, if this is the last rank."""

    def meet(self) -> None:
        """Waits until the other process is as far."""
        dist.barrier()

    def steps(self, count: int) -> dict[str, object]:
        """Plays steps; returns the seconds and the loss of each."""
        seconds, losses = [], []
        for _ in range(count):
            self.meet()
            began = time.perf_counter()
            losses.append(self.step())
            self.meet()
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds, "losses": losses if self.rank == self.last else None}


class Eager(Player):
    """All of it in one process."""

    def __init__(self, job: TorchJob, rank: int) -> None:
        super().__init__(job, rank)
        self._optimiser = torch.optim.SGD(job.module.parameters(), lr=job.learning_rate, fused=True)

    def meet(self) -> None:
        """There is no other process."""

    def step(self) -> float:
        """Plays one step of training."""
        self._optimiser.zero_grad()
        loss = self.job.loss_of(self.job.module(*self.job.inputs), self.job.target)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return float(loss.item())


class Pipelined(Player):
    """A stage of two, by the schedule of one forward and one backward pass in turn."""

    last = PARTS - 1

    def __init__(self, job: TorchJob, rank: int) -> None:
        super().__init__(job, rank)
        pipe = staged(job.module, job.micro_batch, job.split)
        stage = pipe.build_stage(rank, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, job.micro_batches, loss_fn=job.loss_of)
        own = [one for one in stage.submod.parameters() if one.requires_grad]
        self._optimiser = torch.optim.SGD(own, lr=job.learning_rate, fused=True)

    def step(self) -> float:
        """Plays one step of training."""
        losses: list[torch.Tensor] = []
        self._optimiser.zero_grad()
        if self.rank == 0:
            self._schedule.step(*self.job.inputs)
        else:
            self._schedule.step(target=self._target, losses=losses)
        self._optimiser.step()
        return float(torch.stack(losses).mean().item()) if losses else 0.0

    @property
    def _target(self) -> torch.Tensor:
        """The target; where the module returns its own loss, what is divided in its place."""
        return self.job.inputs[0] if self.job.target is None else self.job.target


class TensorParallel(Player):
    """Half of each pair of linear layers, and all of the rest."""

    def __init__(self, job: TorchJob, rank: int) -> None:
        super().__init__(job, rank)
        styles = {path: style for pair in job.pairs for path, style in zip(pair, _STYLES, strict=True)}
        mesh = init_device_mesh("cpu", (PARTS,))
        self._module = parallelize_module(job.module, mesh, {name: make() for name, make in styles.items()})
        # A fused update knows no DTensor, so it sees each process's own rows, in the same memory.
        given = list(self._module.parameters())
        self._cut = [one for one in given if isinstance(one, DTensor)]
        self._own = [nn.Parameter(one.to_local().detach()) for one in self._cut]
        whole = [one for one in given if not isinstance(one, DTensor)]
        self._optimiser = torch.optim.SGD([*self._own, *whole], lr=job.learning_rate, fused=True)

    def step(self) -> float:
        """Plays one step of training."""
        self._module.zero_grad()
        loss = self.job.loss_of(self._module(*self.job.inputs), self.job.target)
        loss.backward()  # type: ignore[no-untyped-call]
        for cut, own in zip(self._cut, self._own, strict=True):
            if isinstance(cut.grad, DTensor):
                own.grad = cut.grad.to_local()
        self._optimiser.step()
        return float(loss.item())


_STYLES: Final = (ColwiseParallel, RowwiseParallel)

FORMS: Final[dict[str, type[Player]]] = {
    "eager": Eager,
    "pipelining": Pipelined,
    "tensor parallelism": TensorParallel,
}


def main() -> None:
    """Plays what standard input asks for, until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answered(make: Callable[[], dict[str, Any]]) -> bool:
        try:
            found = make()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side reports it
            traceback.print_exc()
            found = {"error": first_line(error)}
        print(json.dumps(found), file=answers, flush=True)
        return "error" not in found

    players: list[Player] = []
    start = Start(**json.loads(sys.stdin.readline()))

    def begin() -> dict[str, Any]:
        players.append(_player(start))
        return {}

    if answered(begin):
        for line in sys.stdin:
            if not answered(lambda line=line: players[0].steps(int(line))):  # type: ignore[misc]
                return


def _player(start: Start) -> Player:
    sys.path[:] = start.path
    torch.set_num_threads(start.threads)
    job: TorchJob = pickle.loads(Path(start.job).read_bytes())
    if start.form != "eager":
        meeting = Path(start.meeting).as_uri()
        dist.init_process_group("gloo", init_method=meeting, rank=start.rank, world_size=PARTS)
    return FORMS[start.form](job, start.rank)


if __name__ == "__main__":
    main()
