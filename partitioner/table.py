"""A plan as a table of text: who owns what, what travels, and what it is predicted to cost."""

from __future__ import annotations

from partita.partitioner.bare_plan import BarePlan


def plan_table(plan: BarePlan) -> str:
    """The whole plan, for a terminal 100 columns wide (as long as there are few machines)."""
    precision = plan.precision
    head = (
        f"plan of {plan.graph.name}: {len(plan.cluster)} machines, batch {plan.batch}, {precision}, "
        f"{plan.graph.n_parameters:,} parameters"
    )
    parts = [head, "", _layers(plan), "", _machines(plan), "", _summary(plan)]
    return "\n".join(parts)


def _layers(plan: BarePlan) -> str:
    machines = range(len(plan.cluster))
    rows = [["layer", "grid", "kind", *(plan.cluster.machines[m].name for m in machines)]]
    for grid in plan.graph.computed:
        cells = (_cell(plan, grid.name, m) for m in machines)
        rows.append([grid.name, "x".join(map(str, grid.shape)), grid.layer.kind, *cells])
    by_inputs = any(plan.ownership.by_inputs(grid.name) for grid in plan.graph.computed)
    notes = ["0:8/0:4: states of rows 0:8, from weights for rows 0:4 of the input"] if by_inputs else []
    return "\n".join([_aligned(rows, right_from=3), *notes])


def _cell(plan: BarePlan, layer: str, machine: int) -> str:
    rows, inputs = plan.ownership.rows(layer, machine), plan.ownership.inputs(layer, machine)
    if rows is None:
        return "-"
    return f"{rows[0]}:{rows[1]}" + (f"/{inputs[0]}:{inputs[1]}" if inputs is not None else "")


def _machines(plan: BarePlan) -> str:
    rows = [["machine", "parameters", "MFLOP up", "sends", "receives", "messages", "peak memory", "busy"]]
    playback = plan.playback
    for m, machine in enumerate(plan.cluster.machines):
        flops = sum(
            plan.ownership.flops(piece, batch=plan.batch) for piece in plan.pieces if piece.machine == m
        )
        sent = [message for message in plan.messages if message.source == m]
        received = [message for message in plan.messages if message.destination == m]
        rows.append(
            [
                machine.place,
                f"{plan.n_parameters(m):,}",
                f"{flops / 1e6:,.1f}",
                readable_bytes(sum(message.n_bytes for message in sent)),
                readable_bytes(sum(message.n_bytes for message in received)),
                f"{len(sent)} out, {len(received)} in",
                readable_bytes(plan.memory_bytes(m)),
                f"{playback.busy_s[m] / playback.step_s:.0%}",
            ]
        )
    return _aligned(rows, right_from=1)


def _summary(plan: BarePlan) -> str:
    total = sum(message.n_bytes for message in plan.messages)
    return (
        f"{len(plan.messages)} messages a step, {readable_bytes(total)}; predicted step "
        f"{plan.predicted_step_s * 1e3:.2f} ms (uncalibrated)"
    )


def readable_bytes(n_bytes: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def _aligned(rows: list[list[str]], *, right_from: int) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if column >= right_from else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
