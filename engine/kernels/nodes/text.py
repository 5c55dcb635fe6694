"""Writes numbers of `ir` as text that Numba compiles, every real number in one type.

Python's integers times real numbers, and its constants, are double precision to Numba; here they take the
type in which the layer computes, so that vectors stay full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.kinds import Kinds, kind_of, widest


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


class Writing:
    """Writes numbers in generated code.

    Args:
        kinds: of the numbers.
        constants: of the whole module.
    """

    def __init__(self, kinds: Kinds, constants: Constants) -> None:
        self.kinds, self.constants = kinds, constants
        self._numbers: dict[ir.Operand, int] = {}

    def name(self, operand: ir.Operand) -> str:
        """Returns the name of a variable."""
        return f"v{self._numbers.setdefault(operand, len(self._numbers))}"

    def known(self, operand: ir.Operand) -> str:
        """Writes a number that was computed before."""
        match operand:
            case ir.Constant(value):
                text = self.constants.name(value) if self.kind(operand) == "real" else repr(value)
                return text if value >= 0 or self.kind(operand) == "real" else f"({text})"
            case ir.Argument(name):
                return "fan_in" if operand == ir.FAN_IN else f"n_{name}"
        return self.name(operand)

    def kind(self, operand: ir.Operand) -> ir.Kind:
        """Returns the kind of a number."""
        return kind_of(operand, self.kinds)

    def real(self, operand: ir.Operand) -> str:
        """Writes a real number."""
        if isinstance(operand, ir.Constant):
            return self.constants.name(operand.value)
        text, kind = self.known(operand), self.kind(operand)
        if kind == "bool":
            return f"({self.constants.name(1)} if {text} else {self.constants.name(0)})"
        return text if kind == "real" else f"R({text})"

    def of_kind(self, operand: ir.Operand, kind: ir.Kind) -> str:
        """Writes a number of a kind, at least as wide as its own."""
        if kind == "real":
            return self.real(operand)
        text = self.known(operand)
        return f"int({text})" if kind == "int" and self.kind(operand) == "bool" else text

    def truth(self, operand: ir.Operand) -> str:
        """Writes the truth value of a number, as Python takes it."""
        if self.kind(operand) == "bool":
            return self.known(operand)
        zero = self.constants.name(0) if self.kind(operand) == "real" else "0"
        return f"({self.known(operand)} != {zero})"

    def computed(self, value: ir.Value) -> str:
        """Writes how a number is computed."""
        sign, operands, kind = value.operator, value.operands, self.kind(value)
        match sign:
            case "and" | "or":
                return (" & " if sign == "and" else " | ").join(map(self.truth, operands))
            case "not":
                return f"not {self.truth(operands[0])}"
            case "choice":
                condition, yes, no = operands
                return f"{self.of_kind(yes, kind)} if {self.truth(condition)} else {self.of_kind(no, kind)}"
            case "**":
                return self._power(operands, kind)
        if sign.isidentifier() or "." in sign:
            return self._call(value)
        if len(operands) == 1:
            operand = self.of_kind(operands[0], kind)
            return operand if sign == "+" else f"{sign}{operand}"
        if kind == "bool":  # a comparison
            kind = widest("int", *map(self.kind, operands))
        left, right = (self.of_kind(operand, kind) for operand in operands)
        text = f"{left} {sign} {right}"
        return f"R({text})" if sign in ("//", "%") and kind == "real" else text

    def _power(self, operands: tuple[ir.Operand, ...], kind: ir.Kind) -> str:
        base, exponent = operands
        times = exponent.value if isinstance(exponent, ir.Constant) else None
        if isinstance(times, int) and 1 <= times <= 4:
            return " * ".join([self.of_kind(base, kind)] * times)
        if kind == "int":
            return f"{self.known(base)} ** {self.known(exponent)}"
        return f"R(math.pow({self.real(base)}, {self.real(exponent)}))"

    def _call(self, call: ir.Value) -> str:
        name, operands = call.operator, call.operands
        match name:
            case "abs":
                return f"abs({self.of_kind(operands[0], self.kind(call))})"
            case "float":
                return self.real(operands[0])
            case "within" | "int":
                return f"{name}({', '.join(map(self.known, operands))})"
        reals = f"{name}({', '.join(map(self.real, operands))})"
        return f"R({reals})" if call.kind == "real" and name != "fma" else reals
