"""Derives the backward function of a node from its forward function: reverse differentiation of `ir`.

The derived function runs the forward pass first, then its statements backwards, each of which adds to the
gradients of what it read. A loop's numbers are computed once more, from what it carried, which is kept for
each edge. Passes over the result drop what no gradient needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, TypeVar

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.derivatives import SLOPES, steep, times
from partita.engine.kernels.nodes.kinds import kind_of, kinds_of
from partita.engine.kernels.nodes.passes import Body, useful, without_arrays

Number = TypeVar("Number", bound=ir.Operand)
Numbers: TypeAlias = dict[ir.Operand, ir.Operand]

_FEW = 32
"""Iterations of a loop that is written out."""
_ZERO = ir.Constant(0.0)


def backward_of(upward: ir.Function, parameters: tuple[tuple[str, str], ...]) -> ir.Function:
    """Derives `downward` of a node.

    Args:
        upward: returns one number.
        parameters: pairs of a name and "e" (a number for each edge) or "n" (a number for each node).

    Raises:
        Unsupported: a loop whose numbers are too many to keep, or a function whose slope is not known.
    """
    if upward.returns_tuple or upward.are_arrays[0]:
        raise ir.Unsupported("not one number")
    stores = Counter(one.array for one in ir.every(upward.body) if isinstance(one, ir.Store))
    for array, count in stores.items():
        if count > 1:
            raise ir.Unsupported("an array whose numbers change more than once", array).within(upward.lines)
    names = ((ir.INCOMING, "e"), *parameters)
    derived = _Backward(_WrittenOut({}).body(upward.body), {name for name, _ in names})
    body = derived.with_results(
        [ir.Array(name) if kind == "e" else ir.Argument(name) for name, kind in names]
    )
    arrays = upward.arrays | {one.array for one in ir.every(body) if isinstance(one, ir.Store)}
    are_arrays = tuple(kind == "e" for _, kind in names)
    return ir.Function(without_arrays(body, arrays), are_arrays, True, arrays)


class _WrittenOut(ir.Copy):
    """Repeats the bodies of loops with few iterations instead."""

    def body(self, body: Iterable[ir.Statement]) -> Body:
        """Copies statements, with loops that are written out."""
        found: Body = []
        for statement in body:
            match statement:
                case ir.Loop(counter, ir.Constant(start), ir.Constant(stop), step, inner, carried) if (
                    len(counts := range(int(start), int(stop), step)) <= _FEW
                ):
                    ends = {one: self.of(one.start) for one in carried}
                    for count in counts:
                        self.put(counter, ir.Constant(count))
                        for one, end in ends.items():
                            self.put(one, end)
                        found += self.body(inner)
                        ends = {one: self.of(one.end) for one in carried}
                    for one, end in ends.items():
                        self.put(one, end)
                case _:
                    found += super().body([statement])
        return found


class _Backward:
    """Writes the backward pass.

    Args:
        forward: the forward pass, from now on with statements that keep what loops carry.
        given: names of the arguments, whose numbers are taken to be finite.
    """

    def __init__(self, forward: Body, given: Collection[str]) -> None:
        self._steep = steep(forward, given)
        self._kinds, self._lost, self._n_kept = kinds_of(forward), set[str](), 0
        self._keep(forward)
        self._out: Body = []
        self._arrays = set[str]()
        self._grads: Numbers = {}
        self._totals: dict[ir.Operand, ir.Carried] = {}
        self._local: set[ir.Operand] | None = None
        *self._forward, output = forward
        assert isinstance(output, ir.Output)
        self._result = output.value

    def with_results(self, given: Sequence[ir.Array | ir.Argument]) -> Body:
        """Returns both passes, with an output of the gradient of each argument.

        Raises:
            Unsupported: a loop whose numbers are too many to keep, or a function whose slope is not known.
        """
        self._add(self._result, ir.ERROR)
        self._reverse(self._forward)
        for i, one in enumerate(given):
            if isinstance(one, ir.Argument):
                self._out.append(ir.Output(i, None, self._grads.get(one, _ZERO)))
                continue
            gradient, place = _of(one.name), ir.Counter()
            item = ir.Value("item", (place,), array=gradient)
            result: Body = [item, ir.Output(i, place, item)]
            if gradient not in self._arrays:
                result = [ir.Output(i, place, _ZERO)]
            self._out.append(_over_all(place, result))
        zeros: Body = []
        for array in sorted(self._arrays):
            if not _is_set_first(self._out, array):
                place = ir.Counter()
                zeros.append(_over_all(place, [ir.Store(array, place, _ZERO)]))
        # the result is read where the backward pass needs it as `state`
        known: Numbers = {self._result: ir.STATE} if isinstance(self._result, ir.Value | ir.Merged) else {}
        body = [*self._forward, *zeros, *ir.Copy(known).body(self._out)]
        loops = [one for one in ir.every(body) if isinstance(one, ir.Loop)]
        same: Numbers = {one: one.start for loop in loops for one in loop.carried if one.end is one}
        body = useful(ir.Copy(same).body(body))
        if any(isinstance(one, ir.Value) and one.array in self._lost for one in ir.every(body)):
            raise ir.Unsupported("a loop that carries numbers, and does not count edges")
        return body

    def _keep(self, body: Body) -> None:
        """Adds statements that keep what each loop carries, for each edge."""
        for statement in body:
            if isinstance(statement, ir.While):
                raise ir.Unsupported("a loop that may end earlier for some examples")
            for inner in ir.bodies(statement):
                self._keep(inner)
            if isinstance(statement, ir.Loop):
                for one in statement.carried:
                    self._n_kept += 1
                    one.kept = f"0kept_{self._n_kept}"
                    if _is_of_edges(statement):
                        statement.body.insert(0, ir.Store(one.kept, statement.counter, one))
                    else:
                        self._lost.add(one.kept)

    def _emit(self, operator: str, *operands: ir.Operand, array: str = "") -> ir.Value:
        value = ir.Value(operator, operands, array=array)
        self._out.append(value)
        return value

    def _emitted(self, tree: ir.Operand, given: Collection[ir.Operand]) -> ir.Operand:
        """Computes a derivative, as `SLOPES` writes it, from numbers that are given."""
        if tree in given or not isinstance(tree, ir.Value):
            return tree
        tree.operands = tuple(self._emitted(one, given) for one in tree.operands)
        if tree not in self._out:
            self._out.append(tree)
        return tree

    def _known(self, operand: ir.Operand) -> ir.Operand | None:
        """Returns the gradient of a number so far; in a loop, that of one from outside grows."""
        found = self._grads.get(operand)
        if found is None and self._local is not None and operand not in self._local:
            found = self._grads[operand] = self._totals[operand] = ir.Carried(_ZERO)
        return found

    def _add(self, operand: ir.Operand, gradient: ir.Operand) -> None:
        """Adds to the gradient of a number."""
        if isinstance(operand, ir.Constant | ir.Counter) or kind_of(operand, self._kinds) != "real":
            return
        known = self._known(operand)
        self._grads[operand] = gradient if known is None else self._emit("+", known, gradient)

    def _add_product(
        self, operand: ir.Operand, product: ir.Operand, gradient: ir.Operand, value: ir.Value
    ) -> None:
        """Adds the product of the gradient of a value and its slope for an operand.

        A number that was not chosen has the gradient 0, which times an infinite slope is NaN: where the
        gradient is 0, so is the product.
        """
        if value in self._steep:
            product = self._emit("choice", self._emit("!=", gradient, _ZERO), product, _ZERO)
        self._add(operand, product)

    def _reverse(self, body: Body) -> None:
        """Writes the backward pass of statements."""
        for statement in reversed(body):
            match statement:
                case ir.Value() if statement in self._grads:
                    self._value(statement, self._grads.pop(statement))
                case ir.Store(array, index, value) if _of(array) in self._arrays:
                    self._add(value, self._emit("item", index, array=_of(array)))
                case ir.Branch():
                    self._branch(statement)
                case ir.Loop():
                    self._loop(statement)

    def _value(self, value: ir.Value, gradient: ir.Operand) -> None:
        match value.operator, value.operands:
            case "item", (index,):
                gradients = _of(value.array)
                self._arrays.add(gradients)
                total = self._emit("+", self._emit("item", index, array=gradients), gradient)
                self._out.append(ir.Store(gradients, index, total))
            case "+", operands:
                for one in operands:
                    self._add(one, gradient)
            case "-", (*minuend, subtrahend):
                for one in minuend:
                    self._add(one, gradient)
                self._add(subtrahend, self._emit("-", gradient))
            case "*", (left, right):
                for factor, other in ((left, right), (right, left)):
                    if not isinstance(factor, ir.Constant) and other not in (_ZERO, ir.Constant(0)):
                        product = self._emitted(times(gradient, other), (gradient, other))
                        self._add_product(factor, product, gradient, value)
            case "choice", (condition, yes, no):
                for one, sides in ((yes, (gradient, _ZERO)), (no, (_ZERO, gradient))):
                    if not isinstance(one, ir.Constant):
                        self._add(one, self._emit("choice", condition, *sides))
            case operator, operands:
                if operator not in SLOPES:
                    raise ir.Unsupported(f"{operator}, whose slope is not known here")
                given = (gradient, value, *operands)
                for one, slope in zip(operands, SLOPES[operator](*given), strict=False):
                    product = self._emitted(slope, given)
                    self._add_product(one, product, gradient, value)

    def _is_stored(self, body: Body) -> bool:
        """Returns whether statements write to an array that has gradients."""
        return any(isinstance(one, ir.Store) and _of(one.array) in self._arrays for one in ir.every(body))

    def _taken(self, numbers: Iterable[Number]) -> dict[Number, ir.Operand]:
        """Takes the gradients of those of some numbers that have one."""
        return {one: self._grads.pop(one) for one in numbers if one in self._grads}

    def _branch(self, branch: ir.Branch) -> None:
        left = self._taken(branch.merged)
        if not left and not self._is_stored([branch]):
            return
        outer, sides, found = (self._out, self._grads), list[Numbers](), list[Body]()
        for body, is_yes in ((branch.yes, True), (branch.no, False)):
            self._out, self._grads = [], dict(outer[1])
            for one, gradient in left.items():
                self._add(one.yes if is_yes else one.no, gradient)
            self._reverse(body)
            found.append(self._out)
            sides.append(self._grads)
        self._out, self._grads = outer
        back, local = ir.Branch(branch.condition, found[0], found[1]), ir.made([branch])
        for operand in dict.fromkeys((*sides[0], *sides[1])):
            if operand in local:
                continue
            before = self._totals.get(operand, _ZERO)
            yes, no = (side.get(operand, before) for side in sides)
            if yes is not no:
                back.merged.append(ir.Merged(yes, no))
            self._grads[operand] = yes if yes is no else back.merged[-1]
        self._out.append(back)

    def _loop(self, loop: ir.Loop) -> None:
        left = self._taken(loop.carried)
        if not left and not self._is_stored(loop.body):
            return
        real = [one for one in loop.carried if kind_of(one, self._kinds) == "real"]
        gradients = {one: ir.Carried(left.get(one, _ZERO)) for one in real}
        outer = self._out, self._grads, self._totals, self._local
        self._out, self._grads, self._totals, place = [], {}, {}, ir.Counter()
        items: Numbers = {one: self._emit("item", place, array=one.kept) for one in loop.carried}
        own = {one.kept for one in loop.carried}
        copy = ir.Copy({loop.counter: place, **items})
        body = copy.body(one for one in loop.body if not isinstance(one, ir.Store) or one.array not in own)
        self._out += body
        self._kinds = kinds_of(self._out, self._kinds)
        self._local = {*ir.made(self._out), place}
        for one, gradient in gradients.items():
            self._add(copy.of(one.end), gradient)
        self._reverse(body)
        for one, gradient in gradients.items():
            gradient.end = self._grads.get(items[one], _ZERO)
        for operand, total in self._totals.items():
            total.end = self._grads[operand]
        inner, totals = self._out, self._totals
        self._out, self._grads, self._totals, self._local = outer
        for operand, total in totals.items():
            total.start = self._known(operand) or _ZERO
            self._grads[operand] = total
        is_ordered = any(one.end is not one for one in gradients.values()) or any(
            isinstance(one, ir.Store) for one in ir.every(body)
        )
        bounds = self._backwards(loop) if is_ordered else (loop.start, loop.stop, loop.step)
        carried = [*gradients.values(), *totals.values()]
        self._out.append(ir.Loop(place, *bounds, inner, carried, loop.scalar))
        for one, gradient in gradients.items():
            self._add(one.start, gradient)

    def _backwards(self, loop: ir.Loop) -> tuple[ir.Operand, ir.Operand, int]:
        """Computes the range of a loop in the other direction."""
        towards = 1 if loop.step > 0 else -1
        last: ir.Operand = self._emit("-", loop.stop, ir.Constant(towards))
        if abs(loop.step) != 1:
            n_more = self._emit("//", self._emit("-", last, loop.start), ir.Constant(loop.step))
            last = self._emit("+", loop.start, self._emit("*", n_more, ir.Constant(loop.step)))
        return last, self._emit("-", loop.start, ir.Constant(towards)), -loop.step


def _of(array: str) -> str:
    """Names the gradients of an array's numbers."""
    return f"0d_{array.removeprefix('@')}"


