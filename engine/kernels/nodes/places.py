"""Indices into arrays of the node's edges: counted from 0, and checked unless they must lie inside."""

from __future__ import annotations

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.passes import Body, Varying


class Places:
    """Turns indices into places from 0, checked where it is not certain that they lie inside.

    Args:
        least: edges that every node has.
        varying: the varying names.
    """

    def __init__(self, least: int, varying: Varying) -> None:
        self._least, self._varying = least, varying
        self._ranges: dict[str, ir.Loop] = {}

    def within(self, body: Body, *, sure: bool = True) -> Body:
        """Returns the body with such indices.

        Args:
            body: any.
            sure: whether every example comes here; if not, a place that is not certain is refused, as the
                examples that do come are not known when it is looked up.

        Raises:
            Unsupported: such a place.
        """
        return tuple(self._statement(statement, sure) for statement in body)

    def _statement(self, statement: ir.Statement, sure: bool) -> ir.Statement:
        def change(expression: ir.Expression) -> ir.Expression:
            return self._expression(expression, sure)

        match statement:
            case ir.Assign(name, value):
                return ir.Assign(name, change(value))
            case ir.Store(array, index, value):
                return ir.Store(array, self._place(index, sure), change(value))
            case ir.Output(result, index, value):
                return ir.Output(result, index, change(value))
            case ir.Loop(variable, start, stop, step, body):
                self._ranges[variable] = statement
                return ir.Loop(variable, change(start), change(stop), step, self.within(body, sure=sure))
            case ir.Branch(condition, yes, no):
                inner = sure and not self._varying(condition)
                sides = self.within(yes, sure=inner), self.within(no, sure=inner)
                return ir.Branch(change(condition), *sides)
        raise AssertionError("places are looked up before examples are grouped")

    def _expression(self, expression: ir.Expression, sure: bool) -> ir.Expression:
        match expression:
            case ir.Item(array, index):
                return ir.Item(array, self._place(index, sure))
            case ir.Choice(condition, yes, no):
                return ir.Choice(
                    self._expression(condition, sure),
                    self._expression(yes, False),
                    self._expression(no, False),
                )
            case ir.Operation("and" | "or" as sign, (first, *others)):
                rest = (self._expression(one, False) for one in others)
                return ir.Operation(sign, (self._expression(first, sure), *rest))
        return ir.rebuilt(expression, lambda part: self._expression(part, sure))

    def _place(self, index: ir.Expression, sure: bool) -> ir.Expression:
        base, shift = _split(index)
        if base is None and (0 <= shift < self._least or -self._least <= shift < 0):
            return index if shift >= 0 else ir.Operation("+", (ir.FAN_IN, ir.Constant(shift)))
        if base == ir.FAN_IN and -self._least <= shift < 0:
            return index
        if isinstance(base, ir.Variable) and base.name in self._ranges:
            loop = self._ranges[base.name]
            low, more = _split(loop.start)
            high, less = _split(loop.stop)
            if loop.step < 0:
                (low, more), (high, less) = (high, less + 1), (low, more + 1)
            if low is None and high == ir.FAN_IN and more + shift >= 0 >= less + shift:
                return index
        if not sure:
            raise ir.Unsupported("a place that may not be there, for some examples")
        return ir.Call("within", (index, ir.FAN_IN), "int")


def _split(index: ir.Expression) -> tuple[ir.Expression | None, int]:
    """Splits an index into a variable part and a constant added to it."""
    match index:
        case ir.Constant(int() as value):
            return None, value
        case ir.Operation("+", (part, ir.Constant(int() as value))) | ir.Operation(
            "+", (ir.Constant(int() as value), part)
        ):
            base, more = _split(part)
            return base, more + value
        case ir.Operation("-", (part, ir.Constant(int() as value))):
            base, more = _split(part)
            return base, more - value
        case ir.Operation("-", (ir.Constant(int() as value), ir.Constant(int() as less))):
            return None, value - less
    return index, 0
