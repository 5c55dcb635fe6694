"""Runs a node's function in torch, for all nodes and examples at once, on any device.

A number is one of Python's where it is the same for every node and example, else a tensor that fits
`[node, example]`; an array has one such number for each edge. A branch whose condition is a tensor runs on
both sides, and a mask chooses; what is not chosen has no gradient. Autograd derives the backward pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.named import added
from partita.engine.kernels.nodes.templates import substituted

Tensor = Any
_WHOLE: Final = object()
"""The counter of a loop over all edges at once."""

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARISONS: Final[dict[str, Callable[..., Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_NAMES: Final = {
    "exponential": "exp",
    "hyperbolic_tangent": "tanh",
    "fabs": "abs",
    "pow": "pow",
    "gamma": "lgamma",
}


class TorchFunction:
    """A function with the numbers of some nodes that have equally many edges.

    Args:
        torch: the module.
        arrays: of the edges by name, `[edge, node, example]`; an axis may have length 1.
        numbers: of the nodes by name, `[node, example]`, likewise.
        shape: number of nodes, of examples.
        n_edges: of each node.
    """

    def __init__(
        self,
        torch: Any,
        arrays: dict[str, Tensor],
        numbers: dict[str, Tensor],
        shape: tuple[int, int],
        n_edges: int,
    ) -> None:
        self._torch, self._arrays, self._numbers = torch, dict(arrays), numbers
        self._like, self._shape, self._n_edges = arrays[ir.INCOMING], shape, n_edges
        self._values: dict[str, Any] = {}
        self._mask: Tensor = None
        self._helpers: dict[str, ir.Helper] = {}

    def run(self, function: ir.Function) -> list[Tensor]:
        """The results: of a number `[node, example]`, of an array `[edge, node, example]`."""
        self._helpers = dict(function.helpers)
        for name in function.arrays:
            self._arrays[name] = [0.0] * self._n_edges
        self._body(function.body)
        return [self._result(result) for result in function.results]

    def _result(self, result: ir.Expression | ir.Elements) -> Tensor:
        if not isinstance(result, ir.Elements):
            return self._real(self._of(result)).expand(self._shape)
        self._values[ir.PLACE.name] = _WHOLE
        return self._real(self._of(result.template)).expand(self._n_edges, *self._shape)

    def _body(self, body: Sequence[ir.Statement]) -> None:
        for statement in body:
            match statement:
                case ir.Assign(name, value):
                    self._values[name] = self._chosen(self._of(value), self._values.get(name))
                case ir.Store(array, index, value):
                    self._store(self._arrays[array], self._of(index), self._of(value))
                case ir.Branch(condition, yes, no):
                    test = self._truth(self._of(condition))
                    for side, found in ((yes, test), (no, _opposite(self._torch, test))):
                        with self._where(found) as runs:
                            if runs:
                                self._body(side)
                case ir.Loop():
                    if not self._at_once(statement):
                        self._loop(statement)
                case ir.While(condition, inner):
                    self._while(condition, inner)

    @contextmanager
    def _where(self, test: Any) -> Iterator[bool]:
        """Masks what is assigned; yields whether anything may run."""
        if isinstance(test, bool):
            yield test
            return
        before = self._mask
        self._mask = test if before is None else before & test
        yield True
        self._mask = before

    def _chosen(self, new: Any, old: Any) -> Any:
        if self._mask is None or old is None:
            return new
        return self._torch.where(self._mask, self._real(new), self._real(old))

    def _store(self, array: list[Any], index: Any, value: Any) -> None:
        for place in [self._place(index)] if not self._is_tensor(index) else range(self._n_edges):
            if self._is_tensor(index):
                with self._where((index == place) | (index == place - self._n_edges)):
                    array[place] = self._chosen(value, array[place])
            else:
                array[place] = self._chosen(value, array[place])

    def _loop(self, loop: ir.Loop) -> None:
        start, stop = self._of(loop.start), self._of(loop.stop)
        if not self._is_tensor(start) and not self._is_tensor(stop):
            for count in range(int(start), int(stop), loop.step):
                self._values[loop.variable] = count
                self._body(loop.body)
            return
        first, last = self._real(start), self._real(stop)
        turns = self._torch.ceil((last - first) / loop.step)
        for turn in range(int(turns.max())):
            self._values[loop.variable] = start + turn * loop.step
            with self._where(turns > turn):
                self._body(loop.body)

    def _while(self, condition: ir.Expression, body: Sequence[ir.Statement]) -> None:
        before = self._mask
        while True:
            test = self._truth(self._of(condition))
            if self._is_tensor(test):
                self._mask = test if self._mask is None else self._mask & test
                test = bool(self._mask.any())
            if not test:
                break
            self._body(body)
        self._mask = before

    def _at_once(self, loop: ir.Loop) -> bool:
        """Runs a loop that sums over all edges as one sum; returns whether it is one."""
        body = substituted(loop.body)
        bounds = loop.start, loop.stop, loop.step
        if body is None or len(body) != 1 or bounds != (ir.Constant(0), ir.FAN_IN, 1) or self._n_edges == 0:
            return False
        if not isinstance(body[0], ir.Assign) or len(loop.body) != len(body):
            return False
        name, place = body[0].name, ir.Variable(loop.variable)
        rest = added(name, body[0].value)
        if rest is None or any(
            isinstance(one, ir.Item) and one.index != place and place in ir.walk(one.index)
            for one in ir.walk(rest)
        ):
            return False
        self._values[loop.variable] = _WHOLE
        match rest:
            case ir.Operation("*", factors):
                terms = self._product(*map(self._of, factors))
            case _:
                terms = self._summed(self._of(rest))
        total = self._values[name] + terms
        self._values[name] = self._chosen(total, self._values[name])
        return True

    def _product(self, left: Any, right: Any) -> Tensor:
        """The sum over the edges of a product; a product of matrices where it is one."""
        edges = [one for one in (left, right) if self._is_tensor(one) and one.dim() == 3]
        if len(edges) == 2 and self._n_edges > 1:
            for a, b in ((left, right), (right, left)):
                if a.shape[2] == 1 and b.shape[1] == 1:
                    return a[:, :, 0].T @ b[:, 0]
        return self._summed(left * right)

    def _summed(self, terms: Any) -> Any:
        if self._is_tensor(terms) and terms.dim() == 3:
            return terms.sum(0) if terms.shape[0] == self._n_edges else terms[0] * self._n_edges
        return terms * self._n_edges

    def _of(self, expression: ir.Expression) -> Any:
        match expression:
            case ir.Constant(value):
                return value
            case ir.Variable(name):
                found = self._values.get(name, 0.0)
                if found is _WHOLE:
                    return self._torch.arange(self._n_edges, device=self._like.device)[:, None, None]
                return found
            case ir.Argument(name):
                return self._n_edges if expression == ir.FAN_IN else self._numbers[name]
            case ir.Item(array, index):
                return self._item(self._arrays[array], index)
            case ir.Choice(condition, yes, no):
                return self._choice(self._truth(self._of(condition)), yes, no)
            case ir.Operation(sign, operands):
                return self._operation(sign, operands)
            case ir.Call(name, arguments):
                return self._call(name, [self._of(argument) for argument in arguments])

    def _item(self, array: Any, index: ir.Expression) -> Any:
        whole = isinstance(index, ir.Variable) and self._values.get(index.name) is _WHOLE
        place = None if whole else self._of(index)
        if not whole and not self._is_tensor(place):
            return array[self._place(place)]
        if isinstance(array, list):
            array = self._torch.stack([self._real(one).expand(self._shape) for one in array])
        if whole:
            return array
        places = self._real(place).long().expand(self._shape)
        outside = (places < -self._n_edges) | (places >= self._n_edges)
        if bool((outside if self._mask is None else outside & self._mask).any()):
            raise IndexError("an index lies outside of the node's edges")
        places = places.clamp(-self._n_edges, self._n_edges - 1) % self._n_edges
        return array.expand(-1, *self._shape).gather(0, places[None])[0]

    def _place(self, index: Any) -> int:
        if not -self._n_edges <= index < self._n_edges:
            raise IndexError("an index lies outside of the node's edges")
        return int(index)

    def _choice(self, test: Any, yes: ir.Expression, no: ir.Expression) -> Any:
        if isinstance(test, bool):
            return self._of(yes if test else no)
        with self._where(test):
            first = self._of(yes)
        with self._where(~test):
            second = self._of(no)
        return self._torch.where(test, self._real(first), self._real(second))

    def _operation(self, sign: str, operands: tuple[ir.Expression, ...]) -> Any:
        if sign in ("and", "or", "not"):
            return self._logic(sign, operands)
        values = [self._of(operand) for operand in operands]
        if sign in _COMPARISONS:
            return _COMPARISONS[sign](*values)
        values = [self._counted(value) for value in values]
        if len(values) == 1:
            return -values[0] if sign == "-" else values[0]
        if sign in ("/", "//", "%", "**"):
            values = [self._safe(value) for value in values]
            exact = all(isinstance(value, int) for value in values) and sign != "/" and values[1] > 0
            if not exact and not any(map(self._is_tensor, values)):
                values = [self._real(value) for value in values]
        return _ARITHMETIC[sign](*values)

    def _logic(self, sign: str, operands: tuple[ir.Expression, ...]) -> Any:
        found = self._truth(self._of(operands[0]))
        if sign == "not":
            return _opposite(self._torch, found)
        for operand in operands[1:]:
            if found is (sign == "or"):
                return found
            other = self._truth(self._of(operand))
            both = isinstance(found, bool), isinstance(other, bool)
            found = other if both[0] else (found & other if sign == "and" else found | other)
        return found

    def _call(self, name: str, values: list[Any]) -> Any:
        if name[0].isdigit():
            return self._helper(self._helpers[name], values)
        if name == "abs":
            return abs(self._counted(values[0]))
        if name == "float":
            return self._real(values[0]) if self._is_tensor(values[0]) else float(values[0])
        if name == "int" and not self._is_tensor(values[0]):
            return int(values[0])
        numbers = [self._safe(self._real(value)) for value in values]
        short = name.removeprefix("math.").removeprefix("np.")
        if name == "int" or short in ("ceil", "floor", "trunc"):
            found = getattr(self._torch, "trunc" if name == "int" else short)(*numbers)
            return found if name.startswith("np.") else found.detach().long()
        found = getattr(self._torch, _NAMES.get(short, short))(*self._torch.broadcast_tensors(*numbers))
        return self._gamma(numbers[0], found) if short == "gamma" else found

    def _gamma(self, x: Tensor, log: Tensor) -> Tensor:
        odd = (x < 0) & (self._torch.floor(x) % 2 != 0)
        return log.exp() * self._torch.where(odd, -1.0, 1.0)

    def _helper(self, helper: ir.Helper, values: list[Any]) -> Any:
        inner = TorchFunction(
            self._torch,
            {ir.INCOMING: self._like},
            dict(zip(helper.arguments, values, strict=True)),
            self._shape,
            self._n_edges,
        )
        inner._mask, inner._helpers = self._mask, dict(helper.function.helpers)
        inner._body(helper.function.body)
        (result,) = helper.function.results
        assert not isinstance(result, ir.Elements)
        return inner._of(result)

    def _truth(self, value: Any) -> Any:
        if not self._is_tensor(value):
            return bool(value)
        return value if value.dtype == self._torch.bool else value != 0

    def _real(self, value: Any) -> Tensor:
        return self._torch.as_tensor(value, device=self._like.device).to(self._like.dtype)

    def _counted(self, value: Any) -> Any:
        """A number to compute with: true counts as 1."""
        if self._is_tensor(value):
            return value.long() if value.dtype == self._torch.bool else value
        return int(value) if isinstance(value, bool) else value

    def _safe(self, value: Any) -> Any:
        """The operand of something with an endless slope: 1 where it is not chosen."""
        if self._mask is None or not self._is_tensor(value):
            return value
        return self._torch.where(self._mask, value, 1)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)


def _opposite(torch: Any, test: Any) -> Any:
    return ~test if isinstance(test, torch.Tensor) else not test
