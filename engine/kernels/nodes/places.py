"""Where in an array of the node's edges an index points: from 0, and checked unless it must lie inside."""

from __future__ import annotations

from partita.engine.kernels.nodes.arithmetic import (
    FAN_IN,
    Assign,
    Branch,
    Call,
    Choice,
    Constant,
    Expression,
    Item,
    Loop,
    NotUnderstood,
    Operation,
    Output,
    Statement,
    Store,
    Variable,
    rebuilt,
)
from partita.engine.kernels.nodes.passes import Body, Varying


class Places:
    """Makes indices into places from 0, checked where it is not certain that they lie inside.

    Args:
        least: edges that every node has.
        varying: what varies.
    """

    def __init__(self, least: int, varying: Varying) -> None:
        self._least, self._varying = least, varying
        self._ranges: dict[str, Loop] = {}

    def within(self, body: Body, *, sure: bool = True) -> Body:
        """The body with such indices.

        Args:
            body: any.
            sure: whether every example comes here; if not, a place that is not certain is refused, as the
                examples that do come are not known when it is looked up.

        Raises:
            NotUnderstood: such a place.
        """
        return tuple(self._statement(statement, sure) for statement in body)

    def _statement(self, statement: Statement, sure: bool) -> Statement:
        def change(expression: Expression) -> Expression:
            return self._expression(expression, sure)

        match statement:
            case Assign(name, value):
                return Assign(name, change(value))
            case Store(array, index, value):
                return Store(array, self._place(index, sure), change(value))
            case Output(result, index, value):
                return Output(result, index, change(value))
            case Loop(variable, start, stop, step, body):
                self._ranges[variable] = statement
                return Loop(variable, change(start), change(stop), step, self.within(body, sure=sure))
            case Branch(condition, yes, no):
                inner = sure and not self._varying(condition)
                sides = self.within(yes, sure=inner), self.within(no, sure=inner)
                return Branch(change(condition), *sides)
        raise AssertionError("places are looked up before examples are grouped")

    def _expression(self, expression: Expression, sure: bool) -> Expression:
        match expression:
            case Item(array, index):
                return Item(array, self._place(index, sure))
            case Choice(condition, yes, no):
                return Choice(
                    self._expression(condition, sure),
                    self._expression(yes, False),
                    self._expression(no, False),
                )
            case Operation("and" | "or" as sign, (first, *others)):
                rest = (self._expression(one, False) for one in others)
                return Operation(sign, (self._expression(first, sure), *rest))
        return rebuilt(expression, lambda part: self._expression(part, sure))

    def _place(self, index: Expression, sure: bool) -> Expression:
        base, shift = _split(index)
        if base is None and (0 <= shift < self._least or -self._least <= shift < 0):
            return index if shift >= 0 else Operation("+", (FAN_IN, Constant(shift)))
        if base == FAN_IN and -self._least <= shift < 0:
            return index
        if isinstance(base, Variable) and base.name in self._ranges:
            loop = self._ranges[base.name]
            low, more = _split(loop.start)
            high, less = _split(loop.stop)
            if low is None and high == FAN_IN and loop.step > 0 and more + shift >= 0 >= less + shift:
                return index
        if not sure:
            raise NotUnderstood("a place that may not be there, for some examples")
        return Call("within", (index, FAN_IN), "int")


def _split(index: Expression) -> tuple[Expression | None, int]:
    """A variable part, and a number added to it."""
    match index:
        case Constant(int() as value):
            return None, value
        case Operation("+", (part, Constant(int() as value))) | Operation(
            "+", (Constant(int() as value), part)
        ):
            base, more = _split(part)
            return base, more + value
        case Operation("-", (part, Constant(int() as value))):
            base, more = _split(part)
            return base, more - value
    return index, 0
