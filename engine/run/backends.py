"""Backends of a session, which play its parts: the interface, and the one in the calling thread.

A backend receives and returns arrays, part by part, without interpreting them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.failure import report_of
from partita.engine.protocol.messages import Played
from partita.engine.protocol.names import part_name
from partita.engine.run.phases import OnPhase, compiling, silent
from partita.engine.run.step import HostError
from partita.engine.runtime.compile_events import reports_compiling
from partita.engine.runtime.session import SessionPart, SessionTask
from partita.engine.runtime.trace import Recorder
from partita.engine.transport.payload import Payload


class PartStep(NamedTuple):
    """Results of a part's step. `collected`: requested arrays and the table of a trace, as one payload."""

    played: Played
    collected: Payload | None


class Backend(ABC):
    """Plays steps of all parts."""

    @abstractmethod
    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        """Replaces each part's parameters.

        Args:
            vector: returns a machine's parameters, written into the given vector, or as a new one.
        """

    @abstractmethod
    def play(
        self,
        step: int,
        inputs: Sequence[Sequence[Array]] | None,
        real: int,
        collect: tuple[str, ...],
        *,
        trace: bool = False,
    ) -> list[PartStep]:
        """Plays a step, with the last inputs if none are given; with `trace`, the trace's table is collected
        too.

        Raises:
            HostError: a part fails, dies, or does not answer in time.
        """

    @abstractmethod
    def clocks(self) -> list[Offset]:
        """Measures the offset of each part's clock from this thread's (`perf_counter`).

        Raises:
            HostError: a part does not answer.
        """

    @abstractmethod
    def close(self, *, orderly: bool = True) -> None:
        """Ends the parts; at once, unless `orderly`."""


class InlineBackend(Backend):
    """Plays one part in the calling thread: no message, no queue, no thread but those of kernels.

    Until it is closed, the BLAS of the process has one thread: kernels call it from their own.
    """

    def __init__(self, task: SessionTask, on_phase: OnPhase = silent) -> None:
        """Sets up the part; `on_phase` is called with the number of functions it compiles."""
        self._name = part_name(0, task.machine)
        self._limits = ExitStack()
        self._limits.enter_context(blas_on_one_thread())
        try:
            with (
                self._reporting(),
                reports_compiling(lambda compiled: on_phase(compiling(compiled))),
            ):
                self._part = SessionPart(task)
        except BaseException:
            self._limits.close()
            raise
        computations = self._part.computations
        self._metrics = computations.metrics
        self._calls = [(n, call) for n, call in enumerate(computations.calls) if call is not None]
        self._recorder = Recorder(task.program, partial(part_name, 0))

    @override
    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        vector(0, self._part.parameters)
        self._part.changed()

    @override
    def play(
        self,
        step: int,
        inputs: Sequence[Sequence[Array]] | None,
        real: int,
        collect: tuple[str, ...],
        *,
        trace: bool = False,
    ) -> list[PartStep]:
        if inputs is not None:
            for target, given in zip(self._part.inputs, inputs[0], strict=True):
                np.copyto(target, given)
        self._part.begin(real)
        began = time.perf_counter()
        try:
            if trace:
                self._trace(step, began)
            else:
                for _, call in self._calls:
                    call()
            self._part.computations.finish()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._failure(error) from error
        took = time.perf_counter() - began
        collected = self._collected(collect, trace=trace) if collect or trace else None
        played = Played(step, self._metrics.loss, self._metrics.correct, took, took, 0, 0)
        return [PartStep(played, collected)]

    def _trace(self, step: int, began: float) -> None:
        """Plays a step and records the seconds of each instruction."""
        recorder = self._recorder
        recorder.on = True
        recorder.begin(step, began)
        for position, call in self._calls:
            started = time.perf_counter()
            call()
            recorder.played(position, started, time.perf_counter())
        recorder.end(time.perf_counter())

    @override
    def clocks(self) -> list[Offset]:
        return [Offset(0.0, 0.0)]

    def _collected(self, collect: tuple[str, ...], *, trace: bool) -> Payload:
        found = [self._part.collected(name) for name in collect]
        if trace:
            found.append(self._recorder.table())
        return Payload([array.reshape(-1).view(np.uint8).data for array in found if array is not None])

    def _failure(self, error: BaseException) -> HostError:
        report = report_of(error)
        return HostError(self._name, report.reason, report.traceback)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._failure(error) from error

    @override
    def close(self, *, orderly: bool = True) -> None:
        self._part.computations.close()
        self._limits.close()
