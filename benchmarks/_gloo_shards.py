"""One part and two shards over gloo: gradients out, torch's Adagrad on each shard, parameters back."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch
from torch import distributed as dist

from benchmarks._worker import serve

SHARDS: Final = 2


def join(rank: int, meeting: Path) -> None:
    """Becomes a rank of the group: the part is 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=SHARDS + 1)


class Player:
    """The part: sends each shard its half of a gradient, and receives its half of the parameters.

    Args:
        size: parameters.
        meeting: a file by which the processes find one another.
    """

    def __init__(self, size: int, meeting: Path) -> None:
        join(0, meeting)
        self._gradients = torch.full((size,), 0.5).chunk(SHARDS)
        self._values = torch.zeros(size).chunk(SHARDS)
        self.play(2)

    def play(self, steps: int) -> list[float]:
        """Seconds of each step."""
        return [self._once() for _ in range(steps)]

    def first(self) -> float:
        """The first parameter."""
        return float(self._values[0][0])

    def _once(self) -> float:
        began = time.perf_counter()
        work = [dist.isend(gradient, n + 1) for n, gradient in enumerate(self._gradients)]
        work += [dist.irecv(values, n + 1) for n, values in enumerate(self._values)]
        for one in work:
            assert one is not None
            one.wait()
        return time.perf_counter() - began


def serve_shard(rank: int, size: int, meeting: Path) -> None:
    """Updates its half by every gradient, with torch's fused update, until the part has ended."""
    join(rank, meeting)
    values = torch.zeros(size).chunk(SHARDS)[rank - 1].clone().requires_grad_()
    values.grad = torch.zeros_like(values)
    optimizer = torch.optim.Adagrad([values], lr=0.01, eps=1e-8, fused=True)
    while True:
        try:
            dist.recv(values.grad, 0)
            optimizer.step()
            dist.send(values.detach(), 0)
        except RuntimeError:  # the part has ended
            return


def main() -> None:
    """Serves the part, and starts the shards; or is a shard, if its rank is among the arguments."""
    size = int(sys.argv[1])
    if len(sys.argv) > 2:
        serve_shard(int(sys.argv[2]), size, Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as place:
        meeting = Path(place) / "meeting"
        command = [sys.executable, "-m", "benchmarks._gloo_shards", str(size)]
        shards = [
            subprocess.Popen(
                [*command, str(n + 1), str(meeting)], stdin=subprocess.DEVNULL, stdout=sys.stderr
            )
            for n in range(SHARDS)
        ]
        try:
            serve(lambda: Player(size, meeting))
        finally:
            for shard in shards:
                shard.kill()
                shard.wait()


if __name__ == "__main__":
    main()
