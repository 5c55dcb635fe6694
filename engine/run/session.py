"""A session: one replica that plays a step on request.

Predictions, evaluations and tests use sessions. The coordinator waits for each answer; when a host dies or
fails, the session ends with one clear error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, get_args

import numpy as np

from partita.engine.drivers.scaled_losses import check_session
from partita.engine.drivers.session import Steps
from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher, ThreadLauncher
from partita.engine.launch.on import On, begin, on_of, opened
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.launch.request import LaunchRequest
from partita.engine.numerics import master, storage, stored
from partita.engine.parameters.files import shape_difference
from partita.engine.parameters.initial_values import evaluated, initial_vector
from partita.engine.parameters.layout import gather
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.names import Topology, part_name
from partita.engine.protocol.session_messages import Play
from partita.engine.run.data import check_data, check_plan, warn_of_slow_nodes
from partita.engine.run.hosted_backend import HostedBackend
from partita.engine.run.inline_backend import InlineBackend
from partita.engine.run.phases import OnPhase, Phases, Show
from partita.engine.run.step import Collector, Step
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.feed import node_major
from partita.engine.transport.mailbox import MAX_PAYLOAD
from partita.layers.arguments import Arguments
from partita.layers.box import Box
from partita.layers.checks import check_seconds, check_whole
from partita.layers.text import counted
from partita.partitioner.ir.program import Operand
from partita.partitioner.plan import Plan

MOST_SILENCE_S: Final = 30.0
"""Seconds after which a process that sends nothing, not even heartbeats, has failed."""

COMPARED_EVERY_S: Final = 1.0
"""Seconds after which clocks are compared again; those of two machines may drift apart by 20 us in a second.
"""

Hosts = Literal["inline", "threads", "processes"]


class _Place(NamedTuple):
    """The rows of an input that a part reads, in a batch."""

    name: str
    examples: slice
    box: Box
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def of(self, batch: Mapping[str, Array]) -> Array:
        """Returns the rows, node-major."""
        return stored(node_major(batch[self.name][self.examples], self.box, self.shape), self.dtype)


@dataclass(eq=False, repr=False)
class Session(Arguments):
    """Plays steps of one replica of a plan, on threads of this process or on processes of this machine.

    Creating a session starts the hosts and sends them their parameters. Use the session as a context manager,
    from one thread only.

    Args:
        plan: what to play; `plan.for_prediction()` leaves the losses out.
        parameters: every parameter of the network by name, `[*shape]`; or a seed, from which each machine
            draws its own, so that no process ever holds all of them.
        train: whether to play the backward pass too.
        optimizer: changes the parameters after each step, in place; needs `train`.
        overlap: minibatches of a step, one after another through the machines of a horizontal cut, each with
            an update of its own; see `Downpour`.
        hosts: "threads" of this process, or "processes" that communicate by ZeroMQ over loopback; "inline"
            plays the one machine of a plan in the calling thread, which costs least for small networks. Or
            where processes are started beyond this machine, as `on` of `train`; they read no file of this
            machine.
        listen: this process's own endpoint, `tcp://ADDRESS:PORT`, where hosts are processes; any free port of
            loopback if not given.
        places: where the processes of some machines run, by machine; the others run on this machine.
        timeout_s: seconds that any answer of a host may take. While hosts start, each process that runs and
            each function that is compiled counts as one.
        show: the progress display of a long start, as in `train`; or a function, called with each phase.

    Raises:
        ValueError: a parameter is missing, the parameters of a machine exceed one message, `hosts` does not
            fit the plan, an optimizer is given without `train`, or minibatches overlap without an optimizer.
        HostError: a host fails or does not come up.
        RunFailed: the pool cannot be reached, refuses the session, or has no place for it.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "rule": ("optimizer",),
        "timeout": ("timeout_s",),
        "training": ("train",),
    }

    plan: Plan
    parameters: InitVar[Mapping[str, Vector] | int]
    _: KW_ONLY
    train: bool = False
    optimizer: Optimizer | None = None
    overlap: int = 1
    hosts: Hosts | On | str = "threads"
    listen: str | None = None
    places: Mapping[int, Placement] | None = None
    timeout_s: float = 300.0
    show: InitVar[Show | OnPhase] = "auto"

    def __post_init__(self, parameters: Mapping[str, Vector] | int, show: Show | OnPhase) -> None:
        check_plan(self.plan)
        check_session(self.optimizer, self.plan)
        warn_of_slow_nodes(self.plan.graph)
        if self.hosts not in get_args(Hosts):
            own = "".join(f"{name!r}, " for name in get_args(Hosts))
            self.hosts = on_of(self.hosts, what="hosts is", others=own)
            begin(self.hosts)
        check_seconds(self.timeout_s, "timeout_s is")
        parameters = _checked(self.plan, parameters)
        self._driver = self._make_driver()
        self.overlap = self._driver.overlap
        self._size = self.plan.batch * self.overlap
        self._fed, self._step = False, 0
        self._clocks: list[Offset] = []
        self._compared_at = float("-inf")
        self._layout = layout_of(self.plan, shards=1)
        if self.hosts != "inline":
            self._check_sizes()
        self._tasks = self._driver.tasks(self.plan)
        self._collector = Collector(
            self.plan, self._layout, [task.instructions for task in self._tasks[: len(self.plan.cluster)]]
        )
        parts = self._tasks[: len(self.plan.cluster)]
        self._feeds_by_phase = [[list(self._places(some)) for some in task.inputs_by_phase] for task in parts]
        self._feeds = [[place for some in part for place in some] for part in self._feeds_by_phase]
        self._ends = ExitStack()
        with Phases.of(show) as on_phase, ExitStack() as opening:
            opening.callback(lambda: self._ends.close())
            self._backend = self._opened(on_phase)
            try:
                self.load(parameters)
            except BaseException:
                self._backend.close(orderly=False)
                raise
            opening.pop_all()

    def _make_driver(self) -> Steps:
        return Steps(self.train, self.optimizer, self.overlap)

    def _hosted(
        self, launcher: Launcher, on_phase: OnPhase, *, silence_s: float | None = None
    ) -> HostedBackend:
        return HostedBackend(
            self._tasks, launcher, timeout_s=self.timeout_s, silence_s=silence_s, on_phase=on_phase
        )

    def _opened(self, on_phase: OnPhase) -> HostedBackend | InlineBackend:
        tasks = self._tasks
        if self.hosts == "processes":
            places = {part_name(0, machine): place for machine, place in (self.places or {}).items()}
            launcher = ProcessLauncher(hosts=len(tasks), listen=self.listen, places=places)
            return self._hosted(launcher, on_phase, silence_s=min(self.timeout_s, MOST_SILENCE_S))
        if self.places or self.listen is not None:
            raise ValueError(
                f"hosts is '{self.hosts}', and only processes have addresses; "
                "ask for 'processes', or leave out listen and places"
            )
        if not isinstance(self.hosts, str):
            launching = self._ends.enter_context(opened(self.hosts, on_phase))
            title = f"a session of '{self.plan.graph.name}'"
            topology = Topology(self._driver.replicas, len(self.plan.cluster), 0)
            return self._hosted(launching(LaunchRequest(self.plan, topology, title, on_phase)), on_phase)
        if self.hosts == "threads":
            return self._hosted(ThreadLauncher(), on_phase)
        if len(tasks) > 1:
            raise ValueError(
                f"hosts is 'inline', which plays one machine in the calling thread, but the plan has "
                f"{len(tasks)}; give 'threads' or 'processes'"
            )
        return InlineBackend(tasks[0], on_phase)

    @property
    def launcher(self) -> Launcher:
        """The launcher of the hosts; an inline session has none."""
        assert isinstance(self._backend, HostedBackend), "an inline session has no hosts"
        return self._backend.launcher

    def load(self, parameters: Mapping[str, Vector] | int) -> None:
        """Replaces the parameters by the given ones, or by those drawn from a seed."""
        given, specs = _checked(self.plan, parameters), self.plan.graph.parameters
        if isinstance(given, int):
            specs = evaluated(specs, given)
        dtype, machines = master(self.plan.precision), self._layout.machines

        def vector(machine: int, out: Vector | None) -> Vector:
            slots = machines[machine]
            if isinstance(given, int):
                return initial_vector(slots, specs, given, dtype=dtype, out=out)
            return gather(slots, given, dtype, out=out)

        self._backend.load(vector)

    def step(
        self,
        batch: Mapping[str, Array] | None = None,
        *,
        examples: int | None = None,
        collect: tuple[str, ...] = (),
        trace: bool = False,
    ) -> Step:
        """Plays a step.

        Args:
            batch: inputs (and targets, if the plan has losses) by name, `[batch, *shape]`, or with `overlap`
                `[overlap * batch, *shape]`; None plays the last batch again.
            examples: number of real examples in the batch; all if not given.
            collect: activations by the layer's name, gradients of outputs by the buffer's (`h1<h2`),
                "parameters", "gradient". With an optimizer there are no gradients of outputs, and "gradient"
                only where the optimizer needs it whole; with `overlap` only the parameters.
            trace: record when each instruction is done and each message arrives: `Step.trace`.

        Raises:
            ValueError: the batch does not fit the network, or a name to collect is unknown.
            HostError: a host fails, dies, or does not answer in time.
        """
        real = self._size if examples is None else examples
        batch = self._checked(batch, real, collect)
        inputs = None if batch is None else [[place.of(batch) for place in part] for part in self._feeds]
        if trace and time.monotonic() - self._compared_at > COMPARED_EVERY_S:
            self._clocks, self._compared_at = self.clocks(), time.monotonic()
        order = Play(self._step, real, collect, trace)
        parts = self._backend.play(order, inputs)
        self._step += 1
        return self._collector.step(order, parts, self._clocks)

    def _checked(
        self, batch: Mapping[str, Array] | None, real: int, collect: tuple[str, ...]
    ) -> Mapping[str, Array] | None:
        size, graph = self._size, self.plan.graph
        if not 1 <= real <= size or (self.train and real < size):
            least = size if self.train else 1
            raise ValueError(
                f"{counted(real, 'example')} of a batch of {size} cannot be played; give {least} to {size}"
            )
        for name in collect:
            if name not in self._known:
                known = ", ".join(sorted(self._known))
                raise ValueError(f"cannot collect {name!r}; give a tuple of some of {known}")
        if batch is None:
            if not self._fed:
                raise ValueError("the first step has no last batch to play again; give it one")
            return None
        arrays = check_data(graph, batch, targets=bool(graph.losses), precision=self.plan.precision)
        examples = len(next(iter(arrays.values())))
        if examples != size:
            raise ValueError(
                f"the batch has {counted(examples, 'example')}, but the plan is for {size}; give {size}"
            )
        self._fed = True
        return arrays

    @cached_property
    def _known(self) -> frozenset[str]:
        """Names that can be collected, see `step`."""
        graph, task = self.plan.graph, self._tasks[0]
        if task.overlap > 1:
            return frozenset({"parameters"})
        found = {"parameters", *(grid.name for grid in graph.computed)}
        if task.keeps_gradient:
            found.add("gradient")
        if self.train and task.keep is None:
            found |= {
                str(edge.buffer)
                for name in graph.needs_gradient
                for edge in self.plan.ownership.grad_edges(name)
            }
        return frozenset(found)

    def _check_sizes(self) -> None:
        """Refuses parameters of a machine that exceed one message."""
        gib, item_bytes = float(1 << 30), master(self.plan.precision).itemsize
        for machine in range(len(self.plan.cluster)):
            n_bytes = self._layout.machine_size(machine) * item_bytes
            if n_bytes > MAX_PAYLOAD:
                raise ValueError(
                    f"machine {machine} holds {n_bytes / gib:.2f} GiB of parameters, more than the "
                    f"{MAX_PAYLOAD / gib:.2f} GiB that one message carries; use more machines"
                )

    def clocks(self) -> list[Offset]:
        """Measures the offset of each part's clock from this thread's `time.perf_counter`.

        Raises:
            HostError: a host fails, dies, or does not answer in time.
        """
        return self._backend.clocks()

    def close(self) -> None:
        """Stops every host of the session."""
        with self._ends:
            self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._ends:
            self._backend.close(orderly=kind is None)

    def _places(self, operands: Sequence[Operand]) -> Iterator[_Place]:
        """Yields the places of a part's inputs in a batch, in the order of `SessionPart.inputs`."""
        for operand in operands:
            grid, count = self.plan.graph[operand.buffer.layer], self.plan.sizes.examples(operand.buffer)
            labels = grid.is_placeholder and getattr(grid.layer, "classes", None) is not None
            dtype = np.dtype(np.int64) if labels else storage(self.plan.precision)
            first = (operand.buffer.micro_batch or 0) * count
            for box in operand.rows:
                yield _Place(grid.name, slice(first, first + count), box, (*grid.shape, count), dtype)


def _checked(plan: Plan, parameters: Mapping[str, Vector] | int) -> Mapping[str, Vector] | int:
    if not isinstance(parameters, Mapping):
        if not isinstance(parameters, int | np.integer):
            raise ValueError(
                f"the parameters are a {type(parameters).__name__}; give a dictionary of arrays by name, "
                "such as run.parameters, or a whole number as their seed"
            )
        return check_whole(parameters, "the seed of the parameters is", least=0)
    missing = [name for name in plan.graph.parameters if name not in parameters]
    if missing:
        raise ValueError(f"the parameters have no {missing[0]!r}; give all of {plan.graph.name}'s")
    shapes = {name: parameter.shape for name, parameter in plan.graph.parameters.items()}
    why = shape_difference({name: np.shape(parameters[name]) for name in shapes}, shapes)
    if why is not None:
        raise ValueError(f"the parameters do not fit the network: {why}")
    return parameters
