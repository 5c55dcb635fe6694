"""Programs as text and back, and the order that they leave open."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import BoxSet
from partita.partitioner import Instruction, Op, Plan, StepKind
from partita.partitioner.ir.buffer import activations
from partita.partitioner.ir.program import Operand, ordered, parse_instruction
from partita.partitioner.lower.access import Access
from tests.draws import examples
from tests.plans import kinds, plans
from tests.properties.programs import assert_programs_parse_back

A, B, C = (Operand(activations(name), BoxSet.of_rows((0, 4))) for name in "abc")


@given(plans(shared=True), kinds)
def test_every_program_parses_back_from_its_text(plan: Plan, kind: StepKind) -> None:
    assert_programs_parse_back(plan, kind)


@given(st.booleans().flatmap(lambda losses: plans(losses=losses, shared=True)), kinds)
def test_an_instruction_waits_for_earlier_ones_only_and_repeats_nothing(plan: Plan, kind: StepKind) -> None:
    for program in plan.programs_for(kind):
        before: list[set[int]] = []
        for position, instruction in enumerate(program.instructions):
            assert all(0 <= earlier < position for earlier in instruction.after)
            behind = set().union(*(before[earlier] for earlier in instruction.after))
            assert not behind & set(instruction.after)
            before.append(behind | set(instruction.after))


Uses = Sequence[tuple[Sequence[Operand], Sequence[Operand]]]


def ordered_by_pairs(uses: Uses) -> list[tuple[int, ...]]:
    """Dependencies of each instruction, found by comparison with every earlier one: slow, and plain."""

    def shared(some: Sequence[Operand], others: Sequence[Operand]) -> bool:
        return any(a.buffer == b.buffer and a.rows.overlaps(b.rows) for a in some for b in others)

    found: list[tuple[int, ...]] = []
    done: list[set[int]] = []
    reads, wrote = zip(*uses, strict=True) if uses else ((), ())
    for n in range(len(uses)):
        after: list[int] = []
        met: set[int] = set()
        for k in reversed(range(n)):
            clash = shared(wrote[n], (*wrote[k], *reads[k])) or shared(reads[n], wrote[k])
            if k not in met and clash:
                after.append(k)
                met |= done[k] | {k}
        done.append(met)
        found.append(tuple(sorted(after)))
    return found


@settings(max_examples=examples(40))
@given(plans(shared=True), kinds)
def test_the_order_is_that_of_comparing_all_pairs(plan: Plan, kind: StepKind) -> None:
    for program in plan.programs_for(kind):
        access, instructions = Access(plan.ownership, program.machine), program.instructions
        if any(i.peer is not None for i in instructions):
            uses = [(access.reads(i), access.writes(i)) for i in instructions]
            assert waits(instructions) == ordered_by_pairs(uses)
        else:  # alone
            assert waits(instructions) == [(n - 1,) if n else () for n in range(len(instructions))]


@given(plans(shared=True), kinds)
def test_one_layer_learns_at_a_time(plan: Plan, kind: StepKind) -> None:
    for program in plan.programs_for(kind):
        behind: list[set[int]] = []
        for i in program.instructions:
            behind.append(set(i.after).union(*(behind[k] for k in i.after)))
        learn = [n for n, i in enumerate(program.instructions) if i.op is Op.FUSED_UPDATE]
        assert all(a in behind[b] for a, b in pairwise(learn))


operands = st.builds(
    Operand,
    st.sampled_from("abc"),
    st.lists(st.integers(0, 9), max_size=4).map(lambda rows: BoxSet.of_rows(*((n, n + 1) for n in rows))),
)


@settings(max_examples=examples(80))
@given(
    st.lists(
        st.tuples(st.sampled_from([Op.SEND, Op.FORWARD]), operands, st.lists(operands, max_size=3)),
        max_size=25,
    )
)
def test_the_order_of_any_instructions_is_that_of_comparing_all_pairs(
    steps: list[tuple[Op, Operand, list[Operand]]],
) -> None:
    assert waits(lowered(*steps)) == ordered_by_pairs(uses_of(steps))


@pytest.mark.parametrize(
    "line",
    [
        "RECV h1[640:1280] <- 1",
        "SEND h1<h2#1[0:3,5:8] -> 12 after 0,3",
        "FORWARD h2[0:1280] += h1[640:1280] after 2,3",
        "ADD h1<h2[0:3] = h1<h2@3[0:3]",
        "FEED image[]",
        "UPDATE conv-1.parameters[0:2] += conv-1.gradient[0:2] after 7",
        "FORWARD sum[0:2] = a[0:2] b[0:2]",
        "SUMMARISE loss.summary[1:2] = scores[5:10] digit[0:1] after 5",
        "FORWARD loss[0:1] = scores[5:10] digit[0:1] loss.summary[0:2] after 6,7",
        "FUSED_UPDATE h2.parameters[0:3] += h2<h3[0:3] after 9",
        "ADD conv.gradient[0:1] += conv.gradient@2[0:1] after 3,8",
        "SQUARES norms.squares[1:2] = h1.gradient[0:3] h2.gradient[3:6] after 11,12",
    ],
)
def test_the_text_of_an_instruction_is_its_own(line: str) -> None:
    assert str(parse_instruction(line)) == line
    assert parse_instruction(f" 12 {line}") == parse_instruction(line)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "is not an instruction"),
        ("JUMP h1[0:3]", "is not an instruction; one reads for example"),
        ("RECV h1[0:3] <- two", "is not an instruction"),
        ("RECV h1 <- 2", "'h1' is not rows of a buffer"),
        ("RECV h1[0-3] <- 2", "is not rows of a buffer"),
        ("RECV h1[3] <- 2", "'3' is not a run of rows"),
    ],
)
def test_what_is_no_instruction_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_instruction(line)


def lowered(*steps: tuple[Op, Operand, Sequence[Operand]]) -> tuple[Instruction, ...]:
    return ordered([Instruction(op, target) for op, target, _ in steps], uses_of(steps))


def uses_of(steps: Sequence[tuple[Op, Operand, Sequence[Operand]]]) -> Uses:
    """Each writes its target, unless it sends it."""
    return [(reads, () if op is Op.SEND else (target,)) for op, target, reads in steps]


def waits(instructions: Sequence[Instruction]) -> list[tuple[int, ...]]:
    return [instruction.after for instruction in instructions]


def test_a_reader_waits_for_the_writer_and_an_overwriter_for_both() -> None:
    program = lowered((Op.RECV, A, ()), (Op.FORWARD, B, (A,)), (Op.RECV, A, ()), (Op.FORWARD, C, (A, B)))
    assert waits(program) == [(), (0,), (1,), (2,)]


def test_other_rows_of_the_same_buffer_are_not_waited_for() -> None:
    low, high = (
        Operand(activations("a"), BoxSet.of_rows((0, 2), (6, 8))),
        Operand(activations("a"), BoxSet.of_rows((2, 6))),
    )
    program = lowered(
        (Op.RECV, low, ()), (Op.RECV, high, ()), (Op.FORWARD, B, (high,)), (Op.SEND, low, (low,))
    )
    assert waits(program) == [(), (), (1,), (0,)]


def test_two_that_read_the_same_do_not_wait_for_one_another() -> None:
    program = lowered((Op.RECV, A, ()), (Op.FORWARD, B, (A,)), (Op.FORWARD, C, (A,)), (Op.SEND, A, (A,)))
    assert waits(program) == [(), (0,), (0,), (0,)]
