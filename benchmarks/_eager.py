"""The same network in PyTorch eager, in a process of its own: `Eager` drives it, `main` is the process.

The process reads how many steps it should play, one number a line, and answers with seconds and losses as
JSON. It ends with its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import TracebackType
from typing import Self


class Eager:
    """Steps of PyTorch, with so many threads. Use it as a context manager."""

    def __init__(self, *, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._eager", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )

    def play(self, steps: int) -> tuple[list[float], list[float]]:
        """Seconds and loss of each step.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the PyTorch process exited with {self._process.wait()}; see what it printed")
        seconds, losses = json.loads(answer)
        return seconds, losses

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()


def main(threads: int) -> None:
    """The process."""
    import torch  # here, because the process that drives this one needs none of it

    from benchmarks import _speech

    torch.set_num_threads(threads)
    graph = _speech.speech()
    initial = _speech.parameters(graph)
    modules: list[torch.nn.Module] = []
    for grid in (grid for grid in graph.computed if grid.parameters):
        weight, bias = (torch.from_numpy(initial[parameter.name]) for parameter in grid.parameters)
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight, linear.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        modules += [linear, torch.nn.Sigmoid()]
    network = torch.nn.Sequential(*modules[:-1])  # scores are linear
    optimiser = torch.optim.SGD(network.parameters(), lr=_speech.RATE, fused=True)
    frames, labels = (torch.from_numpy(array) for array in _speech.batch().values())
    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            began = time.perf_counter()
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(frames), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - began)
        print(json.dumps((seconds, losses)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
