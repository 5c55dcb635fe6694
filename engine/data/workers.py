"""Processes that make minibatches, for transforms and readers whose Python code would hold up one another.

A process runs `worker`; it ends when its connection does. Numbers travel as raw bytes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import DataError
from partita.engine.data.draws import Batch
from partita.engine.data.prepared import Prepared

Array = npt.NDArray[Any]

LATEST_S = 5.0


class WorkerProcesses:
    """Makes minibatches in processes, as many at a time as there are. From several threads.

    Attributes:
        made_s, made: see `Maker`.
    """

    def __init__(self, prepared: Prepared, count: int) -> None:
        """Starts the processes. Raises DataError if the data set cannot be sent to them."""
        self.made_s, self.made = 0.0, 0
        try:
            task = cloudpickle.dumps((sys.path, replace(prepared, processes=False)))
        except (TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"the data cannot be sent to worker processes ({error}); use threads: processes=False"
            ) from error
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers = [_Worker(task) for _ in range(count)]
        for worker in self._workers:
            self._idle.put(worker)

    def make(self, chosen: Array, epoch: int) -> Batch:
        """Has a minibatch made. Raises as `Maker.make`, and OSError if the process has ended."""
        worker = self._idle.get()
        try:
            batch, took_s = worker.make(chosen, epoch)
        finally:
            self._idle.put(worker)
        self.made_s += took_s
        self.made += len(chosen)
        return batch

    def close(self) -> None:
        """Ends the processes, and waits for their end."""
        for worker in self._workers:
            worker.close()


class _Worker:
    """One process."""

    def __init__(self, task: bytes) -> None:
        own, other = socket.socketpair()
        with other:
            command = [sys.executable, "-m", "partita.engine.data.worker", str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(own.detach())
        self._connection.send_bytes(task)

    def make(self, chosen: Array, epoch: int) -> tuple[Batch, float]:
        try:
            self._connection.send((chosen, epoch))
            answer = self._connection.recv()
            if isinstance(answer, BaseException):
                raise answer
            shapes, took_s = answer
            batch = {}
            for name, (shape, dtype) in shapes.items():
                array = batch[name] = np.empty(shape, dtype)
                if array.nbytes:
                    self._connection.recv_bytes_into(array.data.cast("B"))
            return batch, took_s
        except (EOFError, ConnectionError) as error:
            code = self._process.poll()
            raise OSError(
                f"a worker process of the data has ended (exit status {code}); what it printed is above"
            ) from error

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(LATEST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(descriptor: int) -> None:
    """Makes minibatches until the connection ends: the whole life of a worker process."""
    connection = Connection(os.dup(descriptor))
    os.close(descriptor)
    path, prepared = cloudpickle.loads(connection.recv_bytes())
    sys.path[:] = path
    from partita.engine.files.access import HostFiles

    maker = None
    while True:
        try:
            chosen, epoch = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            maker = maker or prepared.maker(HostFiles())
            before = maker.made_s
            batch = maker.make(chosen, epoch)
        except Exception as error:  # noqa: BLE001 - raised again by the host
            connection.send(_sent(error))
            continue
        arrays = {name: np.ascontiguousarray(array) for name, array in batch.items()}
        connection.send(({n: (a.shape, a.dtype) for n, a in arrays.items()}, maker.made_s - before))
        for array in arrays.values():
            if array.nbytes:
                connection.send_bytes(array.data.cast("B"))


def _sent(error: Exception) -> Exception:
    """Returns an error that can be pickled."""
    if isinstance(error, DataError):
        return DataError(str(error))
    kind = OSError if isinstance(error, OSError) else RuntimeError
    return kind(f"{type(error).__name__}: {error}")
