"""Writes a node's functions as kernels for a GPU: text that numba.cuda compiles, from their `ir`.

Each thread has one example: of a node (`forward`), of a sender, whose receivers it visits in ascending order
(`backward_input`), or all of one number of a parameter (`gradient_1` ...). So no thread adds to what another
writes, and no bit depends on the number of threads. Statements that are not needed for the number at hand are
left out of the function; the others run once for each.

Names in the text: `v_` a number that the function assigns, `a_` an array of its own, `p_` a parameter, `n_`
the node's number of one, `h_` a function that it calls; `own_state` and `own_error` are the node's; `first`,
`edge` and `own` are where the node's senders and its numbers of the parameters begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.grouping import Flow
from partita.engine.kernels.nodes.kinds import kinds_of
from partita.engine.kernels.nodes.passes import Body, Varying, useful
from partita.engine.kernels.nodes.places import Places
from partita.engine.kernels.nodes.reader import read_function
from partita.engine.kernels.nodes.source import Written
from partita.engine.kernels.nodes.text import Constants, Writing
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.kernels.nodes.writer import Lines, helper_functions, statements

TABLE = "x, senders, firsts, counts, edges, owns"
_EDGE = "0_edge"
"""The place of the edge for which a number is wanted."""


def upward_text(source: Written, signature: Signature, width: int) -> str:
    """Writes the kernel `forward(TABLE, parameters, state)`.

    Args:
        source: of `upward`.
        signature: its arguments.
        width: the most edges of a node of the machine.

    Raises:
        Unsupported: the function cannot be written so.
    """
    function = read_function(source, signature.given)
    if function.returns_tuple or isinstance(function.results[0], ir.Elements):
        raise ir.Unsupported("it does not return one number")
    module = _Module(function, signature, width)
    lines = module.lines
    with (
        lines.inside(f"def forward({TABLE}, {signature.flat}state):"),
        lines.inside("for i in strided(state.shape[0] * state.shape[1]):"),
    ):
        lines("n, e = i // state.shape[1], i % state.shape[1]")
        module.node(ir.Output(0, None, function.results[0]), "state[n, e] = downcast({}, state[n, e])")
    return module.text


def downward_text(source: Written, signature: Signature, width: int) -> str:
    """Writes the kernels `backward_input` and, for each parameter, `gradient_1` and so on; as `upward_text`.

    All take `TABLE, parameters, state, error`, then the arguments of `_errors` and `_gradient`.
    """
    function = read_function(source, [*signature.given, ir.STATE, ir.ERROR])
    wanted = [True, *(kind == "e" for _, kind in signature.parameters)]
    if [
        isinstance(result, ir.Elements) for result in function.results
    ] != wanted or not function.returns_tuple:
        raise ir.Unsupported("it does not return errors, and a gradient for each parameter")
    module = _Module(function, signature, width, is_downward=True)
    _errors(module)
    for i, (_, kind) in enumerate(signature.parameters, start=1):
        _gradient(module, i, by_edge=kind == "e")
    return module.text


def _errors(module: _Module) -> None:
    """Writes the kernel for the errors of senders `[low, high)`, as the window of the input counts them."""
    lines, given = module.lines, "starts, receivers, taps, out, low, high, accumulate"
    with (
        lines.inside(f"def backward_input({TABLE}, {module.signature.flat}state, error, {given}):"),
        lines.inside("for i in strided((high - low) * state.shape[1]):"),
    ):
        lines("place, e = i // state.shape[1], i % state.shape[1]", "sender = low + place")
        lines("total = upcast(out[place, e]) if accumulate else R(0)", "begin, end = 0, 0")
        with lines.inside("if 0 <= sender < starts.size - 1:"):  # others have no receivers here
            lines("begin, end = starts[sender], starts[sender + 1]")
        with lines.inside("for j in range(begin, end):"):
            lines("n, tap = receivers[j], taps[j]")
            module.sum(0, by_edge=True)
        lines("out[place, e] = downcast(total, out[place, e])")


def _gradient(module: _Module, i: int, *, by_edge: bool) -> None:
    """Writes the kernel for the gradient of parameter number `i` of nodes `[start, stop)`.

    Every `step`-th of these shares a number; `out` begins with number `begin`.
    """
    lines, width = module.lines, module.width if by_edge else 1
    head = f"{TABLE}, {module.signature.flat}state, error, out, start, stop, step, begin"
    number = "edges[whose] + tap" if by_edge else "owns[whose]"
    with (
        lines.inside(f"def gradient_{i}({head}):"),
        lines.inside(f"for i in strided(step * {width}):"),
    ):
        lines(f"whose, tap, total = start + i // {width}, i % {width}, R(0)")
        with lines.inside(f"if tap < counts[whose] or {not by_edge}:"):
            with (
                lines.inside("for n in range(whose, stop, step):"),
                lines.inside("for e in range(state.shape[1]):"),
            ):
                module.sum(i, by_edge=by_edge)
            lines(f"out[{number} - begin] = total")


@dataclass
class _OneExample(Writing):
    """Writes expressions of one node and example."""

    own: frozenset[str] = frozenset()

    def leaf(self, expression: ir.Expression) -> str | None:
        """Writes numbers of arrays by functions that check the index; the rest by its name."""
        match expression:
            case ir.Item(array, index) if array == ir.INCOMING:
                return f"incoming_at(x, senders, first, {self.text(index)}, e)"
            case ir.Item(array, index) if array in self.own:
                return f"kept(a_{array}, {self.text(index)})"
            case ir.Item(array, index):
                return f"number(p_{array}, edge, {self.text(index)})"
            case ir.Argument(name) if expression in (ir.STATE, ir.ERROR):
                return f"own_{name.removeprefix('@')}"
        return super().leaf(expression)


class _Module:
    """The text of a module, function by function."""

    def __init__(
        self, function: ir.Function, signature: Signature, width: int, *, is_downward: bool = False
    ) -> None:
        self._is_downward = is_downward
        self.signature, self.width, self.lines = signature, width, Lines(depth=0)
        self._function, self._constants = function, Constants()
        for text in helper_functions(function, self._constants):
            self.lines.lines += ["@device", *text.splitlines()]

    @property
    def text(self) -> str:
        """The whole text, without the functions that it calls."""
        return "\n".join([*self._constants.lines(), *self.lines.lines]) + "\n"

    def sum(self, result: int, *, by_edge: bool) -> None:
        """Adds a result of the node and example at hand, of edge number `tap`, to `total`."""
        value = self._function.results[result]
        if isinstance(value, ir.Elements):
            assert by_edge
            self.node(
                ir.Output(result, ir.Variable(_EDGE), ir.at(value.template, ir.Variable(_EDGE))),
                "total += {}",
            )
        else:
            self.node(ir.Output(result, None, value), "total += {}")

    def node(self, output: ir.Output, handed: str) -> None:
        """Writes the statements for an output, and hands it over."""
        wanted: Body = (
            (output,) if output.index is None else (ir.Loop(_EDGE, ir.Constant(0), ir.FAN_IN, 1, (output,)),)
        )
        body = useful((*self._function.body, *wanted))
        body = Places(self.signature.least, Varying(set(), set())).within(body)
        kinds = kinds_of(body)
        writing, lines = _OneExample(kinds, self._constants, own=self._function.arrays), self.lines
        lines("first, edge, own, fan_in = firsts[n], edges[n], owns[n], counts[n]")
        for name, kind in self.signature.parameters:
            if kind == "n":
                lines(f"n_{name} = upcast(p_{name}[own])")
        if self._is_downward:
            lines("own_state, own_error = upcast(state[n, e]), upcast(error[n, e])")
        for name in sorted(self._function.arrays):
            lines(f"a_{name} = cuda.local.array({max(self.width, 1)}, R)")
        for name in sorted(Flow(body).exposed & kinds.keys()):  # only read where it is not used
            lines(f"v_{name} = {writing.of_kind(ir.Constant(False), kinds[name])}")

        def store(statement: ir.Store | ir.Output) -> str:
            assert isinstance(statement, ir.Store)
            array, value = statement.array, writing.real(statement.value)
            return f"keep(a_{array}, {writing.text(statement.index)}, {value})"

        *before, final = body
        statements(before, writing, lines, store)
        if isinstance(final, ir.Loop):
            lines(f"v_{_EDGE} = tap")
            (final,) = final.body
        assert isinstance(final, ir.Output)
        lines(handed.format(writing.real(final.value)))
