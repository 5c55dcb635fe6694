"""A plan as one machine's list of instructions, with a text form that parses back.

    3 RECV h1[640:1280] <- 1
    4 FORWARD h2[0:1280] += h1[640:1280] after 2,3

An instruction names the rows of the buffers that it writes and reads, and the earlier instructions that must
be done before it. There is no other order: an instruction whose predecessors are done may run. Among those,
the first in the list goes first.

The text form of buffers is explained in `buffer`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from partita.layers.box import BoxSet
from partita.partitioner.ir.buffer import Buffer, parse_buffer
from partita.partitioner.ir.pipeline import Pipeline
from partita.partitioner.ir.step_kind import StepKind


class Op(StrEnum):
    """The operation of an instruction."""

    FEED = "FEED"
    """Fills rows of an input or a target from the data."""
    RECV = "RECV"
    """Receives rows from machine `peer`."""
    SEND = "SEND"
    """Sends rows to machine `peer`."""
    MULTIPLY = "MULTIPLY"
    """Adds one block of a weighted sum; more blocks follow."""
    FORWARD = "FORWARD"
    """Computes activations; for a layer that splits its sum, the last block, bias and activation."""
    SUMMARISE = "SUMMARISE"
    """Computes the summary of the machine's rows (of a loss: of its scores), or the gradient that they return
    for the summary of all."""
    GRAD_PREACTIVATION = "GRAD_PREACTIVATION"
    """Turns the gradient of outputs into that of weighted sums, in place or in the array of a tile."""
    GRAD_INPUT = "GRAD_INPUT"
    """Computes the gradient of rows of an input."""
    ADD = "ADD"
    """Adds gradients that another machine or edge contributes; without `accumulate` (`=`), copies them."""
    FUSED_UPDATE = "FUSED_UPDATE"
    """Computes the gradient of a layer's parameters block by block, and passes each block to the driver."""
    GRADIENT = "GRADIENT"
    """Computes the gradient of a layer's parameters."""
    SQUARES = "SQUARES"
    """Computes the sums of squares of the machine's parameters and of their gradients."""
    UPDATE = "UPDATE"
    """Passes the gradient to the driver, which accumulates it and steps locally."""


