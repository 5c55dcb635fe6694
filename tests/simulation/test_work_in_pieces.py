"""A driver of one's own with shards in the simulator: work that comes in pieces, and checkpoints between."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from partita.engine import SGD, Optimizer
from partita.engine.drivers import Downpour, Driver
from partita.engine.protocol.actions import Checkpoint, Plan, Program, Work
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.views import Outline
from partita.engine.testing import play
from tests.simulation.outcomes import all_hold


@dataclass(frozen=True)
class InPieces(Driver):
    """Replicas on their own, whose work comes piece by piece, with checkpoints between some of the pieces."""

    replicas: int = 1
    shards: int = 2
    optimizer: Optimizer = field(default=SGD(0.05))

    def coordinator(self, run: Outline) -> Plan:
        left, n = run.epochs * run.examples, 1
        while left:
            yield Work(examples=min(n, left))
            left, n = left - min(n, left), n + 2
            if n % 3:
                yield Checkpoint()

    def replica(self, me: HasSteps) -> Program:
        return Downpour(push_every=2).replica(me)


@pytest.mark.slow
def test_work_that_comes_in_pieces_is_done_once() -> None:
    """Each piece is done by all before the next one, whoever dies; a run that was resumed leaves none out."""
    all_hold(lambda seed: play(InPieces(replicas=1 + seed % 4), seed), range(200))
