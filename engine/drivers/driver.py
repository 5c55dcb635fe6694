"""The base of drivers: settings, and the two programs of those that the frame runs.

A driver is a frozen dataclass. `coordinator(run)` says what work the replicas do, and `replica(me)` how one
part does it. Both are generators of actions (`protocol.actions`), for `protocol.coordinator` and
the machines of parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

from partita.engine.data.clients import Clients
from partita.engine.drivers.compressed import keeps_unsent
from partita.engine.methods import Objective
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Plan, Program, Work
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.durability import Durability, durability_of
from partita.engine.protocol.durability.settings import Mode
from partita.engine.protocol.kept_vector import Kept, check_vectors
from partita.engine.protocol.merging import Merging
from partita.engine.protocol.staleness import AS_IT_IS, Staleness
from partita.engine.protocol.views import Outline
from partita.layers.arguments import Arguments
from partita.layers.checks import is_whole
from partita.partitioner.plan import Plan as Parts

LIMITS: Final = ("max_iterations", "gtol", "ftol", "replicas", "elastic", "backups", "durability")
"""Settings that limit a method's end, or who computes or keeps, not its path: they may change when a run goes
on.
"""

Inline: TypeAlias = Literal["auto", "none", "shard", "all"]
"""Settings of which hosts run in the process of the call."""

_MOST_OF_UNIT: Final = 4
_LEAST_UNITS: Final = 16


class Driver(Arguments):
    """Settings of a driver, for `train`: a frozen dataclass.

    Without `shards`, replicas work together; with shards they work on their own. Both have an `optimizer`.
    The steps of a driver with a `division` are rounds, in which portions of clients' data are computed
    (`Compute(step, of=...)`).
    Replicas of a driver that `evaluates` compute units of what `coordinator(run)` evaluates: its
    actions are requests on vectors (`protocol.commands`), and it returns an `Outcome`.
    Replicas without shards have the same parameters, or those of each of so many `groups`: replica r is of
    group r modulo `groups`, and the first group's are saved and evaluated.
    """

    replicas: int
    shards: int = 0
    groups: int = 1
    optimizer: Optimizer
    elastic: tuple[int, int] | None = None
    backups: bool = True
    inline: Inline = "auto"
    durability: Mode | Durability = "checkpoint"
    staleness: Staleness = AS_IT_IS
    compress: Compressor | None = None

    evaluates: ClassVar[bool] = False
    """States whether `coordinator(run)` yields requests on vectors that shards hold, and no `Work`."""

    scales_losses: ClassVar[bool] = False
    """States whether its program scales the loss of a plan in float16."""

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
        """Returns whether no replica has the whole state: then a death leads back to the last checkpoint."""
        return keeps_unsent(self)

    @property
    def unsent(self) -> str:
        """The kind of what is compressed, in the names of what checkpoints have of it: what messages of one
        kind lacked is nothing that messages of another kind could have in them. "": gradients.
        """
        return ""

    @property
    def replicas_differ(self) -> bool:
        """Returns whether each replica has parameters and a state of the optimizer of its own between
        exchanges. Without shards only.
        """
        return False

    @property
    def reshuffles(self) -> bool:
        """Returns whether each epoch has another order of the examples. Without shards only."""
        return True

    @property
    def kept_vectors(self) -> Mapping[str, Kept]:
        """The vectors that replicas without shards keep beside the parameters, each as long as these."""
        return {}

    @property
    def scratch_vectors(self) -> tuple[str, ...]:
        """Further vectors of the same size, which hold nothing that outlives a step."""
        return ()

    @property
    def taught_minibatches(self) -> int:
        """Minibatches whose predictions replicas without shards keep: the entries of "predictions"."""
        return 0

    @property
    def division(self) -> Clients | None:
        """The division of the data among clients; None: there are none."""
        return None

    @property
    def keepers(self) -> Durability:
        """The keepers of what shards acknowledge. Raises ValueError where the setting has no meaning."""
        return durability_of(self.durability)

    def _check_optimizer(self, optimizer: object) -> None:
        """Raises ValueError for what is no optimizer."""
        if not isinstance(optimizer, Optimizer):
            name = type(self).__name__
            raise ValueError(f"{name}'s optimizer is {optimizer!r}; give an optimizer, for example SGD(0.05)")

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

    def step_examples(self, *, plan_batch: int, examples: int) -> int:
        """Returns the most examples of one replica in a step. A round counts as a pass over the data."""
        return plan_batch if self.division is None else examples

    def coordinator(self, run: Outline) -> Plan:
        """Yields the work of the run: all epochs at once, unless a driver says otherwise."""
        yield Work(epochs=run.epochs)

    def replica(self, me: Any) -> Program:
        """Yields what one part does, step by step.

        Raises:
            NotImplementedError: the driver has no program for replicas.
        """
        raise NotImplementedError(f"{type(self).__name__} has no program for replicas")

    def stages(self, epochs: int) -> Sequence[tuple[Driver, int]]:
        """Returns the drivers that a job runs one after another, with their epochs."""
        return ((self, epochs),)

    def fitted(self, plan: Parts) -> Driver:
        """Returns the driver with the settings that follow from a plan. Raises ValueError."""
        return self

    def describe(self, computers: Sequence[Sequence[str]]) -> str:
        """Returns a line that is printed when replicas without shards begin together; "": none.

        Args:
            computers: for each machine of the plan, a label of the computer of each replica's part, equal
                where these share memory.
        """
        return ""

    def check_programs(self) -> None:
        """Checks that the driver has what its hosts need. Raises ValueError."""
        name, kind = type(self).__name__, type(self)
        for field in ("replicas",) if self.evaluates else ("replicas", "optimizer"):
            if not hasattr(self, field):
                raise ValueError(f"the driver {name} has no '{field}'; give its dataclass that field")
        if kind.replica is Driver.replica:
            raise ValueError(f"the driver {name} has no program; define its generator replica(self, me)")
        if self.evaluates and not self.shards:
            raise ValueError(f"the driver {name} has no shards, which execute requests; give it a number")
        if self.merging is not None and self.keepers.mode != "checkpoint":
            raise ValueError(
                f"the driver {name} merges pushes, of which nobody keeps records; leave durability out"
            )
        vectors = self.kept_vectors, self.scratch_vectors
        if self.shards and any(vectors):
            raise ValueError(f"the driver {name} has shards, and vectors of replicas; leave one of them out")
        if not self.shards:
            check_vectors(name, *vectors, self.optimizer.state_names)

    # Of drivers with shards, whose replicas work on their own.

    @property
    def minibatches(self) -> int:
        """Minibatches of a step."""
        return 1

    @property
    def merges(self) -> bool:
        """Returns whether a push may change the parameters otherwise than its steps do one after another: it
        has the gradients of several steps or minibatches, or a message in their place.
        """
        return True

    @property
    def optimizer_of_shards(self) -> Optimizer:
        """The optimizer by which shards apply what is pushed."""
        return self.optimizer

    @property
    def pushes_changes(self) -> bool:
        """Returns whether replicas push what their optimizer has changed, and not gradients."""
        return False

    @property
    def merging(self) -> Merging | None:
        """The rule by which pushes wait on a shard for one another; None: each is applied on arrival."""
        return None

    @property
    def n_fragments(self) -> int:
        """Ranges of parameters, nearly equal and whatever the shards, that a program can exchange each for
        itself: `Push(fragment=)` and `Pull(fragment=)`, from 0 on.
        """
        return 1

    @property
    def moves_by(self) -> float | None:
        """The part of its difference from the shards' parameters that a replica pushes: it moves by that
        towards them, and they towards it. None: replicas take the shards' parameters.
        """
        return None

    # Of drivers whose program evaluates.

    def objective(self, *, plan_batch: int, examples: int) -> Objective:
        """Returns the function that replicas evaluate: the mean loss, in portions of the plan's batch."""
        return Objective(Portions(examples, min(plan_batch, examples)))

    def unit_size(self, objective: Objective) -> int:
        """Returns the number of portions whose gradient is sent at once. Independent of the replicas: the
        same bits.
        """
        n = objective.batch or objective.portions.per_epoch
        return max(1, min(_MOST_OF_UNIT, n // _LEAST_UNITS))

    @property
    def method_text(self) -> str:
        """The settings that decide what is asked for, which a journal must match."""
        return settings_text(self)


def settings_text(settings: object) -> str:
    """Returns settings without limits, and without what does not change the result."""
    name = type(settings).__qualname__
    if not dataclasses.is_dataclass(settings):
        return name
    given = (one.name for one in dataclasses.fields(settings) if one.repr and one.name not in LIMITS)
    return f"{name}({', '.join(f'{setting}={getattr(settings, setting)!r}' for setting in given)})"
