"""Runs a node's function in torch, for all nodes and examples at once, on any device.

A number is one of Python's where it is the same for every node and example, else a tensor that fits
`[node, example]`; an array has one such number for each edge. A branch whose condition is a tensor runs on
both sides, and a mask chooses; what is not chosen has no gradient. Autograd derives the backward pass.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final

from partita.engine.kernels.nodes import ir

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
        steep: values that pass no gradient on where theirs is 0, see `derivatives.steep`.
    """

    def __init__(
        self,
        torch: Any,
        arrays: dict[str, Tensor],
        numbers: dict[str, Tensor],
        shape: tuple[int, int],
        n_edges: int,
        steep: Set[ir.Operand] = frozenset(),
    ) -> None:
        self._steep = steep
        self._torch, self._arrays, self._numbers = torch, dict(arrays), numbers
        self._like, self._shape, self._n_edges = arrays[ir.INCOMING], shape, n_edges
        self._values: dict[ir.Operand, Any] = {}
        self._mask: Tensor = None
        self._results: dict[int, Tensor] = {}
        self._edges: dict[int, list[Tensor]] = {}

    def run(self, function: ir.Function) -> list[Tensor]:
        """The results: of a number `[node, example]`, of an array `[edge, node, example]`."""
        for name in function.arrays:
            self._arrays[name] = [0.0] * self._n_edges
        self._body(function.body)
        nothing = self._like.new_zeros((0, *self._shape))
        found = {i: self._torch.stack(edges) for i, edges in self._edges.items()} | self._results
        return [found.get(i, nothing) for i in range(len(function.are_arrays))]

    def _body(self, body: Sequence[ir.Statement]) -> None:
        for statement in body:
            match statement:
                case ir.Value():
                    self._values[statement] = self._computed(statement)
                case ir.Store(array, index, value):
                    self._store(self._arrays[array], self._of(index), self._of(value))
                case ir.Branch():
                    self._branch(statement)
                case ir.Loop():
                    if not self._at_once(statement):
                        self._loop(statement)
                case ir.While():
                    self._while(statement)
                case ir.Output(result, index, value):
                    number = self._real(self._of(value))
                    if index is None:
                        self._results[result] = number.expand(self._shape)
                    elif self._values[index] is _WHOLE:
                        self._results[result] = number.expand(self._n_edges, *self._shape)
                    else:
                        self._edges.setdefault(result, []).append(number.expand(self._shape))

    def _branch(self, branch: ir.Branch) -> None:
        test = self._truth(self._of(branch.condition))
        for side, found in ((branch.no, _opposite(self._torch, test)), (branch.yes, test)):
            with self._where(found) as runs:
                if runs:
                    self._body(side)
        for one in branch.merged:
            if isinstance(test, bool):
                self._values[one] = self._of(one.yes if test else one.no)
            else:
                sides = self._real(self._of(one.yes)), self._real(self._of(one.no))
                self._values[one] = self._torch.where(test, *sides)

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
        self._begin(loop.carried)
        start, stop = self._of(loop.start), self._of(loop.stop)
        if not self._is_tensor(start) and not self._is_tensor(stop):
            for count in range(int(start), int(stop), loop.step):
                self._values[loop.counter] = count
                self._iteration(loop)
            return
        first, last = self._real(start), self._real(stop)
        turns = self._torch.ceil((last - first) / loop.step)
        for turn in range(int(turns.max())):
            self._values[loop.counter] = start + turn * loop.step
            with self._where(turns > turn):
                self._iteration(loop)

    def _while(self, loop: ir.While) -> None:
        self._begin(loop.carried)
        before = self._mask
        while True:
            self._body(loop.head)
            test = self._truth(self._of(loop.condition))
            if self._is_tensor(test):
                self._mask = test if self._mask is None else self._mask & test
                test = bool(self._mask.any())
            if not test:
                break
            self._iteration(loop)
        self._mask = before

    def _begin(self, carried: Sequence[ir.Carried]) -> None:
        self._values.update({one: self._of(one.start) for one in carried})

    def _iteration(self, loop: ir.Loop | ir.While) -> None:
        self._body(loop.body)
        ends = [self._of(one.end) for one in loop.carried]
        for one, end in zip(loop.carried, ends, strict=True):
            self._values[one] = self._chosen(end, self._values[one])

    def _at_once(self, loop: ir.Loop) -> bool:
        """Runs a loop that sums over all edges, or hands them over, as one; returns whether it is one."""
        sums = {one: _terms(one, one.end) for one in loop.carried}
        if not loop.is_of_all_edges or self._n_edges == 0 or None in sums.values():
            return False
        totals = {one for total in sums for one in ir.behind(total.end) if total in ir.behind(one)}
        for one in loop.body:
            behind = set[ir.Operand]().union(*map(ir.behind, ir.operands(one)))
            is_item = isinstance(one, ir.Value) and one.operator == "item"
            if not isinstance(one, ir.Value | ir.Output) or (one not in totals and behind & totals):
                return False
            if is_item and loop.counter in behind and loop.counter not in ir.operands(one):
                return False
        self._values[loop.counter] = _WHOLE
        terms = {term for found in sums.values() for _, term in found or ()}
        uses = Counter(operand for one in loop.body for operand in ir.operands(one))
        products = {
            one
            for one in terms - self._steep
            if uses[one] == 1 and isinstance(one, ir.Value) and one.operator == "*"
        }
        self._body([one for one in loop.body if one not in totals and one not in products])
        for carried, found in sums.items():
            total = self._of(carried.start)
            for sign, term in found or ():
                if isinstance(term, ir.Value) and term in products:
                    added = self._product(*map(self._of, term.operands))
                else:
                    added = self._summed(self._of(term))
                total = total + added if sign > 0 else total - added
            self._values[carried] = total
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

    def _of(self, operand: ir.Operand) -> Any:
        match operand:
            case ir.Constant(value):
                return value
            case ir.Argument(name):
                return self._n_edges if operand == ir.FAN_IN else self._numbers[name]
        found = self._values.get(operand, 0.0)
        if found is _WHOLE:
            return self._torch.arange(self._n_edges, device=self._like.device)[:, None, None]
        return found

    def _computed(self, value: ir.Value) -> Any:
        operator, operands = value.operator, value.operands
        if operator == "item":
            return self._item(self._arrays[value.array], operands[0])
        values = [self._of(operand) for operand in operands]
        if operator == "choice":
            test, yes, no = self._truth(values[0]), *values[1:]
            if isinstance(test, bool):
                return yes if test else no
            return self._torch.where(test, self._real(yes), self._real(no))
        if operator in ("and", "or", "not"):
            return self._logic(operator, list(map(self._truth, values)))
        if operator in _COMPARISONS:
            return _COMPARISONS[operator](*values)
        compute = self._operation if operator in _ARITHMETIC else self._call
        if operator in _ARITHMETIC:
            values = list(map(self._counted, values))
        return (
            self._chosen_only(compute, operator, values)
            if value in self._steep
            else compute(operator, values)
        )

    def _chosen_only(self, compute: Callable[..., Any], operator: str, values: list[Any]) -> Any:
        """Computes a number that passes no gradient on where its own is 0, whatever its slope."""
        places = [n for n, one in enumerate(values) if self._is_tensor(one) and one.requires_grad]
        if not places or not self._torch.is_grad_enabled():
            return compute(operator, values)
        shape = self._torch.broadcast_shapes(*(one.shape for one in values if self._is_tensor(one)))
        found_zero: list[Tensor] = []
        for n in places:
            values[n] = values[n].expand(shape)
            values[n].register_hook(lambda gradient: gradient.masked_fill(found_zero[-1], 0.0))
        found = compute(operator, values)
        found.register_hook(lambda gradient: found_zero.append(gradient == 0.0))
        return found

    def _item(self, array: Any, index: ir.Operand) -> Any:
        whole = isinstance(index, ir.Counter) and self._values.get(index) is _WHOLE
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

    def _operation(self, sign: str, values: list[Any]) -> Any:
        if len(values) == 1:
            return -values[0] if sign == "-" else values[0]
        if sign in ("/", "//", "%", "**"):
            values = [self._safe(value) for value in values]
            exact = all(isinstance(value, int) for value in values) and sign != "/" and values[1] > 0
            if not exact and not any(map(self._is_tensor, values)):
                values = [self._real(value) for value in values]
        return _ARITHMETIC[sign](*values)

    def _logic(self, sign: str, truths: list[Any]) -> Any:
        if sign == "not":
            return _opposite(self._torch, truths[0])
        return functools.reduce(operator.and_ if sign == "and" else operator.or_, truths)

    def _call(self, name: str, values: list[Any]) -> Any:
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


def _terms(total: ir.Carried, value: ir.Operand) -> list[tuple[int, ir.Operand]] | None:
    """Finds what an iteration adds to a number, with signs; None if it does more."""
    match value:
        case ir.Carried() if value is total:
            return []
        case ir.Value("+" | "-" as sign, (first, second)):
            if sign == "+" and total in ir.behind(second):
                first, second = second, first
            rest = _terms(total, first)
            if rest is not None and total not in ir.behind(second):
                return [*rest, (1 if sign == "+" else -1, second)]
    return None
