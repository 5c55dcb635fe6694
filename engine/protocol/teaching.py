"""The vector "predictions" of a part, as its program uses it: minibatches that teachers have predicted.

A teacher's pass adds to an entry of it, replicas exchange it like any other vector, and a student's pass
learns what an entry holds. It is as long as the driver's entries, each of which has a number for every score
of a minibatch that the part has. It holds nothing that outlives a view.
"""

from __future__ import annotations

from typing import Final

from partita.engine.protocol.actions import Combine, Compute, Share
from partita.engine.protocol.program_effects import PREDICTIONS, PartSeat
from partita.engine.protocol.views import JoinedBatches, Member


class Teaching:
    """The rules by which the program of a part uses its predictions."""

    def __init__(self, seat: PartSeat, batches: JoinedBatches) -> None:
        self._seat: Final = seat
        self._batches: Final = batches
        self._is_taught = False  # a teacher has predicted, in this view, since the vector was made anew

    def begin_view(self) -> None:
        """Forgets what was predicted in another view: its steps may not be done any more."""
        self._is_taught = False

    def combine(self, action: Combine) -> None:
        """Notes that a vector is made anew."""
        if action.into == PREDICTIONS:
            self._is_taught = False

    def examples(self, action: Compute, me: Member) -> tuple[int, int]:
        """Returns the position and the rank whose examples a pass has.

        Raises:
            RuntimeError: the pass learns what nobody has predicted, or has examples or an entry that it
                cannot have.
        """
        program, entries = "the driver's program", self._seat.entries
        if (action.teaches or action.distil) and not 0 <= action.entry < entries:
            raise RuntimeError(
                f"{program} computes entry {action.entry} of the predictions, and the driver keeps "
                f"{entries}; give it a property `taught_minibatches`"
            )
        if action.distil and not self._is_taught:
            raise RuntimeError(
                f"{program} computes a step with distil={action.distil}, and no teacher has predicted its "
                "examples; let Compute(step, teaches=1.0) come before, by a teacher's parameters"
            )
        self._is_taught |= action.teaches != 0
        if not isinstance(action.of, Share):
            return me.position, me.rank
        of = action.of
        if not action.teaches or not 0 <= of.rank < me.replicas or of.ahead < 0:
            raise RuntimeError(
                f"{program} computes {of} with teaches={action.teaches}, in a view of {me.replicas} "
                "replicas; only a teacher's pass has examples of another replica, and ranks begin at 0"
            )
        return self._batches.position(me.position, of.ahead, me.replicas), of.rank
