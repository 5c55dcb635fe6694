"""Compares a node's compiled loops with the user's functions in plain Python, on a few drawn inputs.

A mistake in generating or compiling code would only show as a network that learns badly. So every function
runs both ways before it is used. Inputs for which plain Python raises, or runs for long, are left out. In
float32 and bfloat16 rounding may decide which branch a function takes; `loops` repeats such a comparison in
float64, where a difference counts unless Python's own result moves as much when the inputs move by less than
a rounding of float32.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.nodes.compiler import NodeCompileError, Refusal
from partita.engine.kernels.nodes.source import first_line
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.numerics import downcast_array, master, storage, upcast_array

Array = npt.NDArray[Any]
Play = Callable[["Inputs"], Array]
"""Runs compiled loops on inputs; returns `[example, number]`, the numbers in the order of `plain_results`."""

_LINES: Final = 20_000
"""Lines of Python after which a call is given up."""
_WAIT_S: Final = 20.0
"""Seconds after which compiled loops that plain Python ends within `_LINES` lines count as endless."""
_TOLERANCES: Final = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 0.1}
"""Allowed differences, relative to the result and the largest input."""
_EXAMPLES: Final = 4
_NUDGES: Final = 6
_NUDGE: Final = 1e-10
_SHOWN: Final = 8


@dataclass(frozen=True)
class Inputs:
    """Inputs of one node for several examples, in storage type, and as numbers of float64.

    Attributes:
        signature: of the node's functions.
        incoming: `[edge, example]`, in storage type.
        parameters: flat, in storage type.
        given: arguments of the plain function for each example: incoming, parameters, and for `downward` the
            state and the error.
    """

    signature: Signature
    incoming: Array
    parameters: tuple[Array, ...]
    given: tuple[tuple[Any, ...], ...]

    @property
    def table(self) -> tuple[Any, ...]:
        """The arguments that every loop of `vectors` takes first."""
        n_edges, n_examples = self.incoming.shape
        senders, one = np.arange(n_edges, dtype=np.int32), np.zeros(1, np.int64)
        zeros, counts = np.zeros(n_examples, self.incoming.dtype), np.full(1, n_edges, np.int32)
        return self.incoming, zeros, senders, one, counts, one, one, n_edges

    def last(self, place: int) -> Array:
        """Returns an argument near the end of `given`, `[1, example]`, stored: -2 the state, -1 the error."""
        return stored(np.array([[given[place] for given in self.given]]), self.signature)

    def of(self, examples: Sequence[int]) -> Inputs:
        """Returns the inputs of some of the examples."""
        incoming = np.ascontiguousarray(self.incoming[:, examples])
        return Inputs(self.signature, incoming, self.parameters, tuple(self.given[e] for e in examples))


class Different(Refusal):
    """Compiled loops that differ from the function in plain Python.

    Args:
        function: the user's function.
        role: "upward" or "downward".
        given: its arguments by name.
        plain: its result in plain Python.
        compiled: the same of the loops, or what they did instead.
    """

    def __init__(
        self, function: Callable[..., Any], role: str, given: dict[str, Any], plain: str, compiled: str
    ) -> None:
        super().__init__(function, role, given, plain, compiled)
        self.function, self.role, self.given = function, role, given
        self.plain, self.compiled = plain, compiled

    def explain(self, *, layer: str, role: str, function: Callable[..., Any]) -> NodeCompileError:
        """Makes the error that a user reads."""
        filename, line = first_line(self.function)
        given = ", ".join(f"{name} = {value}" for name, value in self.given.items())
        return NodeCompileError(
            f"{layer}: its {self.role} function {self.function.__name__} gives other numbers compiled than "
            f'in plain Python.\n  File "{filename}", line {line}\n  given: {given}\n'
            f"  plain Python: {self.plain}\n  compiled: {self.compiled}\n"
            "A compiled node must compute what its function says. Numba's whole numbers have 64 bits; "
            "otherwise Partita or Numba is wrong: write the function in other steps, and report it."
        )


def difference(function: Callable[..., Any], signature: Signature, role: str, play: Play) -> Different | None:
    """Returns the first difference between a function and its loops; None if there is none.

    Args:
        function: `upward` or `downward`.
        signature: what it takes.
        role: which of them.
        play: runs the loops.
    """
    for inputs in _drawn(signature, role):
        plain = [plain_results(function, given, signature, role) for given in inputs.given]
        known = [e for e, result in enumerate(plain) if result is not None]
        if not known:
            continue
        inputs, plain = inputs.of(known), [plain[e] for e in known]
        compiled = _played(play, inputs)
        for e, (given, result) in enumerate(zip(inputs.given, plain, strict=True)):
            assert result is not None
            found = compiled if isinstance(compiled, str) else compiled[e]
            if isinstance(found, str) or not _agree(function, given, result, found, signature, role):
                names = ["incoming", *(name for name, _ in signature.parameters), "state", "error"]
                shown = {name: _text(value) for name, value in zip(names, given, strict=False)}
                return Different(function, role, shown, _text(result), _text(found))
    return None


def plain_results(
    function: Callable[..., Any], given: tuple[Any, ...], signature: Signature, role: str
) -> Array | None:
    """Calls a function in plain Python.

    Returns:
        The state; or the errors and the gradients, one after the other; in float64. None if it raises, takes
        too many lines, or returns what it must not.
    """
    own = tuple(value.copy() if isinstance(value, np.ndarray) else value for value in given)
    try:
        with np.errstate(all="ignore"), _limited():
            returned = function(*own)
        if role == "upward":
            return np.array([float(returned)])
        n_edges = len(given[0])
        sizes = [n_edges, *(n_edges if kind == "e" else 1 for _, kind in signature.parameters)]
        parts = [np.asarray(part, np.float64).reshape(-1) for part in returned]
        return np.concatenate(parts) if [part.size for part in parts] == sizes else None
    except (Exception, _TooLong):  # noqa: BLE001 - a function of the user's may raise anything
        return None


def stored(numbers: Array, signature: Signature) -> Array:
    """Converts numbers to the layer's storage type."""
    kind = storage(signature.precision)
    if kind == master(signature.precision):
        return numbers.astype(kind)
    return downcast_array(numbers.astype(master(signature.precision)), np.empty(numbers.shape, kind))


