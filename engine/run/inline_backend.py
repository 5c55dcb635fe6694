"""The backend of a session that plays one part in the calling thread: no message, no queue, no thread but
those of kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NoReturn

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.failure import HostError, report_of
from partita.engine.protocol.names import part_name
from partita.engine.protocol.requested_work import COLLECTED
from partita.engine.protocol.session_messages import Play
from partita.engine.run.phases import OnPhase, compiling, silent
from partita.engine.runtime.compile_events import reports_compiling
from partita.engine.runtime.session import PartStep, SessionTask
from partita.engine.transport.payload import Payload


class InlineBackend:
    """Plays one part; its methods are those of `HostedBackend`.

    Until it is closed, the BLAS of the process has one thread: kernels call it from their own.
    """

    def __init__(self, task: SessionTask, on_phase: OnPhase = silent) -> None:
        """Sets up the part; `on_phase` is called with the number of functions it compiles."""
        with ExitStack() as limits:
            limits.enter_context(blas_on_one_thread())
            try:
                with reports_compiling(lambda compiled: on_phase(compiling(compiled))):
                    self._part = task.part()
            except BaseException as error:  # noqa: BLE001 - whatever it is
                _raise(error)
            self._limits = limits.pop_all()
        calls = self._part.computations.calls
        phases = task.phases or (range(len(calls)),)
        self._calls = [[(n, call) for n in phase if (call := calls[n]) is not None] for phase in phases]

    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        """Replaces the parameters by those that `vector` writes for machine 0."""
        self._part.load(lambda parameters: vector(0, parameters))

    def play(self, order: Play, inputs: Sequence[Sequence[Array]] | None) -> list[PartStep]:
        """Plays a step, with the last inputs if none are given. Raises HostError."""
        part = self._part
        part.arrange(order)
        if inputs is not None:
            for target, given in zip(part.inputs[order.phase], inputs[0], strict=True):
                np.copyto(target, given)
        part.begin(order)
        try:
            if order.trace:
                self._trace(order)
            else:
                for _, call in self._calls[order.phase]:
                    call()
            played, arrays = part.end(), part.payload(COLLECTED)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            _raise(error)
        found = Payload([array.reshape(-1).view(np.uint8).data for array in arrays]) if arrays else None
        return [PartStep(played, found)]

    def _trace(self, order: Play) -> None:
        """Plays a step and records the seconds of each instruction."""
        recorder = self._part.recorder
        recorder.begin(order.step, time.perf_counter())
        for position, call in self._calls[order.phase]:
            started = time.perf_counter()
            call()
            recorder.played(position, started, time.perf_counter())
        recorder.end(time.perf_counter())

    def clocks(self) -> list[Offset]:
        """Returns no offset: the part has this thread's clock."""
        return [Offset(0.0, 0.0)]

    def close(self, *, orderly: bool = True) -> None:
        """Ends the kernel threads, and gives the BLAS its threads back."""
        self._part.computations.close()
        self._limits.close()


def _raise(error: BaseException) -> NoReturn:
    """Raises an error of the part as that of a host; Ctrl-C stays what it is."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    report = report_of(error)
    raise HostError(part_name(0, 0), report.reason, report.traceback) from error
