"""Local SGD and parameter averaging: replicas make steps of their own, and take the mean of their parameters.

Each replica applies its optimizer to the gradient of its own examples, and exchanges nothing. A round of so
many steps ends by the mean of the parameters of all replicas; the state of the optimizer stays each one's
own. So a run of K steps with rounds of H sends about 1/H of the bytes of synchronous SGD.

With `compress` what a replica has changed since the last mean is sent in a short message, and what that lacks
goes into its next one.

Sources: Stich, "Local SGD converges fast and communicates little", 2019 (the mean every H steps); Zinkevich
and others, "Parallelized stochastic gradient descent", 2010 (one mean at the end: `ParameterAveraging`);
Basu and others, "Qsparse-local-SGD", 2019, algorithm 1 (compressed changes with error feedback).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from typing_extensions import override

from partita.engine.drivers.compressed import check_exchange, exchange
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.loss_scale import LossScale
from partita.engine.drivers.scaled_losses import computed, scale_for
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import SGD, Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Ring
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member
from partita.layers.checks import check_fields, check_whole
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class LocalDriver(Driver):
    """Base of drivers whose replicas make steps of their own, in rounds.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan.
        every: steps of a round. None: one round, to the end of the work.
        by: how replicas add up vectors at the end of a round.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
        elastic: the least and the most replicas, as under `AllReduce`.
        loss_scale: of a plan in float16: the settings of the scale of each replica, as under `AllReduce`.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "local_steps": ("every",),
        "inner_steps": ("every",),
        "sync_every": ("every",),
        "H": ("every",),
        "tau": ("every",),
        "lr": "write optimizer=SGD(0.05), or another optimizer",
        "learning_rate": "write optimizer=SGD(0.05), or another optimizer",
        "inner": ("optimizer",),
        "algorithm": ("by",),
        "shards": "there are none, replicas keep the parameters; leave it out",
    }

    replicas: int = 1
    every: int | None = 16
    by: Algorithm = field(default=Ring())
    optimizer: Optimizer = field(default=SGD(0.05))
    elastic: tuple[int, int] | None = None
    loss_scale: LossScale | None = field(default=None, kw_only=True, metadata={"option": ""})

    scales_losses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_fields(self, check_whole, "replicas", of=f"{name}'s ")
        if self.every is not None:
            check_whole(self.every, f"{name}'s every is")
        self._check_elastic()
        if not isinstance(self.by, Algorithm):
            raise ValueError(f"{name}'s by is {self.by!r}; give Ring(), Tree(), Hierarchical() or Server()")
        check_exchange(self.compress, self.by, name)
        self._check_optimizer(self.optimizer)
        if self.optimizer.needs_norms:
            raise ValueError(
                f"{self.optimizer} needs the norms of whole gradients, which replicas that compute alone do "
                "not add up; leave clip_norm out, or take AdamW in the place of LARS or LAMB"
            )

    @property
    @override
    def unsent(self) -> str:
        return "change_"

    @property
    @override
    def replicas_differ(self) -> bool:
        return True

    @override
    def fitted(self, plan: Plan) -> Driver:
        return replace(self, loss_scale=scale_for(self, self.loss_scale, plan))

    @override
    def replica(self, me: Member) -> a.Program:
        for steps in me.rounds(self.every):
            yield from self.local_steps(me, steps)
            yield from self.end_of_round(me)

    def local_steps(self, me: Member, steps: Iterator[int]) -> a.Program:
        """Yields the actions of the steps that a replica makes alone."""
        for step in steps:
            if (yield from computed(me, step, self.loss_scale, alone=True)):
                yield a.Apply(self.optimizer)
            yield a.SafePoint()

    def end_of_round(self, me: Member) -> a.Program:
        """Yields the actions by which replicas agree, with a safe point at the end."""
        raise NotImplementedError(f"{type(self).__name__} does not say how a round ends")

    def mean_change(self, me: Member) -> a.Program:
        """Yields the actions after which "delta" has the mean over replicas of "anchor" less "parameters"."""
        share = 1.0 if self.compress is None else 1.0 / me.replicas
        yield a.Combine("delta", {"anchor": share, "parameters": -share})
        if self.compress is None:
            yield a.AllReduce("delta", by=self.by, mean=True)
        else:
            yield from exchange(self.compress, step=me.step - 1, by=self.by, vector="delta")


@dataclass(frozen=True)
class LocalSGD(LocalDriver):
    """The settings of local SGD: replicas take the mean of their parameters at the end of each round.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan.
        every: steps of a round. None: one round, to the end of the work.
        by: how replicas add up vectors at the end of a round.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
        elastic: the least and the most replicas, as under `AllReduce`.
        loss_scale: of a plan in float16: the settings of each replica's scale; None: `LossScale()`.
        compress: replicas exchange short messages of what they have changed since the last mean, in the place
            of parameters: `TopK`, `OneBit`, `Int8` (by `Ring()`) or `PowerSGD`. What a message lacks is added
            to the replica's next change; it belongs to the replica's state, as under `AllReduce`.

    Raises:
        ValueError: a setting is out of range.
    """

    compress: Compressor | None = None

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {} if self.compress is None else {"anchor": Kept()}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return () if self.compress is None else ("delta",)

    @override
    def end_of_round(self, me: Member) -> a.Program:
        if self.compress is None:
            yield a.AllReduce("parameters", by=self.by, mean=True)
        else:
            yield from self.mean_change(me)
            yield a.Combine("anchor", {"anchor": 1.0, "delta": -1.0})
            yield a.Combine("parameters", {"anchor": 1.0})
        yield a.SafePoint()


@dataclass(frozen=True)
class ParameterAveraging(LocalSGD):
    """The settings of parallel SGD: replicas train alone, and take the mean of their parameters at the end.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan.
        every: steps from one mean to the next; None: one mean, at the end.
        by: how replicas add up parameters.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
        elastic: the least and the most replicas, as under `AllReduce`.
        loss_scale: of a plan in float16: the settings of each replica's scale; None: `LossScale()`.
        compress: makes the messages of what replicas have changed, as under `LocalSGD`.

    Raises:
        ValueError: a setting is out of range.
    """

    every: int | None = None
