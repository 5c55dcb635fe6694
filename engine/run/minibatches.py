"""Minibatches of data, played by several replicas: what `evaluate` and `predict` do with `replicas`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.data.ahead import ReadAhead
from partita.engine.data.conversion import has_labels
from partita.engine.data.prepared import Prepared
from partita.engine.data.weighing import Weighing
from partita.engine.drivers.evaluate import Evaluate
from partita.engine.drivers.session import Steps
from partita.engine.files.access import HostFiles
from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher
from partita.engine.numerics import master
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Send
from partita.engine.protocol.minibatch_mode import MinibatchMode
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.request_mode import Answered
from partita.engine.protocol.session_messages import Load, Play
from partita.engine.protocol.views import Outline
from partita.engine.run.data import Data, RunData, run_data
from partita.engine.run.hosted_backend import HostedBackend
from partita.engine.run.phases import OnPhase
from partita.engine.run.session import Session
from partita.engine.run.step import Step
from partita.engine.runtime.session import PartStep
from partita.engine.transport.payload import PayloadLike
from partita.partitioner.plan import Plan

_MEASURED: Final = 20
"""Minibatches by which the rate of reading is measured."""


@dataclass(frozen=True)
class Minibatches:
    """Examples in batches of one size; the last batch repeats the last example, which counts for nothing.

    Args:
        arrays: for each input and target, `[example, *shape]`.
        size: examples of a batch.
        collect: buffers that are wanted of each step.
        types: the type in which the network takes an array, where it has another one.
    """

    arrays: Mapping[str, Array]
    size: int
    collect: tuple[str, ...] = ()
    types: Mapping[str, npt.DTypeLike] = field(default_factory=dict)

    @cached_property
    def examples(self) -> int:
        """The number of examples."""
        return len(next(iter(self.arrays.values())))

    def __len__(self) -> int:
        return -(-self.examples // self.size)

    def real(self, number: int) -> int:
        """Returns the number of examples of a batch that count."""
        return min(self.size, self.examples - number * self.size)

    def batch(self, number: int) -> dict[str, Array]:
        """Returns the arrays of a batch."""
        chosen = self._chosen(number)
        found = {name: array[chosen] for name, array in self.arrays.items()}
        return {
            name: array.astype(self.types.get(name, array.dtype), copy=False) for name, array in found.items()
        }

    def real_batch(self, number: int) -> dict[str, Array]:
        """Returns the examples of a batch that count."""
        return {name: array[: self.real(number)] for name, array in self.batch(number).items()}

    def reading_rate(self) -> float | None:
        """Measures the examples that are made in a second; None where they are there."""
        return None

    def close(self) -> None:
        """Ends what reads the examples."""

    def _chosen(self, number: int) -> Array:
        return np.minimum(np.arange(number * self.size, (number + 1) * self.size), self.examples - 1)


@dataclass(frozen=True)
class PreparedMinibatches(Minibatches):
    """Batches that are made ahead, of data of any kind.

    Args:
        prepared: the data.
    """

    _: KW_ONLY
    prepared: Prepared

    @cached_property
    @override
    def examples(self) -> int:
        return self.prepared.examples

    @override
    def batch(self, number: int) -> dict[str, Array]:
        following = range(number + 1, min(number + 1 + self._ahead.depth, len(self)))
        found = self._ahead.take(self._chosen(number), 0)
        self._ahead.announce([(self._chosen(one), 0) for one in following])
        return found

    @override
    def reading_rate(self) -> float | None:
        self.batch(0)  # opens the data
        numbers, began = range(1, min(_MEASURED, len(self))), time.perf_counter()
        for number in numbers:
            self.batch(number)
        return sum(map(self.real, numbers)) / (time.perf_counter() - began) if numbers else None

    @cached_property
    def _ahead(self) -> ReadAhead:
        return ReadAhead(self.prepared, HostFiles())

    @override
    def close(self) -> None:
        if "_ahead" in self.__dict__:
            self._ahead.close()


@contextmanager
def minibatches_of(
    plan: Plan,
    data: Data,
    collect: Sequence[str] = (),
    *,
    targets: bool,
    ignored: Collection[str] | None = None,
    weighing: Weighing | None = None,
) -> Iterator[Minibatches]:
    """Yields the minibatches of data of any kind, in the order in which it lies.

    Args:
        plan: of the network.
        data: as the user gave it.
        collect: see `Minibatches`.
        targets: whether the losses need theirs.
        ignored: see `check_data`.
        weighing: see `run_data`.

    Raises:
        ValueError: the data does not fit the network.
    """
    with TemporaryDirectory(prefix="partita-data-") as folder:
        taken = run_data(
            plan.graph,
            data,
            targets=targets,
            precision=plan.precision,
            batch=plan.batch,
            folder=Path(folder),
            ignored=ignored,
            here=True,
            weighing=weighing,
        )
        with closing(_minibatches(taken, plan, tuple(collect))) as found:
            yield found


def _minibatches(data: RunData, plan: Plan, collect: tuple[str, ...]) -> Minibatches:
    if data.prepared is not None:
        return PreparedMinibatches({}, plan.batch, collect, prepared=data.prepared)
    grids = {grid.name: grid for grid in (*plan.graph.inputs, *plan.graph.targets)}
    precision = master(plan.precision)
    types = {
        name: np.dtype(np.int64) if name in grids and has_labels(grids[name]) else precision
        for name in data.arrays
    }
    return Minibatches(data.arrays, plan.batch, collect, types)


class _SharedBackend(HostedBackend):
    """Leases minibatches to replicas, and collects what their parts answer."""

    def __init__(
        self, given: Minibatches, inputs: Callable[[int, int], list[Array]], *args: Any, **settings: Any
    ) -> None:
        """Starts the hosts.

        Args:
            given: the minibatches.
            inputs: returns the inputs of a machine, given the number of a minibatch and the machine.
            *args: see `HostedBackend`.
            **settings: see `HostedBackend`.
        """
        self._given, self._inputs = given, inputs
        self._found: dict[int, dict[int, PartStep]] = {}  # by minibatch and machine
        super().__init__(*args, **settings)

    @property
    @override
    def _outline(self) -> Outline:
        return Outline(epochs=1, examples=self._given.examples, batch=self._given.size, replicas=1)

    @override
    def _mode_of(self, timeout_s: float) -> MinibatchMode:
        return MinibatchMode(timeout_s, self._given.collect)

    @override
    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        """Keeps the function for each part that becomes ready."""
        self._vector = vector

    @override
    def payload(self, send: Send) -> PayloadLike:
        machine, span = machine_of(send.to), send.payload
        if isinstance(send.message, Load):
            return self._vector(machine, None)
        assert isinstance(send.message, Play) and span is not None, send
        return list(self._inputs(span.start, machine))

    @override
    def note(self, effect: Any) -> None:
        if isinstance(effect, Answered):  # what a lost replica has answered is replaced by the next one's
            answers = self._found.setdefault(effect.unit, {})
            answers[machine_of(effect.name)] = PartStep(effect.message, self._supervisor.payload)  # type: ignore[arg-type]
        else:
            super().note(effect)

    def answers(self, number: int, machines: int) -> list[PartStep]:
        """Waits for all parts' answers of a minibatch, and returns them. Raises HostError."""
        self._supervisor.run_until(lambda: len(self._found.get(number, ())) == machines)
        found = self._found.pop(number)
        return [found[machine] for machine in range(machines)]


