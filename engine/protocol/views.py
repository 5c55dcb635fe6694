"""Views of a run: who takes part from which step on, and which examples each step has.

A view has a number, and ends when its successor is published. All of its replicas do the same steps together:
the examples of all of them in a step are a joined batch, and a position counts the examples before it, since
the first epoch began. So the number of replicas may change from view to view, and no example of an epoch is
left out or comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from partita.engine.protocol.replica_messages import View


@dataclass(frozen=True, slots=True)
class JoinedBatches:
    """The joined batches of a run.

    Args:
        examples: in an epoch.
        batch: the most that one replica takes in a step.
        seed: of the run.
        minibatch: examples that are computed at once; 0: `batch`.
    """

    examples: int
    batch: int
    seed: int = 0
    minibatch: int = 0

    def after(self, position: int, replicas: int) -> int:
        """The position after the step that begins at a position, under so many replicas."""
        return position + min(replicas * self.batch, self.examples - position % self.examples)

    def share(self, position: int, rank: int, replicas: int) -> tuple[int, int]:
        """The examples `[first, stop)`, in the order of the epoch, of one replica in a step."""
        first = position % self.examples
        stop = first + self.after(position, replicas) - position
        return min(first + rank * self.batch, stop), min(first + (rank + 1) * self.batch, stop)

    def steps(self, start: int, stop: int, replicas: int) -> int:
        """The number of steps from one position to another one, under so many replicas."""
        joined, steps = replicas * self.batch, 0
        first, last = start // self.examples, stop // self.examples
        if first == last:
            return -(-(stop - start) // joined)
        steps += -(-((first + 1) * self.examples - start) // joined)
        steps += (last - first - 1) * -(-self.examples // joined)
        return steps + -(-(stop - last * self.examples) // joined)

    def position(self, start: int, steps: int, replicas: int) -> int:
        """The position after so many steps from one that begins at `start`."""
        joined, n = replicas * self.batch, self.examples
        rest = -(-(n - start % n) // joined)
        if steps < rest:
            return start + steps * joined
        start, steps = (start // n + 1) * n, steps - rest
        epochs, within = divmod(steps, -(-n // joined))
        return start + epochs * n + within * joined


@dataclass(frozen=True, slots=True)
class Outline:
    """The run, as far as a driver's `coordinator(run)` knows it.

    Args:
        epochs: that the run has in all.
        examples: in an epoch.
        batch: examples of one replica in a step.
        replicas: that the run was asked for.
    """

    epochs: int
    examples: int
    batch: int
    replicas: int


class Member:
    """One part as a member of a view, as far as a driver's `replica(me)` knows it, and its steps.

    Attributes:
        replica, machine: of the part.
        view: the number of the view.
        members: the replicas in it, ascending.
        replicas: the number of these.
        rank: the index of this replica among them.
        examples: in an epoch.
        batch: examples that are computed at once.
        seed: of the run; what a driver draws follows from it, so that all replicas draw the same.
        step: the step under way, or the next one.
        position: of that step.
        points: safe points of the state that the view begins with, after the first one of its step.
        anew: whether the states of some replicas may have come from others, or from a file, before that.
        loss_scale: of that step, as the driver's program sets it after each; None before the first one.
    """

    def __init__(self, replica: int, machine: int, view: View, batches: JoinedBatches) -> None:
        """A member that begins with the first step of a view, which has this replica."""
        self.replica: Final = replica
        self.machine: Final = machine
        self.view: Final = view.number
        self.members: Final = view.members
        self.replicas: Final = len(view.members)
        self.rank: Final = view.members.index(replica)
        self.examples: Final = batches.examples
        self.batch: Final = batches.minibatch or batches.batch
        self.seed: Final = batches.seed
        self.step, self.position = view.step, view.position
        self.points: Final = view.points
        self.anew: Final = view.anew
        self.loss_scale = view.loss_scale
        self._until: Final = view.until
        self._batches: Final = batches
        self._inside = False

    def steps(self) -> Iterator[int]:
        """Yields the number of each step that the replica does in this view, the next one first."""
        return self._steps_to(None)

    def rounds(self, every: int | None) -> Iterator[Iterator[int]]:
        """Yields the steps of each round, after which the program does what ends it, with a safe point.

        A round ends after the steps that `every` divides, and where the work of the view ends. What a change
        of the view has cut off is done first: that round has the steps that were left of it, or none.

        Args:
            every: steps; None: only the end of the work ends a round.
        """
        has_ended = self.points > 0 or self.step == 0
        while not has_ended or self.position < self._until:
            is_at_end = every is not None and self.step % every == 0
            yield iter(()) if is_at_end and not has_ended else self._steps_to(every)
            has_ended = True

    def _steps_to(self, every: int | None) -> Iterator[int]:
        while self.position < self._until:
            self._inside = True
            yield self.step
            self.step, self.position = self.reached
            self._inside = False
            if every is not None and self.step % every == 0:
                return

    def left_of(self, every: int | None) -> int:
        """Returns the steps from the next one, or the one under way, to the end of their round (`rounds`)."""
        left = self._batches.steps(self.position, self._until, self.replicas)
        return left if every is None else min(left, every - self.step % every)

    @property
    def is_complete(self) -> bool:
        """Returns whether all steps of the view's work are done."""
        return not self._inside and self.position >= self._until

    @property
    def share(self) -> float:
        """This replica's part of the examples of the step under way, from 0 to 1."""
        return self.share_among(range(self.replicas))

    def share_among(self, ranks: Sequence[int]) -> float:
        """Returns this replica's part of the examples that some ranks have in the step under way; 0 where
        these have none.
        """
        shares = {r: self._batches.share(self.position, r, self.replicas) for r in {*ranks, self.rank}}
        counts = {rank: stop - first for rank, (first, stop) in shares.items()}
        return counts[self.rank] / max(sum(counts[rank] for rank in ranks), 1)

    @property
    def is_last(self) -> bool:
        """Returns whether no step follows the one under way."""
        return self.reached[1] >= self._until

    @property
    def reached(self) -> tuple[int, int]:
        """The step and the position to go on from when the step under way is done."""
        if not self._inside:
            return self.step, self.position
        return self.step + 1, self._batches.after(self.position, self.replicas)
