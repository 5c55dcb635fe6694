"""The first record of a run: its network, its plan, and what the plan predicts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from partita.engine.drivers.driver import Driver
from partita.engine.numerics import master
from partita.engine.parameters.layout import Layout
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.lanes import lanes_of
from partita.engine.runtime.push_messages import form_of
from partita.engine.watch.records import PlannedLayer, PlannedLink, PlannedMachine, PlanPicture, RunBegan
from partita.layers.text import counted, readable_bytes
from partita.partitioner.pictures import view
from partita.partitioner.plan import Plan

_LATER: Final = 1 << 40
"""A step behind every warm-up."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The amount of work that a run is to do.

    Args:
        run: its id.
        unit: "step" or "iteration".
        examples: of an epoch; 0 where not known.
        steps: of all replicas until the end; None where not known.
        steps_before: those done before this run.
        steps_per_epoch: of all replicas; None where not known.
        started_unix_s: when the run began, in seconds since 1970.
    """

    run: str
    unit: str
    examples: int
    steps: int | None
    steps_before: int
    steps_per_epoch: int | None
    started_unix_s: float


def began(plan: Plan, driver: Driver, extent: Extent) -> RunBegan:
    """Returns the first record of a run; simulating the predicted step may take a second for a large plan."""
    layout = layout_of(plan, shards=max(driver.shards, 1), fragments=driver.n_fragments)
    links = _links(plan)
    sent = sum(link.n_bytes for link in links)
    machines = tuple(_machine(plan, driver, layout, machine) for machine in range(len(plan.cluster)))
    return RunBegan(
        at_s=0.0,
        run=extent.run,
        network=plan.graph.name,
        driver=type(driver).__name__,
        settings=repr(driver),
        unit=extent.unit,
        started_unix_s=extent.started_unix_s,
        replicas=driver.replicas,
        shards=driver.shards,
        batch=plan.batch * _minibatches(driver),
        examples=extent.examples,
        steps=extent.steps,
        steps_before=extent.steps_before,
        steps_per_epoch=extent.steps_per_epoch,
        machines=machines,
        layers=tuple(_layers(plan)),
        links=links,
        links_text=_formula(plan, driver, sent, machines),
        predicted_step_s=plan.predicted_step_s,
        lower_bound_s=plan.lower_bound_s,
        predicted=lanes_of(plan.simulated_step),
    )


def picture(plan: Plan) -> PlanPicture | None:
    """Returns the plan's picture; None where the library that draws is not installed."""
    try:
        return PlanPicture(at_s=0.0, svg=view("plan_picture").draw_plan(plan))
    except ImportError:
        return None


def _minibatches(driver: Driver) -> int:
    """Minibatches of a step; a batch method has one portion in each."""
    return 1 if driver.evaluates else driver.minibatches


def _machine(plan: Plan, driver: Driver, layout: Layout, machine: int) -> PlannedMachine:
    made = plan.cluster.machines[machine]
    exchanged = layout.machine_size(machine) * master(plan.precision).itemsize
    pulls = exchanged if driver.shards and not driver.evaluates else 0
    return PlannedMachine(
        name=made.name,
        device=made.device,
        threads=made.threads,
        memory_bytes=_memory(plan, driver, machine),
        memory_limit_bytes=made.memory_bytes,
        parameters=plan.n_parameters(machine),
        push_bytes=_push_bytes(driver, layout, machine, master(plan.precision).itemsize) if pulls else 0,
        pull_bytes=pulls,
    )


def _push_bytes(driver: Driver, layout: Layout, machine: int, item_bytes: int) -> int:
    """The bytes of a machine's push to all shards; of a compressor that warms up, of its last stage."""
    if driver.compress is None:
        return layout.machine_size(machine) * item_bytes
    forms = (form_of(driver.compress, layout, one, item_bytes) for one in layout.shards_of(machine))
    return sum(form.n_bytes(_LATER) for form in forms)


def _memory(plan: Plan, driver: Driver, machine: int) -> int | None:
    optimizer = None if driver.evaluates else driver.optimizer
    vectors = 0 if optimizer is None else len(optimizer.state_names)
    try:
        return plan.memory_bytes(
            machine, driver="downpour" if driver.shards else "session", optimizer_vectors=vectors
        )
    except ValueError:  # a layer without a backward pass: nothing is trained
        return None


def _layers(plan: Plan) -> list[PlannedLayer]:
    found = []
    for grid in plan.graph.grids:
        pieces = () if grid.is_placeholder else plan.ownership.of(grid.name)
        found.append(
            PlannedLayer(
                name=grid.name,
                kind=grid.layer.kind,
                shape=tuple(grid.shape),
                sources=tuple(grid.sources),
                pieces=tuple((piece.machine, _box(piece.box, grid.shape)) for piece in pieces),
            )
        )
    return found


def _box(box: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The box with all axes; those that are not cut are whole."""
    given = tuple((int(start), int(stop)) for start, stop in box)
    return given + tuple((0, length) for length in shape[len(given) :])


def _links(plan: Plan) -> tuple[PlannedLink, ...]:
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for message in plan.messages:
        of_link = found[message.source, message.destination]
        of_link[0] += 1
        of_link[1] += message.n_bytes
    return tuple(PlannedLink(*ends, *counts) for ends, counts in sorted(found.items()))


def _formula(plan: Plan, driver: Driver, sent: int, machines: tuple[PlannedMachine, ...]) -> str:
    """The bytes of a step in words: those between machines, and those of a push."""
    each = sent / plan.batch
    between = (
        f"{readable_bytes(sent)} a step between machines: {counted(len(plan.messages), 'message')}, "
        f"{readable_bytes(each)} an example x batch {plan.batch}"
        if sent
        else "nothing is sent between machines"
    )
    pushed = sum(machine.push_bytes for machine in machines)
    parameters = sum(machine.parameters for machine in machines)
    own = f"; a push {readable_bytes(pushed)}: {_pushed(plan, driver, parameters)}" if pushed else ""
    return between + own


def _pushed(plan: Plan, driver: Driver, parameters: int) -> str:
    """The bytes of a push in words."""
    item = master(plan.precision).itemsize
    if driver.compress is None:
        return f"{parameters:,} parameters x {item} bytes"
    rows = ", beside rows of sparse tables" if plan.graph.sparse else ""
    return f"{driver.compress} of {readable_bytes(parameters * item)}{rows}"
