"""Synchronous SGD by all-reduce: replicas compute a joined batch, and each updates the same parameters.

There are no shards. In every step each replica computes its share of the mean gradient over the joined batch,
the replicas add up their shares, and each applies the optimizer to its own copy of the parameters. The order
of the sums is fixed by the plan and the view, so N replicas of batch B follow one replica of batch N * B
within rounding, with the same bits whatever arrives first.

Sources: Goyal and others, "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 3
(the joined batch); Chen and others, "Revisiting distributed synchronous SGD", 2016 (backup workers);
Rajbhandari and others, "ZeRO", 2020, section 5.1 (an optimizer whose state is sharded).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from typing_extensions import override

from partita.engine.drivers.compressed import check_compressor, check_exchange, exchange
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.loss_scale import LossScale
from partita.engine.drivers.replica_links import fastest_of
from partita.engine.drivers.scaled_losses import computed, scale_for
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import SGD, Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Fastest, Ring, Server, Tree
from partita.engine.protocol.views import Member
from partita.layers.checks import check_fields, check_flag, check_whole
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class AllReduce(Driver):
    """The settings of synchronous SGD.

    Args:
        replicas: copies of the network, which compute a joined batch together. Each is cut over all machines
            of the plan.
        by: how replicas add up gradients: `Ring()` sends the fewest bytes, `Tree()` the fewest messages one
            after another, `Hierarchical()` one copy between any two computers, `Server()` all to the first.
            "auto": of the first three the one that takes the least time by the links of the plan's cluster,
            the bytes of the gradient and the computers on which replicas run. The run prints which that is;
            the order of additions, and so the bits, follow from it.
        optimizer: updates the parameters of every replica. Its state is the same on all of them.
        compress: replicas exchange short messages in place of gradients: `TopK`, `OneBit`, `Int8` (by
            `Ring()`) or `PowerSGD`. What a message lacks is added to the replica's next gradient; it belongs
            to the replica's state, so that a replica's death leads all back to the last checkpoint, which has
            it. An elastic run goes on without that of a replica that is gone. None: whole gradients.
        shard_optimizer: each replica updates its own range of the parameters, with the optimizer's state for
            that alone, and the ranges are collected afterwards. The same bits and bytes with a part of the
            memory; but a replica's death leads all back to the last checkpoint. With `Ring()` only.
        backup_workers: replicas whose gradient a step leaves out, those that come last; the sum is scaled
            up. With `Server()` only. The bits then depend on the order of arrival.
        elastic: the least and the most replicas. The run begins with the least, others join when they are
            ready, and it goes on with fewer when some are gone for good; `replicas` is the most.
        loss_scale: of a plan in float16: the settings of the scale by which small gradients do not vanish;
            None: `LossScale()`.

    Raises:
        ValueError: a setting is out of range, or does not go together with another one.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": "write optimizer=SGD(0.05), or another optimizer",
        "learning_rate": "write optimizer=SGD(0.05), or another optimizer",
        "rate": "write optimizer=SGD(0.05), or another optimizer",
        "rule": ("optimizer",),
        "algorithm": ("by",),
        "backend": ("by",),
        "zero": ("shard_optimizer",),
        "shards": "there are none, replicas keep the parameters; leave it out",
        "num_shards": "there are none, replicas keep the parameters; leave it out",
    }

    replicas: int = 1
    by: Algorithm | Literal["auto"] = field(default=Ring())
    optimizer: Optimizer = field(default=SGD(0.05))
    compress: Compressor | None = None
    shard_optimizer: bool = False
    backup_workers: int = 0
    elastic: tuple[int, int] | None = None
    loss_scale: LossScale | None = field(default=None, metadata={"option": ""})

    scales_losses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "replicas", of="AllReduce's ")
        check_whole(self.backup_workers, "AllReduce's backup_workers is", least=0)
        check_fields(self, check_flag, "shard_optimizer", of="AllReduce's ")
        self._check_elastic()
        self._check_optimizer(self.optimizer)
        if not isinstance(self.by, Algorithm) and self.by != "auto":
            raise ValueError(
                f'AllReduce\'s by is {self.by!r}; give Ring(), Tree(), Hierarchical(), Server() or "auto"'
            )
        self._check_backup_workers()
        self._check_compress()
        if self.shard_optimizer and not isinstance(self.by, Ring):
            raise ValueError(
                f"shard_optimizer=True needs ranges of equal size, which {self.by!r} does not make; use "
                "by=Ring()"
            )
        if self.shard_optimizer and self.elastic is not None:
            raise ValueError(
                "with shard_optimizer=True no replica has the whole state, so none can leave an elastic run; "
                "leave one of the two out"
            )

    def _check_compress(self) -> None:
        if self.compress is None:
            return
        check_compressor(self.compress, "AllReduce")
        if self.by == "auto":
            raise ValueError(
                f'by="auto" chooses by the bytes of whole gradients, and {self.compress} sends others; give '
                "by=Ring(), or Tree() with PowerSGD(2)"
            )
        check_exchange(self.compress, self.by, "AllReduce")
        if self.shard_optimizer or self.backup_workers:
            raise ValueError(
                "messages of a compressor are those of all replicas for the whole gradient; leave out "
                "compress, or shard_optimizer and backup_workers"
            )

    def _check_backup_workers(self) -> None:
        if not self.backup_workers:
            return
        if not isinstance(self.by, Server):
            raise ValueError(
                f"with {self.by!r} every sum goes through all replicas, so none can be left out; use "
                "by=Server(), or backup_workers=0"
            )
        if self.backup_workers >= self.replicas:
            raise ValueError(
                f"AllReduce has {self.backup_workers} backup workers of {self.replicas} replicas; at least "
                "one gradient counts, so use fewer"
            )

    @property
    @override
    def is_sharded(self) -> bool:
        return self.shard_optimizer or super().is_sharded

    @property
    def _algorithm(self) -> Algorithm:
        if not isinstance(self.by, Algorithm):
            raise ValueError(f'by="auto" is chosen for a plan; use {type(self).__name__}(...).fitted(plan)')
        return Server(self.backup_workers) if self.backup_workers else self.by

    @override
    def fitted(self, plan: Plan) -> AllReduce:
        found = replace(self, by=fastest_of(plan)) if self.by == "auto" else self
        return replace(found, loss_scale=scale_for(self, self.loss_scale, plan))

    @override
    def describe(self, computers: Sequence[Sequence[str]]) -> str:
        if not isinstance(self.by, Fastest):
            return ""
        return "; ".join(dict.fromkeys(self.by.sentence(labels) for labels in computers))

    @override
    def replica(self, me: Member) -> a.Program:
        by, own = self._algorithm, self.shard_optimizer
        for step in me.steps():
            if not (yield from computed(me, step, self.loss_scale)):
                yield a.SafePoint()
                continue
            if self.compress is not None:
                yield from exchange(self.compress, step=step, by=by)
            else:
                yield a.ReduceScatter("gradient", by=by) if own else a.AllReduce("gradient", by=by)
            if self.optimizer.needs_norms:
                yield a.Norms()
                yield a.AllReduce("norms", by=Tree())
            yield a.Apply(self.optimizer, own=own)
            if own:
                yield a.AllGather("parameters", by=by)
            yield a.SafePoint()
