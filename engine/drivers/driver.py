"""The base of drivers: settings, and the two programs of those that the frame runs.

A driver is a frozen dataclass. `coordinator(run)` says what work the replicas do, and `replica(me)` how one
part does it. Both are generators of actions (`protocol.actions`), for `protocol.coordinator` and
the machines of parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from partita.engine.drivers.program_trainer import ProgramTrainer
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Plan, Program, Work
from partita.engine.protocol.views import Member, Outline
from partita.layers.arguments import Arguments
from partita.layers.checks import is_whole

if TYPE_CHECKING:
    from partita.engine.drivers.job import Job
    from partita.engine.drivers.trainer import Trainer


class Driver(Arguments):
    """Settings of a driver, for `train`: a frozen dataclass.

    A driver whose replicas run a program has the fields `replicas` and `optimizer`, and the method `replica`.
    """

    replicas: int
    shards: int = 0
    optimizer: Optimizer
    elastic: tuple[int, int] | None = None

    ends: ClassVar[str] = ""
    """Words for how a run ends where there are no `epochs`; "": the driver has epochs."""

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "optimiser": ("optimizer", "method"),
        "rule": ("optimizer", "method"),
        "workers": ("replicas",),
        "num_workers": ("replicas",),
        "num_replicas": ("replicas",),
        "num_shards": ("shards",),
        "servers": ("shards",),
        "parameter_servers": ("shards",),
        "min_replicas": "write elastic=(least, most)",
        "max_replicas": "write elastic=(least, most)",
        "nnodes": "write elastic=(least, most)",
        "n_fetch": ("fetch_every",),
        "n_push": ("push_every",),
        "staleness": ("run_ahead",),
        "epochs": "it is an argument of train(plan, data, driver=..., epochs=...)",
        "seed": "it is an argument of train(plan, data, driver=..., seed=...)",
        "checkpoints": "it is an argument of train(plan, data, driver=..., checkpoints=...)",
        "batch": "the batch is that of partition(net, cluster, batch=...)",
        "batch_size": "the batch is that of partition(net, cluster, batch=...)",
    }
    """Names of the settings in other libraries and in the paper."""

    @property
    def least(self) -> int | None:
        """The replicas with which a run begins and goes on; None: all of them."""
        return None if self.elastic is None else self.elastic[0]

    @property
    def is_sharded(self) -> bool:
        """Whether no replica has the whole state: then a death leads back to the last checkpoint."""
        return False

    def _check_elastic(self) -> None:
        """Checks `elastic`, and sets `replicas` to the most. Raises ValueError."""
        if self.elastic is None:
            return
        name = type(self).__name__
        given: Any = self.elastic  # whatever a user wrote
        pair = isinstance(given, tuple | list) and len(given) == 2 and all(map(is_whole, given))
        if not pair or not 1 <= given[0] <= given[1]:
            raise ValueError(
                f"{name}'s elastic is {given!r}; give the least and the most replicas, for example (2, 4)"
            )
        least, most = given
        if self.replicas not in (1, most):
            raise ValueError(
                f"{name} has {self.replicas} replicas, and elastic={(least, most)} has at most {most}; leave "
                "replicas out"
            )
        object.__setattr__(self, "elastic", (least, most))
        object.__setattr__(self, "replicas", most)

    def coordinator(self, run: Outline) -> Plan:
        """Yields the work of the run: all epochs at once, unless a driver says otherwise."""
        yield Work(epochs=run.epochs)

    def replica(self, me: Member) -> Program:
        """Yields what one part does, step by step.

        Raises:
            NotImplementedError: the driver has machines of its own, and no program.
        """
        raise NotImplementedError(f"{type(self).__name__} has no program for replicas")

    def trainers(self, job: Job, epochs: int) -> Sequence[Trainer]:
        """Returns the trainers of a job, which run one after another.

        Args:
            job: the work.
            epochs: passes over the data; 0 for a driver without epochs.

        Raises:
            ValueError: the settings do not fit the job.
        """
        name, kind = type(self).__name__, type(self)
        for field in ("replicas", "optimizer"):
            if not hasattr(self, field):
                raise ValueError(f"the driver {name} has no '{field}'; give its dataclass that field")
        if kind.replica is Driver.replica:
            raise ValueError(f"the driver {name} has no program; define its generator replica(self, me)")
        return (ProgramTrainer(job, self, epochs=epochs, optimizer=self.optimizer),)
