"""A module trained by PyTorch's own means on two processes, beside its network on one machine and two."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import cloudpickle
import numpy as np
import torch
from torch import nn

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.optimizers import SGD
from partita.engine.profile.beside import Beside
from partita.engine.profile.measure import RATE, SEED, WARM_UP, drawn_batch
from partita.engine.profile.profile import Profile
from partita.engine.profile.torch_cuts import linear_pairs, split_point
from partita.engine.profile.torch_group import TorchFailed, TorchGroup
from partita.engine.profile.torch_player import PARTS, TorchJob
from partita.engine.pytorch.from_torch import in_training
from partita.engine.pytorch.torch_module import TorchModule
from partita.engine.run.phases import OnPhase, silent
from partita.engine.run.session import Hosts, Session
from partita.layers.text import counted
from partita.partitioner.plan import Plan

ROUNDS: Final = 5
TURN_S: Final = 0.25
"""Seconds of a turn, unless a step takes longer."""
MOST: Final = 50
"""Steps of a turn."""
MICRO_BATCHES: Final = 4

Play = Callable[[int], tuple[Sequence[float], Sequence[float]]]
"""Plays steps; returns the seconds and the loss of each."""


@dataclass
class _Way:
    """A way to train the module.

    Args:
        name: of the way.
        start: begins it; raises TorchFailed where it cannot be run.
        note: how the module is cut, or why it cannot be.
    """

    name: str
    start: Callable[[ExitStack], Play]
    note: str = ""
    loss: float = 0.0
    steps: int = 1
    seconds: list[float] = field(default_factory=list)
    _play: Play | None = None

    def begin(self, stack: ExitStack) -> bool:
        """Starts its processes and plays the first steps, which are not counted; whether it can be run."""
        try:
            self._play = self.start(stack)
            seconds, losses = self._play(WARM_UP)
        except TorchFailed as error:
            self.note = str(error)
            return False
        self.loss, self.steps = losses[0], min(max(round(TURN_S / seconds[-1]), 1), MOST)
        return True

    def turn(self) -> None:
        """Plays a turn: its figure is the median of the steps without the first."""
        assert self._play is not None
        self.seconds.append(statistics.median(self._play(1 + self.steps)[0][1:]))

    def over(self, eager: _Way) -> Beside:
        """Returns the figures, over those of PyTorch's eager mode."""
        if not self.seconds:
            return Beside(self.name, note=self.note)
        gains = [theirs / own for theirs, own in zip(eager.seconds, self.seconds, strict=True)]
        figures = statistics.median(self.seconds), statistics.median(gains), min(gains), max(gains)
        return Beside(self.name, *figures, self.loss, self.note)


def beside_torch(
    given: TorchModule,
    profile: Profile,
    *,
    rounds: int = ROUNDS,
    hosts: Hosts = "processes",
    on_phase: OnPhase = silent,
) -> tuple[Beside, ...]:
    """Measures PyTorch's eager mode, pipelining and tensor parallelism beside our one machine and two.

    All are processes of this machine, with a thread each (eager mode also with two), and take turns. Each
    begins with the module's numbers, and trains with the same minibatch, by SGD. Pipelining is
    `torch.distributed.pipelining`, cut before the part nearest to half of the work; tensor parallelism is
    `torch.distributed.tensor.parallel`, of pairs of linear layers. What cannot run the module says why.

    Args:
        given: the module.
        profile: of its network, on one machine or two among others.
        rounds: turns of each.
        hosts: of our machines, as in `Session`.
        on_phase: called with each phase.

    Raises:
        ValueError: the profile has no plan for two machines, or another precision than float32 and float64.
        HostError: one of our hosts fails.
    """
    plans = {point.machines: point.plan for point in profile.points if point.machines <= PARTS}
    if PARTS not in plans:
        raise ValueError("PyTorch is measured beside two machines; let 2 be among the numbers of machines")
    plan = plans[PARTS]
    if plan.precision not in ("float32", "float64"):
        raise ValueError(f"PyTorch is measured in float32 and float64, not in {plan.precision}")
    batch = drawn_batch(plan.graph, batch=plan.batch, precision=plan.precision)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        on_phase("beside PyTorch: cutting the module")
        ways = [*_torch_ways(_job(given, plan, batch), folder), *_own_ways(given.module, plans, batch, hosts)]
        running = []
        for way in ways:
            on_phase(f"beside PyTorch: starting {way.name}")
            running += [way] if way.begin(stack) else []
        for number in range(rounds if ways[0] in running else 0):
            on_phase(f"beside PyTorch: round {number + 1} of {rounds}")
            for way in running:
                way.turn()
    return tuple(way.over(ways[0]) for way in ways)


