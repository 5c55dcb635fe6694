"""From values that are assigned once to loops over the examples, as few as the order of statements allows."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.passes import Body

Varying = set[ir.Operand | str]


def masked(body: Body, varying: Varying) -> Body:
    """Makes loops run for all examples: a varying branch with a loop in it becomes choices of numbers."""
    found: Body = []
    for statement in body:
        statement = ir.with_bodies(statement, lambda inner: masked(inner, varying))
        match statement:
            case ir.Branch(condition, yes, no, merged) if condition in varying and not is_of_examples(
                statement, varying
            ):
                opposite = ir.Value("not", (condition,))
                found += [*_under(condition, yes, varying), opposite, *_under(opposite, no, varying)]
                for one in merged:
                    choice = ir.Value("choice", (condition, one.yes, one.no))
                    varying.add(choice)
                    found += [choice, ir.Assign(one, choice)]
                varying.add(opposite)
            case _:
                found.append(statement)
    return found


def _under(condition: ir.Operand, body: Body, varying: Varying) -> Body:
    """Lets only examples that meet a condition change arrays; numbers are computed for all."""
    found: Body = []
    for statement in body:
        match statement:
            case ir.Store(array, index, value):
                before = ir.Value("item", (index,), array=array)
                after = ir.Value("choice", (condition, value, before))
                varying.update((before, after))
                found += [before, after, ir.Store(array, index, after)]
            case _:
                found.append(ir.with_bodies(statement, lambda inner: _under(condition, inner, varying)))
    return found


def assigned(body: Body) -> Body:
    """Writes what loops carry and what branches leave as assignments."""
    found: Body = []
    for statement in body:
        statement = ir.with_bodies(statement, assigned)
        match statement:
            case ir.Loop(carried=carried, body=inner):
                found += [ir.Assign(one, one.start) for one in carried]
                ends = {one: one.end for one in carried if one.end is not one}
                copies = {one: ir.Value("+", (end,)) for one, end in ends.items() if end in carried}
                ends |= copies
                assignments = [ir.Assign(one, end) for one, end in ends.items()]
                statement = replace(statement, body=[*inner, *copies.values(), *assignments])
            case ir.Branch(condition, yes, no, merged):
                yes = [*yes, *(ir.Assign(one, one.yes) for one in merged)]
                no = [*no, *(ir.Assign(one, one.no) for one in merged)]
                statement = ir.Branch(condition, yes, no)
        found.append(statement)
    return found


def is_of_examples(statement: ir.Statement, varying: Varying) -> bool:
    """Returns whether a statement can stand in the loop over the examples."""
    match statement:
        case ir.Store(array):
            return array in varying
        case ir.Assign(target):
            return target in varying
        case ir.Branch(_, yes, no, merged):
            return varying.issuperset(merged) and all(is_of_examples(one, varying) for one in (*yes, *no))
        case ir.Loop():
            return statement.scalar
    return isinstance(statement, ir.Value | ir.Output)


def grouped(body: Body, varying: Varying) -> Body:
    """Returns the body with loops over the examples (`ir.Each`)."""
    found: Body = []
    run: Body = []
    for statement in body:
        is_uniform_branch = isinstance(statement, ir.Branch) and statement.condition not in varying
        if is_of_examples(statement, varying) and not is_uniform_branch:
            run.append(statement)
            continue
        found += _flushed(run, varying)
        run = []
        found.append(ir.with_bodies(statement, lambda inner: grouped(inner, varying)))
    return [*found, *_flushed(run, varying)]


def _flushed(run: Body, varying: Varying) -> Body:
    is_uniform = all(isinstance(one, ir.Value) and one not in varying for one in run)
    return run if is_uniform else [ir.Each(run)]


def uniform_in(body: Sequence[ir.Statement], varying: Varying) -> list[ir.Value]:
    """Finds the numbers in a loop over the examples that are the same for all."""
    return [one for one in ir.every(body) if isinstance(one, ir.Value) and one not in varying]


def read_in(body: Sequence[ir.Statement]) -> set[ir.Operand]:
    """Finds the numbers that statements read."""
    return {operand for one in ir.every(body) for operand in ir.operands(one)}


def assigned_in(body: Sequence[ir.Statement]) -> set[ir.Operand]:
    """Finds the numbers that statements compute or assign."""
    statements = list(ir.every(body))
    computed: set[ir.Operand] = {one for one in statements if isinstance(one, ir.Value)}
    return computed | {one.target for one in statements if isinstance(one, ir.Assign)}


def set_first_in(body: Sequence[ir.Statement]) -> set[ir.Operand]:
    """Finds the numbers that statements compute or assign on every path, before they read them."""
    found, read = set[ir.Operand](), set[ir.Operand]()
    for statement in body:
        read |= read_in([statement])
        if isinstance(statement, ir.Value | ir.Assign):
            found |= assigned_in([statement]) - read
    return found


def is_read_again(operand: ir.Operand) -> bool:
    """Returns whether a number is read where it is wanted, and kept nowhere."""
    return isinstance(operand, ir.Argument) or (
        isinstance(operand, ir.Value) and operand.array == ir.INCOMING
    )


def kept(body: Body, varying: Set[ir.Operand | str]) -> set[ir.Operand]:
    """Finds the varying numbers that pass from one loop over the examples to another, or to its next
    iteration.
    """
    once, again = set[ir.Operand](), set[ir.Operand]()
    for statement in ir.every(body):
        if isinstance(statement, ir.Each):
            used = (read_in(statement.body) | assigned_in(statement.body)) & varying
            again |= used & once
            once |= used
    return {one for one in again if not is_read_again(one)}