def numbers(array: Array) -> Array:
    """Converts stored numbers to float64."""
    return (upcast_array(array) if array.dtype == np.uint16 else array).astype(np.float64)


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


def _drawn(signature: Signature, role: str) -> Iterator[Inputs]:
    """Draws inputs: of both signs, positive, and small integers."""
    draw = np.random.default_rng(0)
    kinds: tuple[Callable[..., Any], ...] = (
        draw.normal,
        lambda size: draw.uniform(0.1, 1, size),
        lambda size: draw.integers(-2, 4, size),
    )
    for numbers_of in kinds:
        n_edges = max(signature.least, 1)
        sizes = [n_edges if kind == "e" else 1 for _, kind in signature.parameters]
        incoming = stored(np.asarray(numbers_of(size=(n_edges, _EXAMPLES)), np.float64), signature)
        flats = tuple(stored(np.asarray(numbers_of(size=size), np.float64), signature) for size in sizes)
        learned = [
            numbers(flat) if kind == "e" else float(numbers(flat)[0])
            for flat, (_, kind) in zip(flats, signature.parameters, strict=True)
        ]
        incoming_rows = np.ascontiguousarray(numbers(incoming).T)
        last = (
            [[]] * _EXAMPLES if role == "upward" else _states_and_errors(incoming_rows, signature, numbers_of)
        )
        given = tuple((one, *learned, *more) for one, more in zip(incoming_rows, last, strict=True))
        yield Inputs(signature, incoming, flats, given)


def _states_and_errors(
    incoming_rows: Array, signature: Signature, numbers_of: Callable[..., Any]
) -> list[list[float]]:
    """Draws a state and an error for each example; half of the states are one that comes in."""
    drawn = numbers(stored(np.asarray(numbers_of(size=(len(incoming_rows), 2)), np.float64), signature))
    drawn[::2, 0] = incoming_rows[::2].max(axis=1)
    return [[float(state), float(error)] for state, error in drawn]


def _played(play: Play, inputs: Inputs) -> Array | str:
    """Runs loops; returns a sentence if they raise or do not end."""
    found: list[Array | str] = []

    def run() -> None:
        try:
            found.append(play(inputs))
        except Exception as error:  # noqa: BLE001 - whatever it is, plain Python did not raise it
            found.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, name="compared node", daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    return found[0] if found else f"no result after {_WAIT_S:g} s"


def _agree(
    function: Callable[..., Any],
    given: tuple[Any, ...],
    plain: Array,
    compiled: Array,
    signature: Signature,
    role: str,
) -> bool:
    size = max(1.0, *(float(np.abs(value).max(initial=0)) for value in given))
    with np.errstate(invalid="ignore"):
        allowed = _TOLERANCES[signature.precision] * (np.abs(plain) + size)
        differs = ~((np.abs(compiled - plain) <= allowed) | (compiled == plain))
    differs &= ~(np.isnan(compiled) & np.isnan(plain))
    if not differs.any():
        return True
    if signature.precision != "float64":
        return False
    nudged = [plain_results(function, near, signature, role) for near in _near(given)]
    moved = [result for result in nudged if result is not None and np.isfinite(result).all()]
    if len(moved) < len(nudged):
        return True
    spread = np.max([np.abs(result - plain) for result in moved], axis=0)
    return bool((np.abs(compiled - plain) <= 10 * spread)[differs].all())


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
