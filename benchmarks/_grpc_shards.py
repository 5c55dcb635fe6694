"""One part and two shards over gRPC: a stream of chunks each way, updated chunk by chunk by torch's Adagrad.

The messages are plain bytes, without Protocol Buffers. A shard answers every chunk of a gradient with the
parameters that it leads to, so sending, updating and receiving overlap. Needs `grpcio`.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import numpy as np

from benchmarks._torch_adagrad import TorchShard
from benchmarks._worker import serve

SHARDS: Final = 2
CHUNK: Final = 1 << 18
"""Numbers in a message of 1 MiB, the fastest of 64 KiB to 16 MiB here."""

_OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_METHOD: Final = "/benchmark/Update"


class Player:
    """The part: streams each shard its half of a gradient, and receives its half of the parameters.

    Args:
        size: parameters.
        ports: of the shards, on loopback.
    """

    def __init__(self, size: int, ports: list[int]) -> None:
        gradient, values = np.full(size, 0.5, np.float32), np.zeros(size, np.float32)
        self._values = values
        half = -(-size // SHARDS)
        self._halves = [
            (gradient[start : start + half], values[start : start + half]) for start in range(0, size, half)
        ]
        self._channels = [grpc.insecure_channel(f"127.0.0.1:{port}", _OPTIONS) for port in ports]
        self._calls = [channel.stream_stream(_METHOD) for channel in self._channels]
        self._threads = ThreadPoolExecutor(SHARDS)
        self.play(2)

    def play(self, steps: int) -> list[float]:
        """Seconds of each step."""
        return [self._once() for _ in range(steps)]

    def first(self) -> float:
        """The first parameter."""
        return float(self._values[0])

    def _once(self) -> float:
        began = time.perf_counter()
        list(self._threads.map(self._exchange, range(SHARDS)))
        return time.perf_counter() - began

    def _exchange(self, shard: int) -> None:
        gradient, values = self._halves[shard]
        chunks = (gradient[start : start + CHUNK].tobytes() for start in range(0, gradient.size, CHUNK))
        start = 0
        for answer in self._calls[shard](chunks, wait_for_ready=True):
            numbers = np.frombuffer(answer, np.float32)
            values[start : start + numbers.size] = numbers
            start += numbers.size
        assert start == values.size


def serve_shard(size: int) -> None:
    """Answers streams until its input ends; prints its port first."""
    warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
    shard = TorchShard(size, CHUNK)

    def update(chunks: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for n, chunk in enumerate(chunks):
            yield shard.update(n, np.frombuffer(chunk, np.float32)).tobytes()

    handler = grpc.method_handlers_generic_handler(
        "benchmark", {"Update": grpc.stream_stream_rpc_method_handler(update)}
    )
    server = grpc.server(ThreadPoolExecutor(2), options=_OPTIONS)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


def main() -> None:
    """Serves the part, and starts the shards; or is a shard, if that is among the arguments."""
    size = int(sys.argv[1])
    if len(sys.argv) > 2:
        serve_shard(int(sys.argv[2]))
        return
    half = -(-size // SHARDS)
    command = [sys.executable, "-m", "benchmarks._grpc_shards", str(size)]
    shards = [
        subprocess.Popen(
            [*command, str(min(half, size - n * half))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(SHARDS)
    ]
    try:
        ports = [int(shard.stdout.readline()) for shard in shards if shard.stdout is not None]
        serve(lambda: Player(size, ports))
    finally:
        for shard in shards:
            shard.kill()
            shard.wait()
            for pipe in (shard.stdin, shard.stdout):
                if pipe is not None:
                    pipe.close()


if __name__ == "__main__":
    main()
