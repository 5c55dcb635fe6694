"""A plan as a table of text: pieces, messages, the predicted step, and its critical path.

Of many machines three are shown: the busiest, the one in the middle and the least busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Protocol

from partita.layers.box import Box
from partita.layers.graph import Graph, Grid
from partita.layers.tables import columns, wrapped
from partita.layers.text import counted, readable_bytes
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.piece import Piece
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.cluster.products import Products
from partita.partitioner.lower.messages import Message
from partita.partitioner.predict.cost import Costs
from partita.partitioner.predict.critical_path import critical_path
from partita.partitioner.predict.timeline import Timeline

COLUMNS = 8
"""Number of machines up to which each has a column and a row."""
FEW = 3
"""Number of machines of a layer up to which a summary names each."""


class _Plan(Protocol):
    """The part of a plan that its table shows."""

    @property
    def graph(self) -> Graph: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def batch(self) -> int: ...
    @property
    def ownership(self) -> Ownership: ...
    @property
    def precision(self) -> str: ...
    @property
    def batch_text(self) -> str: ...
    @property
    def pieces(self) -> tuple[Piece, ...]: ...
    @property
    def messages(self) -> tuple[Message, ...]: ...
    @property
    def costs(self) -> Costs: ...
    @property
    def simulated_step(self) -> Timeline: ...
    @property
    def predicted_step_s(self) -> float: ...
    @property
    def lower_bound_s(self) -> float: ...
    @property
    def travelling(self) -> tuple[int, int]: ...
    @property
    def traffic_bytes(self) -> tuple[list[int], list[int]]: ...
    @property
    def large_products(self) -> tuple[int, ...]: ...
    @property
    def large_patches(self) -> tuple[int, ...]: ...
    def n_parameters(self, machine: int) -> int: ...
    def memory_bytes(self, machine: int) -> int: ...
    def products_of(self, machine: int) -> Products: ...


def plan_table(plan: _Plan, *, width: int | None = None) -> str:
    """Prints the whole plan. Without the `width` of a terminal, a line is as long as its words."""
    head = (
        f"plan of {plan.graph.name}: {counted(len(plan.cluster), 'machine')}, {plan.batch_text}, "
        f"{plan.precision}, {counted(plan.graph.n_parameters, 'parameter')}"
    )
    parts = [wrapped(head, width), _layers(plan, width), _machines(plan, width), _summary(plan, width)]
    return "\n\n".join("\n".join(part) for part in parts)


def machines_of(plan: _Plan) -> dict[str, str]:
    """The machines with rows of each layer, in words: `local0, local1`, of many `0-31, 8 rows each`."""
    found = {}
    for grid in plan.graph.computed:
        pieces = plan.ownership.of(grid.name)
        names = [plan.cluster.machines[m].name for m in sorted({piece.machine for piece in pieces})]
        found[grid.name] = ", ".join(names) if len(names) <= FEW else _owners(grid, pieces)
    return found


def _layers(plan: _Plan, width: int | None) -> list[str]:
    machines = range(len(plan.cluster))
    few = len(machines) <= COLUMNS
    names = [plan.cluster.machines[m].name for m in machines] if few else ["machines"]
    rows = [["layer", "grid", "kind", *names]]
    for grid in plan.graph.computed:
        if few:
            cells = [_cell(plan, grid.name, m) for m in machines]
        else:
            cells = [_owners(grid, plan.ownership.of(grid.name))]
        rows.append([grid.name, "x".join(map(str, grid.shape)), grid.layer.kind, *cells])
    split = [piece for piece in plan.pieces if piece.inputs is not None]
    notes = wrapped(_input_split(split[0]), width) if few and split else []
    return [*columns(rows, left=range(3 if few else len(rows[0])), width=width), *notes]


def _cell(plan: _Plan, layer: str, machine: int) -> str:
    """Rows of a machine: `0:8`; cut by inputs, `0:8/0:4`."""
    rows, inputs = plan.ownership.rows(layer, machine), plan.ownership.input_span(layer, machine)
    if not rows:
        return "-"
    return str(rows) + (f"/{inputs[0]}:{inputs[1]}" if inputs is not None else "")


def _input_split(piece: Piece) -> str:
    """Explains the cell of a layer that is cut by its inputs, by an example."""
    rows, inputs = str(piece.rows), Box((piece.inputs or (0, 0),)).text
    return f"{rows}/{inputs}: activations of rows {rows}, with the weights for rows {inputs} of the input"


def _owners(grid: Grid, pieces: tuple[Piece, ...]) -> str:
    """`0-31, 8 to 9 rows each`."""
    owners = sorted(piece.machine for piece in pieces)
    if len(owners) == 1:
        return f"{owners[0]}, whole"
    runs = []
    for _, run in groupby(enumerate(owners), key=lambda pair: pair[1] - pair[0]):
        found = [machine for _, machine in run]
        runs.append(f"{found[0]}-{found[-1]}" if len(found) > 1 else str(found[0]))
    shown = ",".join(runs) if len(runs) <= 4 else counted(len(owners), "machine")
    sizes = [piece.stop - piece.start for piece in pieces]
    least, most = min(sizes), max(sizes)
    each = f"{most}" if least == most else f"{least} to {most}"
    inputs = ", by inputs" if pieces[0].inputs is not None else ""
    return f"{shown}, {each} {'row' if most == 1 else 'rows'} each{inputs}"


def _machines(plan: _Plan, width: int | None) -> list[str]:
    titles = ["machine", "parameters", "MFLOP up", "sends", "receives", "peak memory"]
    rows = [[*titles, "computing", "sending", "waiting", "idle"]]
    shown = list(range(len(plan.cluster)))
    notes = dict.fromkeys(shown, "")
    if len(shown) > COLUMNS:
        used = sorted(
            (m for m in shown if plan.ownership.of_machine(m)), key=lambda m: -plan.simulated_step.busy_s[m]
        )
        notes = {used[-1]: " (least busy)", used[len(used) // 2]: " (middle)", used[0]: " (busiest)"}
        shown = list(reversed(notes))
    sent, received = plan.traffic_bytes
    for m in shown:
        pieces = plan.ownership.of_machine(m)
        flops = sum(plan.ownership.flops(piece, batch=plan.batch) for piece in pieces)
        step_s, times = plan.simulated_step.step_s, plan.simulated_step.times[m]
        spent = (times.computing_s, times.sending_s, times.waiting_s, times.idle_s)
        rows.append(
            [
                plan.cluster.machines[m].place + notes[m],
                f"{plan.n_parameters(m):,}",
                f"{flops / 1e6:,.1f}",
                readable_bytes(sent[m]),
                readable_bytes(received[m]),
                readable_bytes(plan.memory_bytes(m)),
                *(f"{took / step_s:.0%}" for took in spent),
            ]
        )
    empty = [m for m in range(len(plan.cluster)) if not plan.ownership.of_machine(m)]
    table = columns(rows, width=width)
    if empty:
        names = ", ".join(plan.cluster.machines[m].name for m in empty)
        if len(empty) > COLUMNS:
            names = counted(len(empty), "machine")
        table += wrapped(f"left empty (too few nodes, or no shorter step with them): {names}", width)
    return table


def _summary(plan: _Plan, width: int | None) -> list[str]:
    total = sum(message.n_bytes for message in plan.messages)
    step_s, bound_s = plan.predicted_step_s, plan.lower_bound_s
    how = "" if plan.costs.calibrated else " (uncalibrated)"
    lines = [
        f"{counted(len(plan.messages), 'message')} a step, {readable_bytes(total)}; {_travelling(plan)} "
        "(connectivity - 1)",
        f"predicted step {step_s * 1e3:.2f} ms{how}; {gap(step_s, bound_s)}",
        critical_path(plan.simulated_step),
        *_products(plan),
        *_choices("tiles", plan, {m: str(plan.products_of(m).forms) for m in plan.large_patches}),
        *_threads(plan),
    ]
    return [part for line in "\n".join(lines).splitlines() for part in wrapped(line, width)]


def gap(step_s: float, bound_s: float) -> str:
    """The optimality gap: by which factor a plan could be faster, by the lower bound."""
    ratio, least = step_s / bound_s, f"no plan is below {bound_s * 1e3:.2f} ms"
    if ratio < 1.005:
        return f"{least}: none is faster"
    return f"{least}: {ratio:.{2 if ratio < 1.1 else 1}f}x faster is not ruled out"


def _products(plan: _Plan) -> Iterator[str]:
    """Libraries of matrix products, where these are large enough to matter."""
    if plan.precision == "bfloat16" and plan.large_products:
        yield "products: torch (bfloat16)"
        return
    yield from _choices("products", plan, {m: str(plan.products_of(m)) for m in plan.large_products})


def _threads(plan: _Plan) -> Iterator[str]:
    """The least work of each of several threads, where a machine has several."""
    machines = enumerate(plan.cluster.machines)
    several = [m for m, made in machines if made.threads > 1 and made.device == "cpu"]
    yield from _choices("threads", plan, {m: str(plan.products_of(m).threads) for m in several})


def _choices(what: str, plan: _Plan, texts: Mapping[int, str]) -> Iterator[str]:
    """The choices of machines; machines whose choices are the same share a line."""
    machines: dict[str, list[str]] = {}
    for m, text in texts.items():
        machines.setdefault(text, []).append(plan.cluster.machines[m].name)
    for text, names in machines.items():
        where = f" of {', '.join(names)}" if len(machines) > 1 and len(names) <= COLUMNS else ""
        yield f"{what}{where}: {text}"


def _travelling(plan: _Plan) -> str:
    """`288 activations travel to another machine`."""
    found, sums = plan.travelling
    if sums:
        return f"{counted(found, 'activation')} and {counted(sums, 'partial sum')} travel"
    return f"{counted(found, 'activation')} {'travels' if found == 1 else 'travel'} to another machine"
