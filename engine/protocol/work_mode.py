"""Ways in which the replicas of a run do its work: the part of a coordinator in which the drivers differ.

A mode asks its coordinator for what all runs have: records of the hosts, checkpoints, restarts. It must not
know how hosts start and end, nor the driver's program beyond the action under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from partita.engine.protocol.actions import Checkpoint, CoordinatorAction, Validate
from partita.engine.protocol.commands import Iterated
from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Progress, Warn
from partita.engine.protocol.host_registry import HostRecord, HostState, ReplicaRecord
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.supervision import Supervision

_NEVER: Final = float("inf")


class UnknownAction(ValueError):
    """An action of a driver's program that its replicas cannot do. One sentence, and what to do."""


class WorkMode(ABC):
    """The work of one run.

    Attributes:
        run: the coordinator.
    """

    works: ClassVar[bool] = True
    """States whether the driver's program yields `Work`, and no requests on vectors."""

    program: ClassVar[str] = "the driver's coordinator(run)"
    """The driver's program in messages."""

    saves: ClassVar[bool] = True
    """States whether the run writes checkpoints, the last one when all work is done."""

    restarts: ClassVar[bool] = True
    """States whether hosts that are lost are started again; else the run ends, by an error that names the
    host."""

    drops_rounds: ClassVar[bool] = False
    """States whether a checkpoint of all work drops one under way that holds less."""

    wakes_at: float = _NEVER
    """Time of the next `Tick` beyond the usual ones (seconds)."""

    is_saved: bool = True
    """States whether the last checkpoint holds all that is known of the run when it starts."""

    saves_first: bool = False
    """Tells whether a checkpoint is to be written before the next request."""

    answers_since: float = -_NEVER
    """Since when shards can answer parts (seconds; infinity: they cannot now)."""

    run: Supervision

    def attach(self, run: Supervision) -> None:
        """Takes over the work of a run that has not started."""
        self.run = run

    def check(self, action: CoordinatorAction | None) -> None:
        """Refuses an action that replicas in this mode cannot do. Raises UnknownAction."""
        if action is not None and not isinstance(action, Checkpoint):
            raise UnknownAction(
                f"coordinator(run) yielded {action!r}, and the replicas do steps; yield Work or Checkpoint, "
                "or set evaluates = True in the driver"
            )

    @property
    def steps_done(self) -> tuple[int, ...]:
        """Steps that each replica has done, or the iterations of the program."""
        return ()

    # The driver's program.

    def extend(self) -> bool:
        """Adds the work up to `run.until`. Returns whether any of it is to be done."""
        raise AssertionError("no work in this mode")

    def begin_work(self, now: float) -> list[CoordinatorEffect]:
        """Has replicas do what `extend` has added while the run was at work."""
        return []

    @property
    def is_complete(self) -> bool:
        """Returns whether the work is done, so that a checkpoint may hold all of it."""
        return False

    def progress(self, iterated: Iterated) -> Progress:
        """Returns the report of an iteration of the program."""
        values = {"loss": iterated.loss, "gradient_norm": iterated.gradient_norm, "step": iterated.step}
        values["evaluations"] = iterated.evaluations
        return Progress(COORDINATOR, iterated.iteration, values=values, note=iterated.note)

    def own_event(self, event: Any, now: float) -> list[CoordinatorEffect]:
        """Handles an event that only this mode has."""
        raise AssertionError(event)

    # Hosts.

    @abstractmethod
    def receive(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        """Handles a message about the work; the table of permissions has refused all others."""

    def rejection_reason(self, host: HostRecord, message: object) -> str | None:
        """Returns why a message about the work is invalid; None: it is not."""
        return None

    def joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Assigns work to a replica whose parts have all become ready, once the run has begun."""
        return []

    def go_on(self, now: float) -> list[CoordinatorEffect]:
        """Goes on with what had to wait: a shard has become ready, or a checkpoint has been written."""
        return self.run.finish_if_complete(now)

    def settle(self, now: float) -> list[CoordinatorEffect]:
        """Decides what several changes of an event have made due."""
        return []

    def is_dispensable(self, host: HostRecord) -> bool:
        """Returns whether the run can end without this host."""
        return False

    # Validations and the learning rate.

    def set_scale(self, scale: float, now: float) -> list[CoordinatorEffect]:
        """Multiplies the learning rate by a factor from the next safe point on."""
        raise AssertionError("there is no learning rate in this mode")

    @property
    def shown(self) -> int:
        """The command by which shards send the present point; 0: parts have the parameters, or fetch them."""
        return 0

    def is_at(self, stop: Validate) -> bool:
        """Returns whether all that is before a stop is done, so that replicas can agree on the parameters."""
        return self.is_complete

    def is_past(self, stop: Validate) -> bool:
        """Returns whether the run goes on from parameters that hold more: an earlier one had this stop."""
        return False

    @property
    def validators(self) -> dict[int, tuple[int, ...]]:
        """The replicas that can evaluate the validation data now, with the incarnations of their parts."""
        return dict(self.run.seats.seated)

    @property
    def validation_basis(self) -> object:
        """A value that changes where parameters may have changed while they were evaluated."""
        return self.run.shards_revision

    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Replaces all parts of a replica of which one has died: a step needs every part."""
        raise AssertionError("no replica is started again in this mode")

    def restart_part(
        self, host: HostRecord, replica: ReplicaRecord, reason: str, now: float
    ) -> list[CoordinatorEffect]:
        """Replaces a part that has died, and all that its replica needs anew."""
        return self.restart_replica(replica, reason, now)

    def restarted(
        self, replica: ReplicaRecord, text: str, reason: str, now: float
    ) -> list[CoordinatorEffect]:
        """Starts the parts of a replica again, and says so."""
        return [Warn(f"{reason}; {text}"), self.run.relaunch(replica.parts, reason, now)]

    def has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Gives the work of a replica that has left to others."""
        raise AssertionError("no replica leaves in this mode")

    def call_back(self, now: float) -> list[CoordinatorEffect]:
        """Starts replicas again that have ended because they were not needed any more."""
        effects: list[CoordinatorEffect] = []
        for replica in self.run.registry.replicas:
            if any(part.state is HostState.GONE for part in replica.parts):
                effects += self.restart_replica(replica, f"replica {replica.index} had ended", now)
        return effects

    def ended(self, host: HostRecord) -> None:  # noqa: B027 - nothing to note for some
        """Notes that no process of a host runs any more."""

    def shard_died(self, start: str) -> str:
        """Notes that a shard goes back to `start`. Returns what follows, in words."""
        return f"restarted from {start}"

    def shard_is_replaced(self, now: float) -> list[CoordinatorEffect]:
        """Has replicas do what a shard's death has made necessary."""
        return []

    # Checkpoints, and time.

    def begin_round(self, now: float) -> list[CoordinatorEffect]:
        """Begins a checkpoint, if that is possible now."""
        raise AssertionError("no checkpoint is written in this mode")

    def last_round(self, now: float) -> list[CoordinatorEffect]:
        """Begins the checkpoint after which the run ends, after Ctrl-C."""
        return [] if self.run.checkpoints.round is not None else self.begin_round(now)

    def postpone(self, now: float) -> list[CoordinatorEffect]:
        """Chooses a later step for the checkpoint under way: a part was faster than its reports."""
        raise AssertionError("shards write their files at any time")

    def committed(self) -> None:  # noqa: B027 - nothing to note for some
        """Notes that the checkpoint under way is on disk."""

    @abstractmethod
    def watch(self, now: float) -> list[CoordinatorEffect]:
        """Repeats what was not answered, and looks for replicas without progress."""

    @abstractmethod
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
