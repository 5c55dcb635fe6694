"""Two processes of PyTorch that train one network together over gloo, a thread for each.

The first answers calls, starts the second, and sends it the number of steps through gloo.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import distributed as dist

from benchmarks._worker import serve

PARTS: Final = 2


class GroupPlayer(ABC):
    """Plays the part of one of the two.

    Args:
        rank: which.
        meeting: a file by which they find one another.
    """

    def __init__(self, rank: int, meeting: Path) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=PARTS)
        self.rank = rank

    @abstractmethod
    def step(self) -> float:
        """Plays a step with the other; the loss, if this is the last rank."""

    def play(self, steps: int) -> dict[str, object]:
        """Seconds and loss of each step, and for how long processors were busy, for both processes."""
        dist.broadcast(torch.tensor([steps]), 0)
        return self.steps(steps)

    def steps(self, steps: int) -> dict[str, object]:
        """The same for this one, with the other at it too."""
        seconds, losses, used = [], [], time.process_time()
        for _ in range(steps):
            dist.barrier()
            began = time.perf_counter()
            loss = torch.tensor([self.step()])
            dist.broadcast(loss, PARTS - 1)
            dist.barrier()
            seconds.append(time.perf_counter() - began)
            losses.append(float(loss))
        busy = torch.tensor([time.process_time() - used], dtype=torch.float64)
        dist.all_reduce(busy)
        return {"seconds": seconds, "losses": losses, "busy_s": float(busy)}

    def listen(self) -> None:
        """Plays what the first process asks for, until it ends."""
        asked = torch.zeros(1, dtype=torch.int64)
        while True:
            try:
                dist.broadcast(asked, 0)
            except RuntimeError:  # it has ended
                return
            self.steps(int(asked))


def serve_group(module: str, arguments: Sequence[str], player: Callable[[int, Path], GroupPlayer]) -> None:
    """Runs in both processes: serves the player of this rank.

    Args:
        module: the calling module of this folder.
        arguments: of the module; for the second process also the file by which the two find each other.
        player: makes the player of a rank, given that file.
    """
    if len(sys.argv) - 1 > len(arguments):
        player(1, Path(sys.argv[-1])).listen()
        return
    with tempfile.TemporaryDirectory() as place:
        meeting = Path(place) / "meeting"
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, str(meeting)]
        other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            serve(lambda: player(0, meeting))
        finally:
            other.kill()
            other.wait()