@dataclass(eq=False, repr=False)
class SharedSession(Session):
    """Plays given minibatches, each of them once: shared by several replicas, or step by step by one.

    Args:
        plan, parameters, hosts, timeout_s, show: see `Session`.
        replicas: copies of the plan.
        given: the minibatches.
    """

    _: KW_ONLY
    given: Minibatches
    replicas: int = 1

    @override
    def _make_driver(self) -> Steps:
        if self.replicas == 1:
            return super()._make_driver()
        if self.hosts == "inline":
            raise ValueError(
                "hosts is 'inline', which plays one machine in the calling thread, but there are "
                f"{self.replicas} replicas; give 'threads' or 'processes', or replicas=1"
            )
        return Evaluate(replicas=self.replicas)

    @override
    def _hosted(
        self, launcher: Launcher, on_phase: OnPhase, *, silence_s: float | None = None
    ) -> HostedBackend:
        if self.replicas == 1:
            return super()._hosted(launcher, on_phase, silence_s=silence_s)
        self._last: tuple[int, dict[str, Array]] = -1, {}
        return _SharedBackend(
            self.given,
            self._inputs_of,
            self._tasks,
            launcher,
            timeout_s=self.timeout_s,
            silence_s=silence_s,
            on_phase=on_phase,
            driver=self._driver,
        )

    def _inputs_of(self, number: int, machine: int) -> list[Array]:
        """Returns a machine's inputs of a minibatch; all machines of a replica are asked for in turn."""
        if self._last[0] != number:
            self._last = number, self.given.batch(number)
        return [place.of(self._last[1]) for place in self._feeds[machine]]

    def steps(self) -> Iterator[tuple[Step, int]]:
        """Yields the results of each minibatch, in order, and the number of examples that count."""
        given, backend = self.given, self._backend
        for number in range(len(given)):
            real = given.real(number)
            if isinstance(backend, _SharedBackend):
                parts = backend.answers(number, len(self.plan.cluster))
                yield self._collector.step(Play(number, real, given.collect), parts, ()), real
            else:
                yield self.step(given.batch(number), examples=real, collect=given.collect), real
