"""PyTorch's L-BFGS on a problem, in a process of its own: arguments PROBLEM FORM PRECISION THREADS.

Forms: "eager"; "compile" by torch.compile, which compiles before anything is timed.
"""

from __future__ import annotations

import sys

import torch

from benchmarks._batch_problems import PROBLEMS
from benchmarks._batch_references import Reference, by_torch
from benchmarks._worker import serve
from partita.engine.parameters import initialise


class TorchLBFGS:
    """Minimises from the initial parameters of a seed, as often as it is asked to."""

    def __init__(self, problem: str, form: str, precision: str, threads: int) -> None:
        torch.set_num_threads(threads)
        made = PROBLEMS[problem]()
        self._initial = initialise(made.graph.parameters.values(), 0, dtype=precision)
        self._reference = Reference(made, self._initial, precision)
        self._start = self._reference.point
        self._loss = torch.compile(self._reference) if form == "compile" else self._reference
        for _ in range(3):  # what is done once: compiled code, memory, threads
            self._loss().backward()

    def minimise(self, until: float, history: int, max_evaluations: int) -> dict[str, object]:
        """Until an evaluation has such a loss, or to the end."""
        self._reference.move(self._start)
        found = by_torch(
            self._reference,
            gtol=0.0,
            history=history,
            max_evaluations=max_evaluations,
            loss=self._loss,
            until=until,
        )
        return {"iterations": found.iterations, "losses": found.losses, "seconds": found.seconds}


if __name__ == "__main__":
    problem, form, precision, threads = sys.argv[1:]
    serve(lambda: TorchLBFGS(problem, form, precision, int(threads)))
