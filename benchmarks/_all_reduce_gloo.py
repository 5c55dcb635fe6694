"""A member of an all-reduce over gloo: arguments RANK MEMBERS FILE, by which they find one another."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks._worker import serve


class GlooMember:
    """One process of the group, with one thread."""

    def __init__(self, rank: int, members: int, meeting: Path) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=members)

    def prepare(self, algorithm: str, length: int) -> None:
        """Allocates so many float32; gloo chooses the algorithm."""
        self._vector = torch.zeros(length)

    def run(self, times: int) -> float:
        """Seconds of one of so many all-reduces in a row."""
        dist.all_reduce(self._vector)
        began = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(self._vector)
        return (time.perf_counter() - began) / times


if __name__ == "__main__":
    serve(lambda: GlooMember(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
