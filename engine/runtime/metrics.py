"""What the losses of a machine came to, summed over the examples of one step or more.

Each portion of a step has sums of its own, so that the order in which portions end shows in no bit.
"""

from __future__ import annotations

from partita.partitioner.ir.buffer import Buffer


class Metrics:
    """Sums over examples: what each loss of this machine came to. One thread at a time adds to one.

    A name is that of the loss's buffer.
    """

    def __init__(self) -> None:
        self._losses: dict[Buffer, float] = {}
        self._correct: dict[Buffer, int] = {}

    def expect(self, name: Buffer) -> None:
        """There is a loss of this name."""
        self._losses[name], self._correct[name] = 0.0, 0

    def add(self, name: Buffer, loss: float, correct: int) -> None:
        """What a loss came to in a portion of a step."""
        self._losses[name] += loss
        self._correct[name] += correct

    def clear(self) -> None:
        """Starts from zero."""
        for name in self._losses:
            self.expect(name)

    @property
    def loss(self) -> float:
        """Of all losses, in the order of the program."""
        return sum(self._losses.values())

    @property
    def correct(self) -> int:
        """Of all losses."""
        return sum(self._correct.values())
