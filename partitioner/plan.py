"""A plan: everything that follows from an assignment, derived on demand, printed as a table, drawn as SVG."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from partita.layers.box import Shape
from partita.layers.checks import check_whole
from partita.layers.connectivity import Patch
from partita.layers.graph import Graph, Grid
from partita.layers.module_state import ModuleState
from partita.layers.overview import NetworkSummary, summary_of
from partita.layers.text import counted
from partita.layers.weighted_sum import Dense
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.piece import Piece
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.cluster.products import LARGE, Products
from partita.partitioner.ir.buffer import Buffer, BufferKind, activations
from partita.partitioner.ir.program import Program
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.arena import arena_bytes
from partita.partitioner.lower.lowering import Lowering
from partita.partitioner.lower.messages import Message
from partita.partitioner.lower.windows import WindowPlan
from partita.partitioner.pictures import view
from partita.partitioner.predict.bound import lower_bound_s
from partita.partitioner.predict.cost import Costs
from partita.partitioner.predict.memory import Driver, scratch_bytes, vector_bytes
from partita.partitioner.predict.simulate import Simulation, simulate_programs
from partita.partitioner.predict.timed_program import timed_program
from partita.partitioner.predict.timeline import Timeline
from partita.partitioner.table import machines_of, plan_table


@dataclass(frozen=True)
class Plan:
    """One replica of a network over the machines of a cluster, made by `partition`.

    Args:
        graph: the network.
        cluster: the machines.
        batch: examples in a minibatch.
        ownership: the rows of each machine.
        precision: precision of activations and gradients, and of parameters where kernels read them.
        micro_batches: number of equal micro-batches in a minibatch, which follow one another through the
            machines.
        products: libraries of matrix products, on machines without a choice of their own.
        lowered: messages and programs of an equal cut, if they were made before.
    """

    graph: Graph
    cluster: Cluster
    batch: int
    ownership: Ownership
    precision: str = "float32"
    micro_batches: int = 1
    products: Products = Products()  # noqa: RUF009 - frozen
    lowered: Lowering | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        n = check_whole(self.micro_batches, "the number of micro-batches is")
        if self.batch % n:
            raise ValueError(
                f"a batch of {counted(self.batch, 'example')} cannot be divided into {n} equal "
                f"micro-batches; use a number that divides it, for example {_nearest_divisor(self.batch, n)}"
            )
        object.__setattr__(self, "micro_batches", n)

    def with_micro_batches(self, micro_batches: int) -> Self:
        """Replaces the number of micro-batches.

        Raises:
            ValueError: it does not divide the batch.
        """
        return replace(self, micro_batches=micro_batches)

    def with_batch(self, batch: int) -> Self:
        """Replaces the number of examples in a minibatch.

        Raises:
            ValueError: the micro-batches do not divide it.
        """
        return replace(self, batch=batch)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every piece of every layer."""
        return self.ownership.pieces

    @cached_property
    def sizes(self) -> Sizes:
        """Shapes and bytes of each buffer."""
        return Sizes(self.graph, self.batch, self.precision, self.micro_batches)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of a training step, or of a prediction where the network has no loss."""
        return self.messages_for(StepKind())

    @property
    def programs(self) -> tuple[Program, ...]:
        """The training step of each machine; the forward pass where the network has no loss."""
        return self.programs_for(StepKind())

    @property
    def forward_programs(self) -> tuple[Program, ...]:
        """The forward pass of each machine, to the losses if there are any."""
        return self.programs_for(StepKind(train=False))

    @property
    def undivided_messages(self) -> tuple[Message, ...]:
        """The messages with those of all micro-batches as one, for pictures."""
        return self.with_micro_batches(1).messages

    @property
    def batch_text(self) -> str:
        """The batch and its micro-batches in words."""
        if self.micro_batches == 1:
            return f"batch {self.batch}"
        each = self.batch // self.micro_batches
        return f"batch {self.batch} as {self.micro_batches} micro-batches of {each}"

    def summary(self) -> NetworkSummary:
        """Returns a table of the layers, with the machines that have their rows. Print it."""
        wide = 8 if self.precision == "float64" else 4
        return summary_of(self.graph, item_bytes=wide, machines=machines_of(self))

    def messages_for(self, kind: StepKind) -> tuple[Message, ...]:
        """All messages of a step of this kind."""
        return self.lowering.messages(kind)

    def programs_for(self, kind: StepKind) -> tuple[Program, ...]:
        """The step of this kind of each machine."""
        return self.lowering.programs(kind)

    @cached_property
    def lowering(self) -> Lowering:
        """The messages and programs of the cut."""
        found = Lowering(self.ownership, self.sizes)
        return self.lowered if self.lowered == found and self.lowered is not None else found

    @cached_property
    def costs(self) -> Costs:
        """Costs of instructions and messages on these machines."""
        return Costs(
            self.graph,
            self.cluster,
            batch=self.batch,
            precision=self.precision,
            micro_batches=self.micro_batches,
        )

    @cached_property
    def simulated_step(self) -> Timeline:
        """The timeline of the programs on a simulated clock."""
        return self._simulation.timeline()

    @property
    def predicted_step_s(self) -> float:
        """Predicted seconds of a training step."""
        return self._simulation.step_s

    def __getstate__(self) -> dict[str, object]:
        """Leaves out the simulation: hosts need its result alone."""
        return {name: value for name, value in vars(self).items() if name != "_simulation"}

    @cached_property
    def _simulation(self) -> Simulation:
        timed = [timed_program(program, self.costs, self.sizes) for program in self.programs]
        return simulate_programs(timed, self.cluster.hosts)

    @cached_property
    def lower_bound_s(self) -> float:
        """Lower bound on the step time of any plan of this network on these machines, in seconds."""
        return lower_bound_s(self.costs)

    @property
    def connectivity(self) -> int:
        """Numbers of nodes that travel forward for each example: the hypergraph connectivity minus one.

        An activation counts once for each machine that needs it and does not own it, a partial sum once for
        each other machine that has the node.
        """
        return sum(self.travelling)

    @cached_property
    def travelling(self) -> tuple[int, int]:
        """Activations that travel to another machine, and partial sums, for each example."""
        states = sums = 0
        for message in self.messages:
            nodes = self.graph[message.layer].nodes_in(message.rows) if message.layer else 0
            if message.buffer.micro_batch in (None, 0):  # equal for every micro-batch
                states += nodes * (message.buffer.kind is BufferKind.ACTIVATIONS)
                sums += nodes * (message.buffer.kind is BufferKind.PARTIAL_SUMS)
        return states, sums

    @cached_property
    def traffic_bytes(self) -> tuple[list[int], list[int]]:
        """Bytes that each machine sends in a step, and those that it receives."""
        sent, received = [0] * len(self.cluster), [0] * len(self.cluster)
        for message in self.messages:
            sent[message.source] += message.n_bytes
            received[message.destination] += message.n_bytes
        return sent, received

    def n_parameters(self, machine: int) -> int:
        """Number of parameters of the machine's pieces."""
        pieces = self.ownership.of_machine(machine)
        return sum(
            held.size for piece in pieces for held in self.ownership.parameter_slices(piece.layer, machine)
        )

    def windows(
        self, program: Program, *, keep: Collection[Buffer] | None = None
    ) -> dict[Buffer, WindowPlan]:
        """Lists the arrays that a machine holds to play one of the plan's programs.

        Args:
            program: a program of the plan.
            keep: buffers that keep their rows until the next step; inputs always do. Others may share memory.
                None: all keep theirs.
        """
        return self.lowering.windows(program, keep)

    @property
    def kept(self) -> tuple[Buffer, ...]:
        """Buffers that keep their rows in training: activations, by which non-finite numbers are found."""
        return tuple(activations(grid.name) for grid in self.graph.computed)

    def memory_bytes(
        self,
        machine: int,
        *,
        kind: StepKind = StepKind(),  # noqa: B008 - frozen
        driver: Driver = "downpour",
        optimizer_vectors: int = 1,
    ) -> int:
        """Bytes that the machine's part takes at most: windows, vectors, and scratch.

        Not included are other scratch of kernels, the index tables of `Node` layers, messages in flight, and
        Python itself.

        Args:
            machine: the machine's number.
            kind: the kind of steps.
            driver: "downpour" has two more vectors than a "session": gradients accumulated and in flight.
            optimizer_vectors: number of vectors in the optimizer's state: SGD none, Adagrad one, Adam two.

        Raises:
            ValueError: the network has a loss, but a layer without a backward function.
        """
        return self.program_bytes(
            self.programs_for(kind)[machine], driver=driver, optimizer_vectors=optimizer_vectors
        )

    def program_bytes(
        self, program: Program, *, driver: Driver = "downpour", optimizer_vectors: int = 1
    ) -> int:
        """Bytes of the part that plays this program; see `memory_bytes`."""
        machine = program.machine
        threads = self.cluster.machines[machine].threads
        vectors = vector_bytes(
            self.sizes,
            self.n_parameters(machine),
            program.kind,
            driver=driver,
            optimizer_vectors=optimizer_vectors,
        )
        windows = arena_bytes(self.windows(program, keep=self.kept if program.kind.train else None))
        return windows + vectors + scratch_bytes(self.ownership, program, self.sizes, threads=threads)

    def products_of(self, machine: int) -> Products:
        """The libraries of a machine's matrix products, in every process that plays its part."""
        return self.cluster.machines[machine].products or self.products

    def multiplying_by(self, products: Products) -> Self:
        """Replaces the libraries of matrix products on every machine."""
        machines = tuple(replace(machine, products=products) for machine in self.cluster.machines)
        return self.on(replace(self.cluster, machines=machines))

    @cached_property
    def large_products(self) -> tuple[int, ...]:
        """Machines with matrix products so large that their library matters."""
        return self._with_large(lambda grid: isinstance(grid.layer, Dense))

    @cached_property
    def large_patches(self) -> tuple[int, ...]:
        """Machines with weighted sums of patches so large that the form of their tiles matters."""
        return self._with_large(lambda grid: isinstance(grid.connectivity, Patch) and bool(grid.parameters))

    def _with_large(self, computes: Callable[[Grid], bool]) -> tuple[int, ...]:
        """Machines that have a CPU, and a large piece of such a layer."""
        return tuple(
            machine
            for machine, made in enumerate(self.cluster.machines)
            if made.device == "cpu"
            and any(
                computes(self.graph[piece.layer]) and self.ownership.flops(piece, batch=self.batch) >= LARGE
                for piece in self.ownership.of_machine(machine)
            )
        )

    def on(self, cluster: Cluster) -> Self:
        """Places the same cut on as many other machines; messages and programs are shared."""
        return replace(self, cluster=cluster, lowered=self.lowering)

    def for_prediction(self) -> Self:
        """The same plan without losses and targets, for predictions."""
        return self.of_graph(self.graph.without_losses())

    def of_graph(self, graph: Graph) -> Self:
        """The same cut of a network with other targets, or without losses."""
        pieces = tuple(piece for piece in self.pieces if piece.layer in graph)
        return replace(self, graph=graph, ownership=replace(self.ownership, graph=graph, pieces=pieces))

    def made_of(self, origin: ModuleState) -> Self:
        """The same plan, of a network that was made of a module with this state dict."""
        return replace(self.of_graph(replace(self.graph, origin=origin)), lowered=self.lowering)

    def draw(
        self, path: str | Path, *, layer: str | None = None, nodes: Sequence[Shape | int] | None = None
    ) -> Path:
        """Draws the plan as an SVG picture: layers, parts as colours, messages as lines.

        Args:
            path: the file to write.
            layer: draws this layer alone, node by node, with its inputs, its cut, and the rows that travel.
            nodes: nodes of that layer whose senders are marked, by their positions in the grid, for example
                `[(0, 0, 0)]`; the middle one if not given.

        Raises:
            ValueError: there is no such layer or node, the layer has too many to be drawn, or nodes are given
                without a layer.
        """
        if layer is None and nodes is not None:
            raise ValueError(f"nodes {nodes} are marked in the picture of a layer; name the layer too")
        if layer is None:
            return _written(path, view("plan_picture").draw_plan(self))
        return _written(path, view("layer_picture").draw_layer(self, layer, nodes))

    def draw_timeline(self, path: str | Path) -> Path:
        """Draws the predicted step as an SVG picture: the timeline of each machine, with waits."""
        return _written(path, view("steps").draw_step(self))

    def write_page(self, path: str | Path) -> Path:
        """Writes everything known of the plan as one HTML page, which needs no other file.

        The page has the table, the picture, the timeline of a predicted step (which can be enlarged), the
        messages by size, and the memory of each machine.
        """
        return _written(path, view("pages").plan_page(self, str(self)))

    def __str__(self) -> str:
        return plan_table(self)


def _written(path: str | Path, text: str) -> Path:
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


def _nearest_divisor(batch: int, n: int) -> int:
    return min((k for k in range(1, batch + 1) if batch % k == 0), key=lambda k: abs(k - n))
