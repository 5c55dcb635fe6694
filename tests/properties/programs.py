"""Assertions over the programs of a plan."""

from __future__ import annotations

from partita.partitioner import Plan, StepKind, parse_program


def assert_programs_parse_back(plan: Plan, kind: StepKind) -> None:
    """Asserts that the text of every program parses back to the same program."""
    for program in plan.programs_for(kind):
        assert parse_program(program.machine, str(program), kind.of(plan.graph)) == program
