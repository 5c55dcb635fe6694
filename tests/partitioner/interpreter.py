"""Plays programs on symbols instead of numbers, in any order that they allow, and refuses what is not ready.

A row of states is a label; a row of errors is the list of the terms that were summed into it, a gradient the
list of the rows; parameters are a count of updates. Buffers keep what earlier steps left in them, as the
engine's do, and machines drift apart by whole steps. Reading what is not finished, of this step and complete,
is an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from partita.layers import BoxSet
from partita.partitioner import Instruction, Op, Plan, Program
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge, activations
from partita.partitioner.ir.program import Operand
from tests.partitioner.expected import Expected, Unit, members
from tests.partitioner.symbolic_host import Host, Term, beside_each_other

Choice: TypeAlias = Callable[[Sequence[tuple[int, int]]], tuple[int, int]]
"""Picks among (machine, position) of everything that could run now."""


class Interpreter:
    """Plays the programs of a plan for some steps."""

    def __init__(
        self, plan: Plan, programs: Sequence[Program], *, keep: Collection[Buffer] | None = None
    ) -> None:
        """Windows lie where the plan puts them if only those of `keep` must outlast the step."""
        self.expected, self.graph = Expected(plan.ownership), plan.graph
        self.kind, self.train, self.keep = programs[0].kind, programs[0].kind.train, keep
        self.hosts = [
            Host(program, beside_each_other(plan.windows(program, keep=keep))) for program in programs
        ]
        windows = [plan.windows(program, keep=keep) for program in programs]
        self.apart = [{name for name, window in of_one.items() if window.own} for of_one in windows]
        for host in self.hosts:
            for buffer in host.beside:
                self._spoil(host, buffer)
        self.network: dict[tuple[int, int, int, Buffer], tuple[Operand, list[object]]] = {}

    def run(self, *, steps: int, choose: Choice) -> None:
        """Runs every machine for so many steps; `choose` decides the order."""
        while True:
            ready = [
                (m, n)
                for m, host in enumerate(self.hosts)
                if host.number < steps
                for n in range(len(host.program))
                if self._can_run(m, host, n)
            ]
            if ready:
                machine, position = choose(ready)
                self._execute(
                    machine, self.hosts[machine], self.hosts[machine].program.instructions[position]
                )
                self.hosts[machine].done.add(position)
            for machine, host in enumerate(self.hosts):
                if host.number < steps and len(host.done) == len(host.program):
                    self._end_step(machine, host)
            if not ready:
                break
        assert [host.step for host in self.hosts] == [steps] * len(self.hosts), "some machine waits for ever"
        assert not self.network, f"messages that nobody received: {list(self.network)}"

    def _can_run(self, machine: int, host: Host, position: int) -> bool:
        instruction = host.program.instructions[position]
        if position in host.done or not host.done.issuperset(instruction.after):
            return False
        return instruction.op is not Op.RECV or self._key(machine, host, instruction) in self.network

    def _key(self, machine: int, host: Host, instruction: Instruction) -> tuple[int, int, int, Buffer]:
        assert instruction.peer is not None and instruction.peer != machine
        ends = (machine, instruction.peer) if instruction.op is Op.SEND else (instruction.peer, machine)
        return host.number, *ends, instruction.target.buffer.sent

    def _end_step(self, machine: int, host: Host) -> None:
        pipeline = host.program.pipeline
        last = range(pipeline.total - pipeline.slots, pipeline.total)
        for found in [host.portion(n, up=False) for n in last] if pipeline.total > 1 else [host]:
            self._check_portion(machine, found)
        for grid in self.graph.computed if self.train else ():
            owns = self.expected.own(grid.name, machine) and machine not in self.expected.weight_receivers(
                grid.name
            )
            if owns and grid.parameters:
                times = (host.number + 1) * pipeline.overlap
                assert host.updates.get(grid.name) == times, f"{grid.name} has not learnt once"
        host.step, host.done = host.number + 1, set()

    def _check_portion(self, machine: int, host: Host) -> None:
        """Checks that everything that outlives a step exists."""
        for grid in self.graph.computed:
            if not self.expected.own(grid.name, machine):
                continue
            if self._outlasts(grid.name):
                self._check_states(host, grid.name, self.expected.own(grid.name, machine))
            learns = (
                self.train and grid.name in self.graph.needs_gradient and grid.name not in self.graph.losses
            )
            if learns and self._outlasts(self._buffer(grid.name)):
                self._check_errors(machine, host, grid.name)

    def _outlasts(self, buffer: str) -> bool:
        return self.keep is None or buffer in self.keep

    def _buffer(self, layer: str) -> Buffer:
        """Buffer in which the errors of a layer are summed."""
        return Edge(layer, *self.expected.consumers(layer)[0]).buffer

    def _spoil(self, host: Host, buffer: Buffer) -> None:
        """Writes over whatever lies in the same memory, before it is known what is read."""
        for place in host.beside.get(buffer.place(host.program.slots), ()):
            number, other = place.micro_batch, place.undivided
            found = host if number is None or place.is_of_minibatch else host.portion(number, up=False)
            for rows in (found.states, found.errors, found.values, host.shared):
                for key in [key for key in rows if key[0] == other]:
                    del rows[key]
            host.gradients.pop(other, None)
            found.spoilt.add(other)

    def _execute(self, machine: int, whole: Host, instruction: Instruction) -> None:
        if instruction.op is not Op.SEND:
            self._spoil(whole, instruction.target.buffer)
        host, named = whole.of(instruction), instruction
        sources = tuple(Operand(source.buffer.undivided, source.rows) for source in instruction.sources)
        target = Operand(instruction.target.buffer.undivided, instruction.target.rows)
        if instruction.op in (Op.GRADIENT, Op.FUSED_UPDATE):
            self._learn(machine, whole, instruction)
            return
        instruction = replace(instruction, target=target, sources=sources)
        match instruction.op:
            case Op.FEED:
                host.states |= {
                    (instruction.target.buffer, row): host.step for row in members(instruction.target.rows)
                }
            case Op.SEND:
                key = self._key(machine, whole, named)
                assert key not in self.network, f"{instruction} sends twice"
                self.network[key] = (instruction.target, self._read(host, instruction.target))
            case Op.RECV:
                sent, values = self.network.pop(self._key(machine, whole, named))
                assert sent.rows == instruction.target.rows, f"{instruction} takes what was sent as {sent}"
                self._write(host, instruction.target, values)
            case Op.MULTIPLY | Op.FORWARD:
                self._up(machine, host, instruction)
            case Op.GRAD_PREACTIVATION:
                layer = instruction.sources[0].buffer.layer
                assert members(instruction.sources[0].rows) == self.expected.own(layer, machine)
                self._check_states(host, layer, members(instruction.sources[0].rows))
                self._check_errors(machine, host, layer, delta=False)
                for row in members(instruction.target.rows):
                    terms = self._error(host, instruction.target.buffer, row)
                    host.errors[instruction.target.buffer, row] = [*terms, (host.step, "delta")]
            case Op.ADD:
                kinds = instruction.target.buffer.kind, instruction.sources[0].buffer.kind
                if kinds == (BufferKind.GRAD_PREACTIVATION, BufferKind.GRAD_OUTPUT):
                    self._check_errors(machine, host, instruction.target.buffer.layer)
                values = self._read_sums(host, instruction.sources[0])
                before = (
                    self._read_sums(host, instruction.target)
                    if instruction.accumulate
                    else [[] for _ in values]
                )
                self._write(host, instruction.target, [[*a, *b] for a, b in zip(before, values, strict=True)])
            case Op.GRAD_INPUT:
                self._errors(machine, host, instruction)
            case Op.SUMMARISE:
                self._summarise(machine, host, instruction)
            case Op.SQUARES:
                learnt = [source.buffer.layer for source in instruction.sources]
                assert learnt == self._learnt(machine), f"{instruction} forgets some"
                for layer in learnt:
                    self._check_gradient(machine, host, layer)
                    self._check_parameters(machine, host, layer)
                place = self.expected.parameter_owners().index(machine)
                assert instruction.target.rows == BoxSet.of_rows((place, place + 1))
                self._write(host, instruction.target, [(host.learnt, machine)])
            case Op.UPDATE:
                layer = instruction.target.buffer.layer
                self._check_gradient(machine, host, layer)
                if self.kind.norms:
                    found = self._read(host, instruction.sources[1])
                    assert found == [(host.learnt, other) for other in self.expected.parameter_owners()], (
                        found
                    )
                self._update(machine, host, layer)

    # Learning

    def _learnt(self, machine: int) -> list[str]:
        """The layers whose parameters a machine owns."""
        return [
            grid.name
            for grid in self.graph.computed
            if grid.parameters
            and self.expected.own(grid.name, machine)
            and machine not in self.expected.weight_receivers(grid.name)
        ]

    def _learn(self, machine: int, whole: Host, instruction: Instruction) -> None:
        layer = instruction.target.buffer.layer
        last = whole.of(instruction)
        for errors in instruction.sources:
            if not errors.buffer.holds_grad:
                continue
            number = errors.buffer.micro_batch
            of_portion = last if number is None else whole.portion(number, up=False)
            host = replace(of_portion, updated=last.updated, given=last.given)
            self._check_site(machine, host, layer)
            self._check_deltas(machine, host, layer)
        last.gradients[Buffer(BufferKind.GRADIENT, layer)] = self._terms(
            last, self.expected.receivers(layer, machine)
        )
        if instruction.op is Op.FUSED_UPDATE:
            self._check_gradient(machine, last, layer)
            self._update(machine, last, layer)

    def _terms(self, host: Host, rows: Sequence[int]) -> list[Term]:
        """Terms of all portions of a minibatch, one after another."""
        n = host.program.pipeline.micro_batches
        return [(host.learnt, portion, row) for portion in range(n) for row in rows]

    def _check_gradient(self, machine: int, host: Host, layer: str) -> None:
        """Checks that a gradient is the sum over the machine's rows; for shared weights over all rows, in
        their order.
        """
        expected = self._terms(host, self.expected.receivers(layer, machine))
        if self.expected.weight_receivers(layer):
            owners = self.expected.owners(layer)
            expected = [term for m in owners for term in self._terms(host, self.expected.own(layer, m))]
        found = host.gradients.get(Buffer(BufferKind.GRADIENT, layer))
        assert found == expected, f"the gradient of {layer} on machine {machine} is of {found}"

    def _update(self, machine: int, host: Host, layer: str) -> None:
        assert layer in self._learnt(machine), f"{layer} is not machine {machine}'s to change"
        assert host.updates.get(layer, 0) == host.learnt, f"{layer} learns twice"
        host.updates[layer] = host.learnt + 1

    # Buffers

    def _read(self, host: Host, operand: Operand) -> list[object]:
        if operand.buffer.holds_grad:
            return list(self._read_errors(host, operand))
        if operand.buffer.kind is BufferKind.PARAMETERS:
            return [(host.learnt, host.updates.get(operand.buffer.layer, 0) if self.train else "as given")]
        if operand.buffer.kind is BufferKind.GRADIENT:
            return [host.gradients[operand.buffer]]
        if operand.buffer.is_of_minibatch:
            return [host.shared[operand.buffer, row] for row in members(operand.rows)]
        if operand.buffer.kind is not BufferKind.ACTIVATIONS:
            return [host.values[operand.buffer, row] for row in members(operand.rows)]
        self._check_states(host, operand.buffer.layer, members(operand.rows))
        return [host.states[operand.buffer, row] for row in members(operand.rows)]

    def _read_sums(self, host: Host, operand: Operand) -> list[list[Term]]:
        if operand.buffer.holds_grad:
            return self._read_errors(host, operand)
        return [list(host.gradients[operand.buffer])]

    def _read_errors(self, host: Host, operand: Operand) -> list[list[Term]]:
        return [self._error(host, operand.buffer, row) for row in members(operand.rows)]

    def _error(self, host: Host, buffer: Buffer, row: int) -> list[Term]:
        """Zero at first, unless something else lay there."""
        assert (buffer, row) in host.errors or buffer not in host.spoilt, f"row {row} of {buffer} is no error"
        return list(host.errors.get((buffer, row), []))

    def _write(self, host: Host, operand: Operand, values: Sequence[object]) -> None:
        for row, value in zip(members(operand.rows), values, strict=True):
            if operand.buffer.holds_grad:
                assert isinstance(value, list)
                host.errors[operand.buffer, row] = list(value)
            elif operand.buffer.kind is BufferKind.GRADIENT:
                assert isinstance(value, list)
                host.gradients[operand.buffer] = list(value)
            elif operand.buffer.is_of_minibatch:
                host.shared[operand.buffer, row] = value
            elif operand.buffer.kind is not BufferKind.ACTIVATIONS:
                host.values[operand.buffer, row] = value
            else:
                host.states[operand.buffer, row] = value

    def _check_states(self, host: Host, layer: str, rows: Sequence[int]) -> None:
        for row in rows:
            assert host.states.get((activations(layer), row)) == host.step, (
                f"row {row} of {layer} is not there in step {host.step}"
            )

    def _check_errors(self, machine: int, host: Host, layer: str, *, delta: bool = True) -> None:
        """The machine's rows of a layer have every term of their error once, in order."""
        buffer = self._buffer(layer)
        for row in self.expected.own(layer, machine):
            terms: list[Term] = [(host.step, *term) for term in self.expected.error(layer, row, machine)]
            found = self._error(host, buffer, row)
            if delta and (self.graph[layer].layer.activation != "linear" or buffer in self.apart[machine]):
                if not terms:  # nobody listens: the error is zero, however often it is scaled
                    assert not [term for term in found if term[1] != "delta"]
                    continue
                terms = [*terms, (host.step, "delta")]
            elif not terms:
                found = [term for term in found if term[1] != "delta"]
            assert found == terms, f"row {row} of {layer} on machine {machine}: {found} instead of {terms}"

    def _check_deltas(self, machine: int, host: Host, layer: str) -> None:
        """Checks that the operands of a layer's input errors and of its gradient are complete."""
        if not self.expected.is_input_split(layer):
            self._check_errors(machine, host, layer)
            return
        for row in range(self.graph[layer].n_rows):
            found = [
                term
                for term in self._error(host, Buffer(BufferKind.GRAD_PREACTIVATION, layer), row)
                if term[1] != "delta"
            ]
            terms = [(host.step, *term) for term in self.expected.delta(layer, row, machine)]
            assert found == terms, f"row {row} of {layer} on machine {machine}: {found} instead of {terms}"

    def _check_site(self, machine: int, host: Host, layer: str) -> None:
        """Checks the operands of a backward kernel: activations, inputs, and parameters that are not yet
        updated.
        """
        self._check_states(host, layer, self.expected.own(layer, machine))
        for number, source in enumerate(self.graph[layer].sources):
            self._check_states(host, source, sorted(self.expected.needed(layer, number, machine)))
        if layer not in self.graph.losses:
            for kind in (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY):
                self._check_summaries(host, layer, kind)
        self._check_parameters(machine, host, layer)

    def _check_parameters(self, machine: int, host: Host, layer: str) -> None:
        learns = self.train and self.graph[layer].parameters
        if machine in self.expected.weight_receivers(layer):
            found = host.shared.get((Buffer(BufferKind.PARAMETERS, layer), 0))
            expected = host.given if learns else (host.given[0], "as given")
            assert found == expected, f"machine {machine} uses weights of {layer} of {found}"
        else:
            assert host.updates.get(layer, 0) == (host.updated if learns else 0), (
                f"{layer} has learnt too early"
            )

    # Kernels

    def _up(self, machine: int, host: Host, instruction: Instruction) -> None:
        layer = instruction.target.buffer.layer
        if self.expected.is_input_split(layer):
            self._sum_up(machine, host, instruction, layer)
            return
        own = self.expected.own(layer, machine)
        if self.graph[layer].layer.by_rows and members(instruction.target.rows) != own:
            self._some_rows_up(machine, host, instruction, layer)
            return
        assert members(instruction.target.rows) == own
        self._check_parameters(machine, host, layer)
        read = list(instruction.sources)
        if self.expected.summary_senders(layer):
            assert read.pop().buffer == Buffer(BufferKind.SUMMARY, layer)
            self._check_summaries(host, layer)
        for source in read:
            self._check_states(host, source.buffer.layer, members(source.rows))
        summed = [(source.buffer.layer, row) for source in read for row in members(source.rows)]
        host.sums[layer] = host.sums[layer] + summed if instruction.accumulate else summed
        for row in own:
            host.states[activations(layer), row] = "unfinished"
        if instruction.op is Op.FORWARD:
            assert host.sums[layer] == self._inputs(machine, layer), f"{instruction} ends {host.sums[layer]}"
            self._write(host, instruction.target, [host.step] * len(own))

    def _some_rows_up(self, machine: int, host: Host, instruction: Instruction, layer: str) -> None:
        """Rows of a layer without a common sum: they read what they need and nothing else."""
        rows = members(instruction.target.rows)
        assert set(rows) < set(self.expected.own(layer, machine))
        self._check_parameters(machine, host, layer)
        for k, source in enumerate(instruction.sources):
            runs = (self.graph.source_rows(layer, box, k) for box in instruction.target.rows)
            assert source.rows == BoxSet.union(*runs)
            self._check_states(host, source.buffer.layer, members(source.rows))
        self._write(host, instruction.target, [host.step] * len(rows))

    def _sum_up(self, machine: int, host: Host, instruction: Instruction, layer: str) -> None:
        """A machine's sums over its own inputs; or those of all machines, added up in their order."""
        self._check_parameters(machine, host, layer)
        if instruction.op is Op.MULTIPLY:
            (received,) = instruction.sources
            assert set(members(received.rows)) == self.expected.needed(layer, 0, machine)
            self._check_states(host, received.buffer.layer, members(received.rows))
            self._write(
                host, instruction.target, [(host.step, machine)] * len(members(instruction.target.rows))
            )
            return
        assert members(instruction.target.rows) == self.expected.own(layer, machine)
        machines = sorted(self.expected.owners(layer))
        for term, other in zip(instruction.sources, machines, strict=True):
            assert term.rows == instruction.target.rows
            assert set(self._read(host, term)) == {(host.step, other)}, f"{term} is not machine {other}'s"
        self._write(host, instruction.target, [host.step] * len(members(instruction.target.rows)))

    def _summarise(self, machine: int, host: Host, instruction: Instruction) -> None:
        layer, (first, *others) = instruction.target.buffer.layer, instruction.sources
        place = self.expected.summary_senders(layer).index(machine)
        assert instruction.target.rows == BoxSet.of_rows((place, place + 1))
        if instruction.target.buffer.kind is BufferKind.GRAD_SUMMARY:
            assert members(first.rows) == self.expected.own(layer, machine)
            self._check_deltas(machine, host, layer)
            self._check_summaries(host, layer)
            others.pop()
        else:
            others.append(first)
            source = self.graph[layer].sources[0]
            own = self.expected.evaluated(source, machine) if layer in self.graph.losses else None
            needed = self.expected.needed(layer, 0, machine)
            assert set(members(first.rows)) == (needed if own is None else own)
        for operand in others:
            self._check_states(host, operand.buffer.layer, members(operand.rows))
        self._write(host, instruction.target, [(host.step, machine)])

    def _check_summaries(self, host: Host, layer: str, kind: BufferKind = BufferKind.SUMMARY) -> None:
        for row, machine in enumerate(self.expected.summary_senders(layer)):
            found = host.values[Buffer(kind, layer), row]
            assert found == (host.step, machine), f"{kind} {row} of {layer} is not of the step"

    def _inputs(self, machine: int, layer: str) -> list[tuple[str, int]]:
        """The rows that a piece is computed from, in order: for a split sum, the machine's own come first."""
        grid, found = self.graph[layer], []
        for number, source in enumerate(grid.sources):
            mine = [_row(unit) for unit in self.expected.own(source, machine) if grid.layer.splits_sum]
            rows = sorted(
                self.expected.needed(layer, number, machine),
                key=lambda unit: (_row(unit) not in mine, unit),
            )
            found += [(source, row) for row in rows]
        return found

    def _errors(self, machine: int, host: Host, instruction: Instruction) -> None:
        assert instruction.target.buffer.edge is not None
        layer, consumer, number = instruction.target.buffer.edge
        own = self.expected.receivers(consumer, machine)
        self._check_site(machine, host, consumer)
        assert members(instruction.sources[0].rows) == own
        if consumer not in self.graph.losses:
            self._check_deltas(machine, host, consumer)
        assert self.graph[consumer].sources[number] == layer
        for row in members(instruction.target.rows):
            new = [
                (host.step, consumer, number, c, machine)
                for c in own
                if row in self.expected.sources(consumer, number, c)
            ]
            key = (instruction.target.buffer, row)
            host.errors[key] = [*(self._error(host, *key) if instruction.accumulate else []), *new]


def _row(unit: Unit) -> int:
    """Row of tiles of a position, because a kernel takes whole rows."""
    return int(unit[0]) if isinstance(unit, tuple) else int(unit)
