"""Writes expressions of `ir` as text that Numba compiles, every real number in one type.

Python's integers times real numbers, and its constants, are double precision to Numba; here they take the
type in which the layer computes, so that vectors stay full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.kinds import kind_of

Text = Callable[[ir.Expression], str]


@dataclass
class Constants:
    """Real numbers by their names in generated code, in its type `R`."""

    names: dict[str, str] = field(default_factory=dict)

    def name(self, value: float) -> str:
        """Returns the name of a number."""
        value = float(value)
        written = repr(value) if math.isfinite(value) else f'float("{value}")'
        return self.names.setdefault(written, f"C{len(self.names)}")

    def lines(self) -> list[str]:
        """Returns the definitions of all numbers."""
        return [f"{name} = R({written})" for written, name in self.names.items()]


def _whole(value: float) -> str:
    """Writes an int or a bool, as an operand of anything."""
    return repr(value) if value >= 0 else f"({value!r})"


@dataclass
class Writing:
    """Writes expressions in generated code.

    Args:
        kinds: of the variables.
        constants: of the whole module.
        helpers: prefix of the names of the functions that it calls.
    """

    kinds: dict[str, ir.Kind]
    constants: Constants
    helpers: str = "h_"

    def leaf(self, expression: ir.Expression) -> str | None:
        """Writes an expression as a whole, if it is known; writers of loops override this."""
        match expression:
            case ir.Variable(name):
                return f"v_{name}"
            case ir.Argument(name):
                return "fan_in" if expression == ir.FAN_IN else f"n_{name}"
        return None

    def kind(self, expression: ir.Expression) -> ir.Kind:
        """Returns the kind of an expression."""
        return kind_of(expression, self.kinds)

    def text(self, expression: ir.Expression) -> str:
        """Writes an expression in its own kind."""
        found = self.leaf(expression)
        if found is not None:
            return found
        match expression:
            case ir.Constant(value):
                return _whole(value) if self.kind(expression) != "real" else self.constants.name(value)
            case ir.Operation():
                return self._operation(expression)
            case ir.Choice(condition, yes, no):
                kind = self.kind(expression)
                return f"({self.of_kind(yes, kind)} if {self.truth(condition)} else {self.of_kind(no, kind)})"
            case ir.Call():
                return self._call(expression)
        raise AssertionError(f"{expression} has no text")

    def real(self, expression: ir.Expression) -> str:
        """Writes an expression as a real number."""
        if isinstance(expression, ir.Constant):
            return self.constants.name(expression.value)
        text, kind = self.text(expression), self.kind(expression)
        if kind == "bool":
            return f"({self.constants.name(1)} if {text} else {self.constants.name(0)})"
        return text if kind == "real" else f"R({text})"

    def of_kind(self, expression: ir.Expression, kind: ir.Kind) -> str:
        """Writes an expression as a number of a kind, at least as wide as its own."""
        if kind == "real":
            return self.real(expression)
        text = self.text(expression)
        return f"int({text})" if kind == "int" and self.kind(expression) == "bool" else text

    def truth(self, expression: ir.Expression) -> str:
        """Writes the truth value of an expression, as Python takes it."""
        if self.kind(expression) == "bool":
            return self.text(expression)
        zero = self.constants.name(0) if self.kind(expression) == "real" else "0"
        return f"({self.text(expression)} != {zero})"

    def _operation(self, expression: ir.Operation) -> str:
        sign, operands = expression.sign, expression.operands
        if sign in ("and", "or"):
            return "(" + (" & " if sign == "and" else " | ").join(map(self.truth, operands)) + ")"
        if sign == "not":
            return f"(not {self.truth(operands[0])})"
        kind = self.kind(expression)
        if len(operands) == 1:
            operand = self.of_kind(operands[0], kind)
            return operand if sign == "+" else f"({sign}{operand})"
        if sign == "**":
            return self._power(*operands, kind=kind)
        if kind == "bool":  # a comparison
            kind = "real" if "real" in map(self.kind, operands) else "int"
        left, right = (self.of_kind(operand, kind) for operand in operands)
        text = f"({left} {sign} {right})"
        return f"R{text}" if sign in ("//", "%") and kind == "real" else text

    def _power(self, base: ir.Expression, exponent: ir.Expression, *, kind: ir.Kind) -> str:
        times = exponent.value if isinstance(exponent, ir.Constant) else None
        if isinstance(times, int) and 1 <= times <= 4:
            return "(" + " * ".join([self.of_kind(base, kind)] * times) + ")"
        if kind == "int":
            return f"({self.text(base)} ** {self.text(exponent)})"
        return f"R(math.pow({self.real(base)}, {self.real(exponent)}))"

    def _call(self, call: ir.Call) -> str:
        name, arguments = call.name, call.arguments
        if name == "abs":
            return f"abs({self.of_kind(arguments[0], self.kind(call))})"
        if name == "float":
            return self.real(arguments[0])
        if name == "within":
            return f"within({', '.join(map(self.text, arguments))})"
        if name == "int":
            return f"int({self.text(arguments[0])})"
        reals = ", ".join(map(self.real, arguments))
        if name[0].isdigit():
            return f"{self.helpers}{name}({reals})"
        return f"R({name}({reals}))" if call.kind == "real" else f"{name}({reals})"

    def product(self, expression: ir.Expression) -> tuple[str, str] | None:
        """Writes the factors of a product of real numbers."""
        match expression:
            case ir.Operation("*", (left, right)) if self.kind(expression) == "real":
                return self.real(left), self.real(right)
        return None

    def assigned(self, name: str, value: ir.Expression) -> str:
        """Writes the new value of a variable; a sum that grows by a product is rounded once."""
        variable = ir.Variable(name)
        match value:
            case ir.Operation("+", (old, term)) | ir.Operation("+", (term, old)) if old == variable:
                factors = self.product(term)
                if factors is not None and self.kind(variable) == "real":
                    return f"fma({factors[0]}, {factors[1]}, {self.text(variable)})"
        return self.of_kind(value, self.kind(variable))
