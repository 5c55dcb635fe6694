"""Compares the form in which a node runs with the user's functions in plain Python, on a few drawn inputs.

A mistake in generating or compiling code would only show as a network that learns badly. So every function
runs both ways before it is used; a derived `downward` is compared with differences of `upward`. Inputs for
which plain Python raises, or runs for long, are left out. In float32 and bfloat16 rounding may decide which
branch a function takes; such a comparison is repeated in float64, where a difference counts unless Python's
own result moves as much when the inputs move by less than a rounding of float32.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.nodes.errors import NodeCompileError
from partita.engine.kernels.nodes.loops import Function, remembered
from partita.engine.kernels.nodes.source import first_line
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import storage, stored, upcast_array
from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, Full
from partita.layers.graph import Grid
from partita.layers.layer import Layer, NodeDefinition, Parameter, Placeholder

Array = npt.NDArray[Any]
Make = Callable[[KernelContext, Arrays, ThreadPool], Kernel | None]

_LINES: Final = 20_000
"""Lines of Python after which a call is given up."""
_WAIT_S: Final = 20.0
"""Seconds after which a form that plain Python ends within `_LINES` lines counts as endless."""
_TOLERANCES: Final = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 0.1}
"""Allowed differences, relative to the result and the largest input."""
_DIFFERENCES: Final = 1e-4
"""The same of what is compared with differences, at least."""
_WIDTH: Final = 1e-5
_EXAMPLES: Final = 4
_NUDGES: Final = 6
_NUDGE: Final = 1e-10
_SHOWN: Final = 8


@dataclass(frozen=True)
class Different:
    """A form that differs from the function in plain Python.

    Args:
        function: the user's function.
        role: "upward", "downward" or "derived downward".
        given: its arguments by name.
        plain: its result in plain Python.
        compiled: the same of the form, or what it did instead.
    """

    function: Function
    role: str
    given: dict[str, Any]
    plain: str
    compiled: str

    def explain(self, *, layer: str) -> NodeCompileError:
        """Makes the error that a user reads."""
        filename, line = first_line(self.function)
        given = ", ".join(f"{name} = {value}" for name, value in self.given.items())
        return NodeCompileError(
            f"{layer}: its {self.role} function {self.function.__name__} gives other numbers compiled than "
            f'in plain Python.\n  File "{filename}", line {line}\n  given: {given}\n'
            f"  plain Python: {self.plain}\n  compiled: {self.compiled}\n"
            "A compiled node must compute what its function says. Compiled whole numbers have 64 bits; "
            "otherwise Partita or Numba is wrong: write the function in other steps, and report it."
        )


@remembered
def compared(
    upward: Function, downward: Function | None, signature: Signature, make: Make, trained: bool
) -> Different | None:
    """Returns the first difference between the functions and their form; None if there is none.

    Args:
        upward: of the definition.
        downward: of the definition; None if it is derived.
        signature: what they take.
        make: builds the kernel of a layer in the form.
        trained: whether the backward pass is compared too.
    """
    found = _OneNode(upward, downward, signature, make, trained).difference()
    if found is None or signature.precision == "float64":
        return found
    exact = compared(upward, downward, replace(signature, precision="float64"), make, trained)
    assert exact is None or isinstance(exact, Different)
    return exact


@dataclass(frozen=True)
class _Alone(Layer):
    """The layer of one node."""

    cuttable = False
    own: NodeDefinition
    name: str | None = None

    @property
    def connectivity(self) -> Connectivity:
        """The node reads all of its input."""
        return Full()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of a single node, whatever the input."""
        return (1,)

    @property
    def definition(self) -> NodeDefinition:
        """The functions of the user, as they were given."""
        return self.own


