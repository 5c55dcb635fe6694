"""Examples in portions, as replicas see them."""

from __future__ import annotations

from partita.engine.protocol.commands import Portions, Segment
from partita.engine.run.minimise import Summed
from tests.methods.problems import Array, Logistic


class Portioned:
    """A regression's examples, in portions of which the last one of an epoch may be smaller."""

    def __init__(self, problem: Logistic, size: int) -> None:
        self.problem = problem
        self.portions = Portions(len(problem.inputs), size)

    def evaluate(self, x: Array, segment: Segment) -> Summed:
        """Sums of a segment, as replicas would compute them portion after portion."""
        loss, gradient = 0.0, 0.0 * x
        for portion in range(segment.first, segment.first + segment.count):
            _, start, stop = self.portions.place(portion)
            losses, gradients = self.problem.sums(x, start, stop)
            loss, gradient = loss + losses, gradient + gradients / self.portions.size
        return loss, 0.0, gradient

    def mean(self, x: Array, *segments: Segment, l2: float) -> tuple[float, Array]:
        """Loss and gradient of the segments' examples, each example by itself."""
        loss, gradient, n = 0.0, 0.0 * x, 0
        for segment in segments:
            for portion in range(segment.first, segment.first + segment.count):
                _, start, stop = self.portions.place(portion)
                for example in range(start, stop):
                    losses, gradients = self.problem.sums(x, example, example + 1)
                    loss, gradient, n = loss + losses, gradient + gradients, n + 1
        return loss / n + l2 / 2 * float(x @ x), gradient / n + l2 * x