COMPUTES = frozenset(Op) - {Op.RECV, Op.SEND}
"""The instructions that occupy a kernel thread."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows of a buffer: `h1[0:3,5:8]`; in a plan with tiles, boxes of a picture: `h1[0:3x4:8]`."""

    buffer: Buffer
    rows: BoxSet

    def __str__(self) -> str:
        return f"{self.buffer}[{self.rows}]"

    def overlaps(self, other: Operand) -> bool:
        """Returns whether they share a row of a buffer."""
        return self.buffer == other.buffer and self.rows.overlaps(other.rows)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a program.

    Args:
        op: the operation.
        target: rows that it writes (a SEND: that it sends).
        sources: other rows that it reads.
        peer: the other machine of a RECV or SEND.
        accumulate: whether it adds to the target instead of replacing it.
        after: positions of earlier instructions that it waits for, without those implied by them.
    """

    op: Op
    target: Operand
    sources: tuple[Operand, ...] = ()
    peer: int | None = None
    accumulate: bool = False
    after: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = [self.op.value, str(self.target)]
        if self.peer is not None:
            words += ["->" if self.op is Op.SEND else "<-", str(self.peer)]
        if self.sources:
            words += ["+=" if self.accumulate else "=", " ".join(map(str, self.sources))]
        if self.after:
            words += ["after", ",".join(map(str, self.after))]
        return " ".join(words)


_OPERAND = re.compile(r"(?P<buffer>[^\[]+)\[(?P<rows>[\d:,x]*)\]")
_LINE = re.compile(
    r"(?:\d+ +)?(?P<op>[A-Z_]+) (?P<target>\S+)(?: (?:->|<-) (?P<peer>\d+))?"
    r"(?: (?P<how>\+?=) (?P<sources>\S+(?: (?!after )\S+)*))?(?: after (?P<after>[\d,]+))?"
)


def parse_instruction(line: str) -> Instruction:
    """Reads the text of an instruction, with or without its position.

    Raises:
        ValueError: the text is not an instruction.
    """
    found = _LINE.fullmatch(line.strip())
    if found is None or found["op"] not in Op.__members__:
        raise ValueError(
            f"{line!r} is not an instruction; one reads for example 'RECV h1[0:640] <- 2 after 0,1'"
        )
    return Instruction(
        Op(found["op"]),
        _parse_operand(found["target"]),
        tuple(map(_parse_operand, (found["sources"] or "").split())),
        None if found["peer"] is None else int(found["peer"]),
        found["how"] == "+=",
        tuple(map(int, (found["after"] or "").split(","))) if found["after"] else (),
    )


def _parse_operand(written: str) -> Operand:
    found = _OPERAND.fullmatch(written)
    if found is None:
        raise ValueError(f"{written!r} is not rows of a buffer; write for example h1[0:3,5:8]")
    return Operand(parse_buffer(found["buffer"]), BoxSet.parse(found["rows"]))


@dataclass(frozen=True)
class Program:
    """The instructions of one machine for a kind of step, in the order of their priority."""

    machine: int
    instructions: tuple[Instruction, ...]
    kind: StepKind = StepKind()  # noqa: RUF009 - frozen
    pipeline: Pipeline = Pipeline()  # noqa: RUF009 - frozen

    @property
    def slots(self) -> int:
        """Numbered buffers of a name with memory of their own: number n lies where n - slots did."""
        return self.pipeline.slots

    def __str__(self) -> str:
        return "\n".join(f"{n:3} {instruction}" for n, instruction in enumerate(self.instructions))

    def __len__(self) -> int:
        return len(self.instructions)


def parse_program(
    machine: int,
    text: str,
    kind: StepKind = StepKind(),  # noqa: B008 - frozen
    pipeline: Pipeline = Pipeline(),  # noqa: B008 - frozen
) -> Program:
    """Reads the text of a program."""
    instructions = tuple(parse_instruction(line) for line in text.splitlines() if line.strip())
    return Program(machine, instructions, kind, pipeline)


def ordered(
    instructions: Sequence[Instruction], uses: Sequence[tuple[Sequence[Operand], Sequence[Operand]]]
) -> tuple[Instruction, ...]:
    """Finds the predecessors of each instruction: writers of what it reads, users of what it overwrites.

    `instructions` are in a correct sequential order; `uses` has the operands that each reads, and writes.
    """
    finished: list[Instruction] = []
    before: list[int] = []  # for each instruction, a bit set of all that is done when it is
    past = _Past()
    for n, (i, (read, written)) in enumerate(zip(instructions, uses, strict=True)):
        writes = [past.of(operand) for operand in written]
        others = [past.of(operand) for operand in read]
        clashes = 0
        for other in (other for used in writes for other in used.overlapping):
            clashes |= other.users
        for other in (other for used in others for other in used.overlapping):
            clashes |= other.writers
        after: list[int] = []
        met = 0
        while clashes:  # the latest first, because earlier ones are often done before it
            k = clashes.bit_length() - 1
            after.append(k)
            met |= before[k] | 1 << k
            clashes &= ~met
        before.append(met)
        for used in writes:
            used.writers |= 1 << n
        for used in (*writes, *others):
            used.users |= 1 << n
        finished.append(Instruction(i.op, i.target, i.sources, i.peer, i.accumulate, tuple(after[::-1])))
    past.forget()
    return tuple(finished)


class _Used:
    """Positions (bit sets) that write or use an operand, and the operands that share rows with it."""

    __slots__ = ("operand", "overlapping", "users", "writers")

    def __init__(self, operand: Operand) -> None:
        self.operand, self.writers, self.users = operand, 0, 0
        self.overlapping: list[_Used] = []


class _Past:
    """The operands of a program so far: two of one buffer are compared once, however often they are used."""

    def __init__(self) -> None:
        self._of: dict[Operand, _Used] = {}
        self._by_buffer: dict[Buffer, list[_Used]] = {}

    def of(self, operand: Operand) -> _Used:
        """Finds or makes the record of an operand."""
        found = self._of.get(operand)
        if found is None:
            found = self._of[operand] = _Used(operand)
            known = self._by_buffer.setdefault(operand.buffer, [])
            for other in known:
                if operand.rows.overlaps(other.operand.rows):
                    other.overlapping.append(found)
                    found.overlapping.append(other)
            known.append(found)
            if operand.rows:
                found.overlapping.append(found)
        return found

    def forget(self) -> None:
        """Breaks the cycles between records that share rows, which would outlive their use."""
        for used in self._of.values():
            used.overlapping.clear()