def _job(given: TorchModule, plan: Plan, batch: Mapping[str, Array]) -> TorchJob:
    """The work of all processes of PyTorch; pipelines divide the examples evenly, into four or fewer."""
    real = torch.float64 if plan.precision == "float64" else torch.float32

    def tensor(name: str) -> torch.Tensor:
        found = torch.from_numpy(np.ascontiguousarray(batch[name]))
        return found.to(real) if found.is_floating_point() else found.long()

    return TorchJob(
        in_training(given.module).to(real),
        tuple(map(tensor, given.network.arguments)),
        tensor(plan.graph.targets[0].name) if given.stand_in else None,
        given.stand_in or "",
        RATE,
        micro_batches=next(n for n in range(MICRO_BATCHES, 0, -1) if plan.batch % n == 0),
    )


def _torch_ways(job: TorchJob, folder: Path) -> Iterator[_Way]:
    """Returns PyTorch's ways, eager mode first, and writes the job for their processes."""
    groups = {
        "PyTorch, 1 thread": TorchGroup(folder, "eager"),
        "PyTorch, 2 threads": TorchGroup(folder, "eager", threads=PARTS),
        "PyTorch, pipelining": TorchGroup(folder, "pipelining"),
        "PyTorch, tensor parallelism": TorchGroup(folder, "tensor parallelism"),
    }
    cuts = dict(zip(groups, (None, None, staged_job, _paired), strict=True))
    for name, group in groups.items():
        note, cut = "", cuts[name]
        try:
            if cut is not None:
                job, note = cut(job)
        except (TorchFailed, ValueError) as error:
            yield _Way(name, partial(_refuse, str(error)))
            continue
        yield _Way(name, partial(_started, group), note)
    (folder / "job").write_bytes(cloudpickle.dumps(job))


def staged_job(job: TorchJob) -> tuple[TorchJob, str]:
    """Returns the job with a cut for a pipeline, and the cut in words.

    Raises:
        TorchFailed: a parameter has several names.
        ValueError: PyTorch cannot cut the module.
    """
    if tied := _tied(job.module):
        raise TorchFailed(
            f"{tied} are one parameter; two stages of torch.distributed.pipelining would train it apart, and "
            "have to be written for this module"
        )
    path = split_point(job.module, job.micro_batch)
    cut = f"in two stages, the second from {path} on"
    note = "; ".join([cut, *_micro_batches(job.module, job.micro_batches)])
    return replace(job, split=path), note


def _tied(module: nn.Module) -> str:
    """Names of the same parameter; "" if each has one name."""
    names: dict[int, list[str]] = {}
    for name, one in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(one), []).append(name)
    return next((" and ".join(some) for some in names.values() if len(some) > 1), "")


def _micro_batches(module: nn.Module, count: int) -> Iterator[str]:
    """Says how a minibatch is divided, and whose results depend on it."""
    if count > 1:
        yield f"{count} micro-batches"
        if any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in module.modules()):
            yield "batch normalisation takes each by itself, so the loss is another"


def _paired(job: TorchJob) -> tuple[TorchJob, str]:
    """The job with pairs of linear layers for tensor parallelism, and these in words."""
    pairs = tuple(linear_pairs(job.module, tuple(one[:2] for one in job.inputs)))
    if not pairs:
        raise TorchFailed(
            "no two linear layers follow one another with only functions of each number between, so a plan "
            "for parallelize_module would have to be written for this module"
        )
    linear = sum(isinstance(one, nn.Linear) for one in job.module.modules())
    return replace(job, pairs=pairs), (
        f"{counted(len(pairs), 'pair')} of linear layers cut, {2 * len(pairs)} of {linear}; each process "
        "computes all of the rest"
    )


def _started(group: TorchGroup, stack: ExitStack) -> Play:
    return stack.enter_context(group).play


def _refuse(why: str, stack: ExitStack) -> Play:
    raise TorchFailed(why)


def _own_ways(
    module: nn.Module, plans: Mapping[int, Plan], batch: Mapping[str, Array], hosts: Hosts
) -> Iterator[_Way]:
    """Ours, on one machine and two."""

    def start(plan: Plan, stack: ExitStack) -> Play:
        optimizer = SGD(RATE)
        session = stack.enter_context(Session(plan, SEED, train=True, optimizer=optimizer, hosts=hosts))
        fed = iter((batch,))

        def play(steps: int) -> tuple[list[float], list[float]]:
            seconds, losses = [], []
            for _ in range(steps):
                began = time.perf_counter()
                losses.append(session.step(next(fed, None)).loss)
                seconds.append(time.perf_counter() - began)
            return seconds, losses

        return play

    for machines, plan in sorted(plans.items()):
        note = "; ".join(_micro_batches(module, plan.micro_batches))
        yield _Way(f"Partita, {counted(machines, 'machine')}", partial(start, plan), note)
