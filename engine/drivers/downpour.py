"""Downpour SGD: asynchronous replicas against sharded parameters.

Source: DistBelief, section 4.1. Each replica, itself cut over machines, fetches parameters, computes
gradients and pushes them, without waiting for any other; the shards apply each push as it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from typing_extensions import override

from partita.engine.drivers.compressed import check_compressor
from partita.engine.drivers.driver import Driver
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import SGD, Optimizer
from partita.engine.protocol.actions import Compute, Drain, Install, Program, Pull, Push, Room
from partita.engine.protocol.durability import Durability, durability_of
from partita.engine.protocol.durability.settings import Mode
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.staleness import AS_IT_IS, Compensated, Staleness
from partita.layers.checks import check_fields, check_whole


@dataclass(frozen=True)
class Downpour(Driver):
    """The settings of Downpour SGD.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan. They share the steps of an epoch: each takes the next ones when it has done its last.
        shards: servers among which the parameters are divided.
        optimizer: what a shard does with a gradient. Between two fetches a replica steps by the same
            optimizer with a state of its own; with SGD that is the paper's w <- w - alpha * g. Over what it
            fetches it applies, in the same way, its push in flight and the gradients since, where the values
            lack them: exact for SGD, an estimate where the optimizer has a state. One replica alone is
            sequential gradient descent, to the bit.
        fetch_every: steps from one fetch of parameters to the next. The paper's experiments used 1.
        push_every: steps from one push of gradients to the next. The paper's experiments used 1.
        run_ahead: steps that a replica may compute while a shard has not acknowledged its last push. Then it
            waits: a gradient accumulated meanwhile would be too old when applied. (The paper has no bound.)
        overlap: minibatches of a step, one after another through the machines of a horizontal cut. Each
            updates the parameters as soon as its gradients are there, so on a machine that is n machines
            before the loss its gradient is up to n updates late; reports count that as staleness. Fetches and
            pushes come between steps; `fetch_every`, `push_every` and `run_ahead` count steps. (The paper
            has one minibatch.)
        elastic: the least and the most replicas, in the place of `replicas`. The run begins when the shards
            and the least replicas are ready; the others join when they are. A replica that dies too often
            leaves, as long as the least remain, and is tried again later. If not given, the run needs all
            replicas.
        durability: who keeps what a shard has acknowledged. "checkpoint": nobody, so that its failure costs
            the pushes since the last checkpoint. "log": a log beside the checkpoints (see `Log`).
            "replicated": a second process of each shard (see `Replicated`).
        staleness: what is done about gradients that others have overtaken: `Damped()`, `Compensated()` or
            `Bounded(steps)`. If not given, nothing, as in the paper. With `Compensated` each push is the
            gradient of one step, and waits for the acknowledgement of the one before.
        compress: pushes are short messages in the place of gradients: `TopK`, `OneBit`, `Int8` or `PowerSGD`.
            What a message lacks is added to the replica's next push to the same shard. None: whole gradients.

    Raises:
        ValueError: a number is not a whole number of at least 1, the optimizer is none, or settings do not go
            together.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": "write optimizer=SGD(0.05), or another optimizer",
        "learning_rate": "write optimizer=SGD(0.05), or another optimizer",
        "rate": "write optimizer=SGD(0.05), or another optimizer",
        "rule": ("optimizer",),
    }

    replicas: int = 1
    shards: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))
    fetch_every: int = 1
    push_every: int = 1
    run_ahead: int = 16
    overlap: int = 1
    elastic: tuple[int, int] | None = None
    durability: Mode | Durability = "checkpoint"
    staleness: Staleness = field(default=AS_IT_IS)
    compress: Compressor | None = None

    def __post_init__(self) -> None:
        self._check_elastic()
        others = ("optimizer", "elastic", "durability", "staleness", "compress")
        counts = (field.name for field in fields(self) if field.name not in others)
        check_fields(self, check_whole, *counts, of="Downpour's ")
        self._check_optimizer(self.optimizer)
        if self.optimizer.measured is not None:
            raise ValueError(
                f"Downpour's shards have parts of parameters and of their state, and {self.optimizer} needs "
                "norms over both; use AllReduce(optimizer=...), or LARS"
            )
        durability_of(self.durability)
        self._check_compress()
        self._check_staleness()

    def _check_compress(self) -> None:
        check_compressor(self.compress, "Downpour")
        if self.compress is not None and isinstance(self.staleness, Compensated):
            raise ValueError(
                f"Compensated() corrects the gradient of one step, and a push by {self.compress} has parts "
                "of many; leave one of the two out, or use Damped()"
            )

    def _check_staleness(self) -> None:
        if not isinstance(self.staleness, Staleness):
            raise ValueError(
                f"Downpour's staleness is {self.staleness!r}; give Damped(), Compensated() or Bounded(steps)"
            )
        if isinstance(self.staleness, Compensated) and self.merges:
            raise ValueError(
                f"with push_every={self.push_every} and overlap={self.overlap} a push has gradients of "
                "several points, and Compensated() corrects that of one; leave both at 1"
            )

    @property
    def _ahead(self) -> int:
        """The steps that may follow a push before it is acknowledged."""
        return 1 if isinstance(self.staleness, Compensated) else self.run_ahead

    @override
    def replica(self, me: HasSteps) -> Program:
        """Algorithm 1.1 of the paper. Steps count from 0."""
        yield Pull()
        for step in me.steps():
            yield Room(self._ahead)
            yield Install()
            if step % self.fetch_every == 0:
                yield Pull()
            yield Compute(step)
            if (step + 1) % self.push_every == 0:
                yield Push()
        yield Drain()

    @property
    @override
    def minibatches(self) -> int:
        return self.overlap

    @property
    @override
    def merges(self) -> bool:
        return max(self.push_every, self.overlap) > 1 or self.compress is not None