def _over_all(place: ir.Counter, body: Body) -> ir.Loop:
    return ir.Loop(place, ir.Constant(0), ir.FAN_IN, 1, body)


def _is_of_edges(loop: ir.Loop) -> bool:
    """Returns whether a loop counts edges of the node, up or down, each once at most."""
    low, high, outside = (loop.start, loop.stop, 0) if loop.step > 0 else (loop.stop, loop.start, 1)
    match high:
        case ir.Value("-", (end, ir.Constant(less))) if less >= outside:
            high = end
        case _ if outside:
            return False
    return isinstance(low, ir.Constant) and low.value >= -outside and high == ir.FAN_IN


def _is_set_first(body: Body, array: str) -> bool:
    """Sets an array where a loop over all edges is the first to add to it; else it has to be zero before."""
    for loop in body:
        inner = list(ir.every([loop]))
        if not any(array == getattr(one, "array", "") for one in inner):
            continue
        stores = [one for one in inner if isinstance(one, ir.Store) and one.array == array]
        if not isinstance(loop, ir.Loop) or not loop.is_of_all_edges or len(stores) != 1:
            return False
        (store,) = stores
        match store.value:
            case ir.Value("+", (ir.Value("item", (index,)) as item, added)) if (
                store in loop.body and index is store.index is loop.counter and item.array == array
            ):
                store.value = added
                return True
        return False
    return True
