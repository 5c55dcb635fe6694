"""The result of a prediction with exits: scores, where each example ended, and what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import Array
from partita.engine.run.step import Sent


@dataclass(frozen=True, repr=False)
class ExitPredictions:
    """Predictions of a network with exits.

    Attributes:
        exits: names of the exits, in their order.
        thresholds: normalised entropy below which an example ended, by exit; 1 for the last.
        scores: `[example, class]`, at the exit where the example ended.
        exit: number of that exit, int `[example]`.
        entropy: normalised entropy of the scores, float64 `[example]`.
        sent: for each exit, what each machine sent to others in its stage: messages, and bytes of tensors.
        machines: names of the machines.
        lost: names of machines that were lost, in this order.
    """

    exits: tuple[str, ...]
    thresholds: Mapping[str, float]
    scores: Array
    exit: npt.NDArray[np.int64]
    entropy: npt.NDArray[np.float64]
    sent: Mapping[str, Mapping[str, Sent]]
    machines: tuple[str, ...]
    lost: tuple[str, ...] = field(default=())

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The class of the largest score of each example, `[example]`."""
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def shares(self) -> dict[str, float]:
        """The share of the examples that ended at each exit."""
        return {name: float(np.mean(self.exit == k)) for k, name in enumerate(self.exits)}

    def accuracy(self, labels: npt.ArrayLike) -> float:
        """Returns the share of the examples whose label is that of the largest score.

        Args:
            labels: `[example]`, or `[example, 1]`.
        """
        return float(np.mean(self.labels == np.asarray(labels).reshape(-1)))

    def sent_bytes(self, machine: str | None = None) -> int:
        """Returns the bytes of tensors that a machine sent to others in all stages; None: all machines."""
        return sum(
            sent.n_bytes
            for by_machine in self.sent.values()
            for name, sent in by_machine.items()
            if machine in (None, name)
        )

    def __repr__(self) -> str:
        """Examples and shares: `ExitPredictions(360 examples: local 62%, cloud 38%; 12,345 bytes sent)`."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        lost = f"; lost {', '.join(self.lost)}" if self.lost else ""
        return (
            f"ExitPredictions({len(self.exit):,} examples: {shares}; {self.sent_bytes():,} bytes sent{lost})"
        )
