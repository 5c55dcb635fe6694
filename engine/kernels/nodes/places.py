"""Indices into arrays of the node's edges: counted from 0, and checked unless they must lie inside."""

from __future__ import annotations

from collections.abc import Set

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.passes import Body


class Places:
    """Turns indices into places from 0, checked where it is not certain that they lie inside.

    Args:
        least: edges that every node has.
        varying: the varying numbers.
    """

    def __init__(self, least: int, varying: Set[ir.Operand | str]) -> None:
        self._least, self._varying = least, varying
        self._ranges: dict[ir.Operand, ir.Loop] = {}

    def within(self, body: Body, *, sure: bool = True) -> Body:
        """Returns the body with such indices.

        Args:
            body: any.
            sure: whether every example comes here; if not, a place that is not certain is refused, as the
                examples that do come are not known when it is looked up.

        Raises:
            Unsupported: such a place.
        """
        found: Body = []
        for statement in body:
            match statement:
                case ir.Value("item", (index,)):
                    statement.operands = (self._place(index, found, sure),)
                case ir.Store(array, index, value):
                    statement = ir.Store(array, self._place(index, found, sure), value)
                case ir.Loop():
                    self._ranges[statement.counter] = statement
            inner = sure and not (isinstance(statement, ir.Branch) and statement.condition in self._varying)
            found.append(ir.with_bodies(statement, lambda one: self.within(one, sure=inner)))  # noqa: B023
        return found

    def _place(self, index: ir.Operand, out: Body, sure: bool) -> ir.Operand:
        base, shift = _split(index)
        if base is None and (0 <= shift < self._least or -self._least <= shift < 0):
            return index if shift >= 0 else _added(ir.Value("+", (ir.FAN_IN, ir.Constant(shift))), out)
        if base == ir.FAN_IN and -self._least <= shift < 0:
            return index
        loop = self._ranges.get(base) if base is not None else None
        if loop is not None:
            low, more = _split(loop.start)
            high, less = _split(loop.stop)
            if loop.step < 0:
                (low, more), (high, less) = (high, less + 1), (low, more + 1)
            if low is None and high == ir.FAN_IN and more + shift >= 0 >= less + shift:
                return index
        if not sure:
            raise ir.Unsupported("a place that may not be there, for some examples")
        return _added(ir.Value("within", (index, ir.FAN_IN), "int"), out)


def _added(value: ir.Value, out: Body) -> ir.Value:
    out.append(value)
    return value


def _split(index: ir.Operand) -> tuple[ir.Operand | None, int]:
    """Splits an index into a variable part and a constant added to it."""
    match index:
        case ir.Constant(int() as value):
            return None, value
        case ir.Value("+", (part, ir.Constant(int() as value)) | (ir.Constant(int() as value), part)):
            base, more = _split(part)
            return base, more + value
        case ir.Value("-", (part, ir.Constant(int() as value))):
            base, more = _split(part)
            return base, more - value
    return index, 0