class _OneNode:
    """A layer of one node with one example, in some form, and the functions in plain Python."""

    def __init__(
        self,
        upward: Function,
        downward: Function | None,
        signature: Signature,
        make: Make,
        trained: bool,
    ) -> None:
        self._up, self._down, self._signature = upward, downward, signature
        self._n_edges, dtype = max(signature.least, 1), storage(signature.precision)
        n, one, whole = self._n_edges, (1,), ((0, self._n_edges),)
        parameters = tuple(
            Parameter(name, (1, n) if kind == "e" else one) for name, kind in signature.parameters
        )
        layer = _Alone(NodeDefinition(upward, downward))
        grid = Grid("node", one, layer, ("inputs",), parameters, 1.0, (Full(),))
        inputs = Grid("inputs", (n,), Placeholder((n,), "input"), (), (), 0.0)
        context = KernelContext(grid, (0, 1), (inputs,), whole, whole, 1, signature.precision)
        self._arrays = Arrays(
            inputs=(np.zeros((n, 1), dtype),),
            output=np.zeros((1, 1), dtype),
            grad_output=np.zeros((1, 1), dtype) if trained else None,
            grad_inputs=(np.zeros((n, 1), dtype) if trained else None,),
            parameters=tuple(np.zeros(one.shape, dtype) for one in parameters),
        )
        self._gradients = [np.zeros(one.shape, context.master) for one in parameters]
        kernel = make(context, self._arrays, ThreadPool(1))
        assert kernel is not None, "the form of a layer is one of a single node"
        self._trained, self._forward, self._backward = trained, kernel.forward(), list[Call]()
        if trained:
            self._backward.append(kernel.backward_input(0, whole, accumulate=False))
            self._backward += [kernel.backward_parameters(self._gradients)] if parameters else []

    def difference(self) -> Different | None:
        """Returns the first difference that is found."""
        for given in _drawn(self._signature):
            learned = given[:-2]
            plain = _limited_call(lambda: np.array([float(self._up(*_own(learned)))]))  # noqa: B023
            if plain is None:
                continue
            found = self._compared(self._up, "upward", learned, plain)
            if found is None and self._trained:
                role = "derived downward" if self._down is None else "downward"
                if self._down is None:
                    given = (*learned, float(plain[0]), given[-1])
                slopes = self._plain_downward(given)
                if slopes is not None:
                    found = self._compared(self._down or self._up, role, given, slopes)
            if found is not None:
                return found
        return None

    def _compared(
        self, function: Function, role: str, given: tuple[Any, ...], plain: Array
    ) -> Different | None:
        compiled = _timed(lambda: self._played(given, role))
        if isinstance(compiled, str) or not self._agree(given, plain, compiled, role):
            names = ["incoming", *(name for name, _ in self._signature.parameters), "state", "error"]
            shown = {name: _text(value) for name, value in zip(names, given, strict=False)}
            return Different(function, role, shown, _text(plain), _text(compiled))
        return None

    def _played(self, given: tuple[Any, ...], role: str) -> Array:
        """Runs the form; returns its numbers in the order of those of plain Python."""
        arrays, n = self._arrays, len(self._signature.parameters)
        for array, value in zip((*arrays.inputs, *arrays.parameters), given, strict=False):
            array[...] = stored(np.reshape(value, array.shape), array.dtype)
        self._forward()
        if role == "upward":
            return _exact(arrays.output)
        state, error = given[1 + n :]
        if self._down is not None:
            arrays.output[...] = stored(np.full((1, 1), state), arrays.output.dtype)
        arrays.own_grad[...] = stored(np.full((1, 1), error), arrays.own_grad.dtype)
        for call in self._backward:
            call()
        found = [arrays.grad_input(0), *self._gradients]
        return np.concatenate(list(map(_exact, found)))

    def _plain_downward(self, given: tuple[Any, ...]) -> Array | None:
        """Calls `downward`; or differences of `upward`, where NaN is for what is not known."""
        if self._down is None:
            return self._differences(given)
        down = self._down
        returned = _limited_call(lambda: down(*_own(given)))
        try:
            parts = [np.asarray(part, np.float64).reshape(-1) for part in returned]
        except (TypeError, ValueError):
            return None
        sizes = [np.size(value) for value in given[:-2]]
        return np.concatenate(parts) if [part.size for part in parts] == sizes else None

    def _again(self, given: tuple[Any, ...], role: str) -> Array | None:
        if role == "upward":
            found: Array | None = _limited_call(lambda: np.array([float(self._up(*given))]))
            return found
        return self._plain_downward(given)

    def _differences(self, given: tuple[Any, ...]) -> Array | None:
        learned, error = given[:-2], given[-1]
        flat, sizes = np.concatenate([np.ravel(value) for value in learned]), [np.shape(v) for v in learned]
        found = np.full(len(flat), np.nan)
        places = np.random.default_rng(2).permutation(len(flat))[:_SHOWN]

        def at(moved: Array) -> Any:
            parts = np.split(moved, np.cumsum([int(np.prod(size)) for size in sizes])[:-1])
            values = (p.reshape(s) if s else float(p[0]) for p, s in zip(parts, sizes, strict=True))
            return _limited_call(lambda: float(self._up(*values)))

        for place in places:
            step = _WIDTH * (np.arange(len(flat)) == place)
            below, middle, above = at(flat - step), at(flat), at(flat + step)
            if below is None or middle is None or above is None:
                return None
            left, right = (middle - below) / _WIDTH, (above - middle) / _WIDTH
            if abs(right - left) <= 10 * _DIFFERENCES * max(1.0, abs(left)):
                found[place] = error * (left + right) / 2
        return found

    def _agree(self, given: tuple[Any, ...], plain: Array, compiled: Array, role: str) -> bool:
        size = max(1.0, *(float(np.abs(value).max(initial=0)) for value in given))
        tolerance = _TOLERANCES[self._signature.precision]
        if role == "derived downward":
            tolerance = max(tolerance, _DIFFERENCES)
        with np.errstate(invalid="ignore"):
            allowed = tolerance * (np.abs(plain) + size)
            differs = ~((np.abs(compiled - plain) <= allowed) | (compiled == plain))
        differs &= ~np.isnan(plain) if role == "derived downward" else ~(np.isnan(compiled) & np.isnan(plain))
        if not differs.any():
            return True
        if self._signature.precision != "float64":
            return False
        nudged = [self._again(near, role) for near in _near(given)]
        moved = [result for result in nudged if result is not None and np.isfinite(result[differs]).all()]
        if len(moved) < len(nudged):
            return True
        spread = np.max([np.abs(result - plain) for result in moved], axis=0)
        return bool((np.abs(compiled - plain) <= 10 * spread)[differs].all())


