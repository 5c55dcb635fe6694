"""Decoupled DiLoCo: replicas that never wait for one another, and shards that merge what they have changed.

The parameters are on shards, and divided into fragments. A replica makes steps by an optimizer of its own;
every so many steps it pushes, fragment after fragment, what it has changed there, and goes on. A shard merges
the changes of those replicas that have come, by examples, and an outer optimizer applies their mean. When its
push is merged, a replica fetches the fragment, and makes over it again what it has changed since.

A replica that dies begins again with the shards' parameters; no other one stops.

Sources: Douillard and others, "Decoupled DiLoCo for resilient distributed pre-training", 2026
(arXiv 2604.21428; its quorum is 1, and it has 24 fragments); "DiLoCo", 2023, for the two optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from typing_extensions import override

from partita.engine.drivers.compressed import check_compressor
from partita.engine.drivers.driver import Driver
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import AdamW, Momentum, Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.merging import Merging
from partita.layers.checks import check_fields, check_number, check_whole

_NEVER: Final = 2**53
"""Steps ahead of its pushes after which a replica waits: never."""


@dataclass(frozen=True)
class DecoupledDiLoCo(Driver):
    """The settings of decoupled DiLoCo.

    Args:
        replicas: copies of the network, which compute side by side and share the steps of an epoch. Each is
            cut over all machines of the plan.
        shards: servers among which the parameters are divided.
        every: steps from one push of a fragment to the next (H).
        optimizer: updates a replica's own parameters, with a state of its own.
        outer_learning_rate: of the shards' optimizer.
        outer_momentum: of the shards' optimizer, from 0 to below 1.
        nesterov: whether that momentum is Nesterov's.
        quorum: replicas whose changes a shard waits for before it merges them, of those that still come.
        grace: how long it then waits for further ones: at most this part of the time from one push of a
            replica to its next. It waits for none that was missing in the last two.
        patience: seconds after which changes are merged without a quorum; twice the time from one push to the
            next, where that is more.
        run_ahead: steps that a replica may make while a push is not merged; then it waits. None: any number.
        elastic: the least and the most replicas, in the place of `replicas`, as under `Downpour`.
        compress: pushes are short messages of what a replica has changed in a fragment: `TopK`, `OneBit`,
            `Int8` or `PowerSGD`. What a message lacks is added to the replica's next push of the fragment.
        fragments: nearly equal ranges of the parameters, each exchanged in its turn (P). None: as many as
            shards.

    Raises:
        ValueError: a setting is out of range, or settings do not go together.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "H": ("every",),
        "sync_every": ("every",),
        "num_fragments": ("fragments",),
        "learners": ("replicas",),
        "min_quorum": ("quorum",),
        "grace_s": ("grace",),
        "outer": "write outer_learning_rate=0.7, outer_momentum=0.9",
        "outer_optimizer": "write outer_learning_rate=0.7, outer_momentum=0.9",
        "outer_lr": ("outer_learning_rate",),
        "inner": ("optimizer",),
        "lr": "write optimizer=AdamW(0.001), or another optimizer",
        "learning_rate": "write optimizer=AdamW(0.001), or another optimizer",
    }

    replicas: int = 1
    shards: int = 1
    every: int = 16
    optimizer: Optimizer = field(default=AdamW(0.001), metadata={"chosen": "adamw"})
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    quorum: int = 1
    grace: float = 0.5
    patience: float = 2.0
    run_ahead: int | None = None
    elastic: tuple[int, int] | None = None
    compress: Compressor | None = None
    fragments: int | None = None

    def __post_init__(self) -> None:
        self._check_elastic()
        of = "DecoupledDiLoCo's "
        check_fields(self, check_whole, "replicas", "shards", "every", "quorum", of=of)
        for name, number in (("fragments", self.fragments), ("run_ahead", self.run_ahead)):
            if number is not None:
                check_whole(number, f"{of}{name} is")
        check_fields(self, check_number, "grace", of=of, zero=True, rule="; give 0, or a number above")
        check_fields(self, check_number, "patience", of=of, rule="; give seconds, above 0")
        if self.quorum > self.replicas:
            raise ValueError(
                f"{of}quorum is {self.quorum}, and there are {self.replicas} replicas; give at most as many"
            )
        self._check_optimizer(self.optimizer)
        if self.optimizer.measured is not None or self.optimizer.needs_norms:
            raise ValueError(
                f"{self.optimizer} needs norms over all machines of a replica before an update; leave "
                "clip_norm out, or take AdamW in the place of LARS or LAMB"
            )
        check_compressor(self.compress, "DecoupledDiLoCo")
        _ = self.optimizer_of_shards  # raises ValueError where a number is out of range

    @property
    @override
    def optimizer_of_shards(self) -> Optimizer:
        return Momentum(self.outer_learning_rate, momentum=self.outer_momentum, nesterov=self.nesterov)

    @property
    @override
    def unsent(self) -> str:
        return "push_"

    @property
    @override
    def pushes_changes(self) -> bool:
        return True

    @property
    @override
    def merging(self) -> Merging:
        return Merging(self.quorum, self.grace, self.patience)

    @property
    @override
    def n_fragments(self) -> int:
        return self.fragments or self.shards

    def due(self, step: int) -> list[int]:
        """Returns the fragments that are exchanged after a step (from 0 on), spread over `every` steps."""
        place, n = (step + 1) % self.every, self.n_fragments
        return [fragment for fragment in range(n) if fragment * self.every // n == place]

    @override
    def replica(self, me: HasSteps) -> a.Program:
        yield a.Pull()
        for step in me.steps():
            yield a.Room(_NEVER if self.run_ahead is None else self.run_ahead)
            yield a.Install()
            yield a.Compute(step)
            for fragment in self.due(step):
                yield a.Push(fragment=fragment)
                yield a.Pull(fragment=fragment, after_push=True)
        yield a.Drain()
