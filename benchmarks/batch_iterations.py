"""Iterations of L-BFGS on every small problem, ours, SciPy's and PyTorch's, in float64 in one process.

    python -m benchmarks.batch_iterations [--json FILE]

All keep ten pairs and begin with the same parameters. Ours and SciPy's minimise the function that the network
plays, and stop at SciPy's own tolerances (`gtol` 1e-5, `ftol` 2.2e-9); PyTorch has the same `gtol` and stops
where the loss changes by less than 1e-9. Rounding decides where hundreds of iterations end: beside SciPy's
number is the one that it needs when PyTorch computes the same function.
"""

from __future__ import annotations

from typing import Final

import torch

from benchmarks._batch_inline import played
from benchmarks._batch_problems import PROBLEMS, Problem
from benchmarks._batch_references import Reference, by_scipy, by_torch
from benchmarks._harness import Row, options, print_table, report, row
from benchmarks._machine import describe
from partita.engine import LBFGS, minimise
from partita.engine.parameters import initialise

GTOL: Final = 1e-5
FTOL: Final = 2.2e-9

LARGE: Final = "large digits, two layers"


def main() -> None:
    """Counts and reports."""
    asked = options(__doc__ or "", rounds=1)
    torch.set_num_threads(1)
    print(describe(), flush=True)
    found = [_counted(name, make()) for name, make in PROBLEMS.items() if name != LARGE]
    heads = ("problem", "parameters", "ours", "SciPy", "SciPy on torch's", "torch", "loss", "SciPy's loss")
    print_table("iterations / evaluations", heads, [line for line, _ in found])
    report("iterations, SciPy's over ours", [counted for _, counted in found], file=asked.json)


def _counted(name: str, problem: Problem) -> tuple[tuple[str, ...], Row]:
    reference = Reference(problem, initialise(problem.graph.parameters.values(), 0, dtype="float64"))
    start = reference.point
    with played(problem) as function:
        ours = minimise(function, start, LBFGS(gtol=GTOL, ftol=FTOL))
        scipy = by_scipy(function, start, gtol=GTOL, ftol=FTOL)
    other = by_scipy(reference.at, start, gtol=GTOL, ftol=FTOL)
    reference.move(start)
    pytorch = by_torch(reference, gtol=GTOL, ftol=1e-9)
    counts = [(len(ours.iterations), ours.evaluations)]
    counts += [(one.iterations, one.evaluations) for one in (scipy, other, pytorch)]
    figures = [f"{iterations} / {evaluations}" for iterations, evaluations in counts]
    losses = f"{ours.loss:.8g}", f"{scipy.loss:.8g}"
    ratio = scipy.iterations / len(ours.iterations)
    note = f"{losses[0]}; SciPy {losses[1]}"
    return (name, str(len(start)), *figures, *losses), row(name, [ratio], at_least=1 / 1.15, note=note)


if __name__ == "__main__":
    main()