def _own(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in given)


def _limited_call(call: Callable[[], Any]) -> Any:
    """Calls a function of the user's; None if it raises or takes too many lines."""
    try:
        with np.errstate(all="ignore"), _limited():
            return call()
    except (Exception, _TooLong):  # noqa: BLE001 - a function of the user's may raise anything
        return None


def _exact(array: Array) -> Array:
    """Returns stored numbers as float64, flat."""
    return upcast_array(array).astype(np.float64).reshape(-1)


def rejection(
    upward: Function, downward: Function | None, signature: Signature
) -> tuple[Function, BaseException] | None:
    """The function that raises on all drawn inputs in plain Python, and what it raises; None if none does."""
    wanted: list[tuple[Function, int | None]] = [(upward, -2)]
    wanted += [] if downward is None else [(downward, None)]
    for function, last in wanted:
        raised: list[BaseException] = []
        for given in _drawn(signature):
            try:
                with np.errstate(all="ignore"), _limited():
                    function(*_own(given[:last]))
                break
            except (Exception, _TooLong) as error:  # noqa: BLE001 - a user's function may raise anything
                raised.append(error)
        else:
            return function, raised[-1]
    return None


class _TooLong(BaseException):
    """A call took too many lines; a user's `except Exception` must not catch it."""


@contextmanager
def _limited() -> Iterator[None]:
    """Ends the block after so many lines of Python."""
    n_lines, before = 0, sys.gettrace()

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal n_lines
        n_lines += 1
        if n_lines > _LINES:
            raise _TooLong
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


def _drawn(signature: Signature) -> Iterator[tuple[Any, ...]]:
    """Draws arguments of `downward`: of both signs, positive, and small integers."""
    draw = np.random.default_rng(0)
    kinds: tuple[Callable[..., Any], ...] = (
        draw.normal,
        lambda size: draw.uniform(0.1, 1, size),
        lambda size: draw.integers(-2, 4, size),
    )
    n_edges, kind = max(signature.least, 1), storage(signature.precision)
    sizes = [n_edges, *(n_edges if of == "e" else 1 for _, of in signature.parameters), 2]
    single = [False, *(of == "n" for _, of in signature.parameters)]
    for numbers_of in kinds:
        for example in range(_EXAMPLES):
            arrays = [_exact(stored(np.asarray(numbers_of(size=size)), kind)) for size in sizes]
            state, error = arrays.pop()
            given = [float(one[0]) if is_one else one for one, is_one in zip(arrays, single, strict=True)]
            # half of the states are one that comes in
            yield (*given, float(state) if example % 2 else float(arrays[0].max()), float(error))


def _timed(run: Callable[[], Array]) -> Array | str:
    """Runs a form; returns a sentence if it raises or does not end."""
    found: list[Array | str] = []

    def played() -> None:
        try:
            found.append(run())
        except Exception as error:  # noqa: BLE001 - whatever it is, plain Python did not raise it
            found.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=played, name="compared node", daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    return found[0] if found else f"no result after {_WAIT_S:g} s"


def _near(given: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields arguments that differ from those given by less than the precision of float32."""
    draw = np.random.default_rng(1)
    for _ in range(_NUDGES):
        moved = [value * (1 + _NUDGE * draw.normal(size=np.shape(value))) for value in given]
        yield tuple(
            np.asarray(m) if isinstance(value, np.ndarray) else float(m)
            for value, m in zip(given, moved, strict=True)
        )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    flat = np.reshape(value, -1)
    shown = ", ".join(f"{number:.6g}" for number in flat[:_SHOWN])
    more = ", ..." if flat.size > _SHOWN else ""
    return shown if np.ndim(value) == 0 or flat.size == 1 else f"[{shown}{more}]"
