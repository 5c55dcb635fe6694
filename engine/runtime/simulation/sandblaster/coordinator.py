"""The user's process under Sandblaster: begins from the run's folder, and keeps journal and manifests."""

from __future__ import annotations

from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    AppendJournal,
    Commit,
    CoordinatorEffect,
    EndRun,
    IterationDone,
    Warn,
)
from partita.engine.protocol.messages import Assignment, Command, Message
from partita.engine.protocol.names import part_indices
from partita.engine.runtime.simulation.coordinator import CoordinatorHost, timeouts
from partita.engine.runtime.simulation.sandblaster.ledger import RunLedger
from partita.engine.runtime.simulation.sandblaster.setting import Setting


class SandblasterCoordinatorHost(CoordinatorHost):
    """Interprets the effects of a `SandblasterCoordinator`.

    Attributes:
        ledger: of its run.
        start: the checkpoint that its run began with; None: the start of the method.
    """

    def __init__(self, setting: Setting, *, run: int) -> None:
        around, scenario, disk = setting.around, setting.scenario, setting.disk
        super().__init__(setting.world, around, setting.launch, incarnation=run)
        self.setting = setting
        self.ledger = RunLedger(setting.ledger, self.writers)
        self.start = disk.newest()
        self.machine = setting.machines.coordinator(
            around.topology,
            begin=scenario.begin,
            unit_size=scenario.unit_size,
            journal=list(disk.journal),
            position=0 if self.start is None else self.start.position or 0,
            backups=scenario.backups,
            next_checkpoint=disk.next_checkpoint(),
            timeouts=timeouts(around),
        )
        self._left: int | None = None  # effects until it crashes

    def crash(self) -> None:
        """At once, or in the middle of what it does next."""
        if self.world.random.random() < 0.4:
            self.exit()
        else:
            self._left = self.world.random.randrange(12)

    def perform(self, effect: CoordinatorEffect) -> None:
        """One effect, if it comes to that."""
        if self._left is None:
            super().perform(effect)
        elif self._left > 0:
            self._left -= 1
            super().perform(effect)
        else:
            self.world.note(self, "crashes before", effect)
            self.exit()

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Shows the ledger what it orders."""
        if isinstance(message, Command):
            self.ledger.commands_shard(message)
        elif isinstance(message, Assignment):
            indices = part_indices(to)
            assert indices is not None
            self.ledger.hands_out(indices[0], self.current[to], message)
        super().send(to, message, payload)

    def carry_out(self, effect: CoordinatorEffect) -> None:
        """Records, commits, ends, or says something."""
        setting, disk = self.setting, self.setting.disk
        match effect:
            case AppendJournal():
                setting.ledger.records(effect)
                disk.append(effect.digest, effect.scalars)
            case Commit():
                self.writes(effect.checkpoint, lambda: self._commit(effect))
            case IterationDone(iterated=iterated):
                setting.ledger.tells(iterated)
            case EndRun() | AbortRun():
                setting.end(effect)
            case Warn():
                self.world.note(self, "Warn", effect)
            case _:
                raise AssertionError(effect)

    def _commit(self, order: Commit) -> None:
        self.setting.disk.sync()  # a checkpoint without its journal would be good for nothing
        self.setting.ledger.commits(order, self.current)
        self.setting.disk.manifests[order.checkpoint] = order
        self.world.note(self, "Commit", order)
