"""Interface of a compressor: its settings, the size of its messages, and the state that encodes gradients.

A compressor replaces a range of a gradient by a short message. Messages of the kind "gather" are collected
from all replicas, and each adds up what they mean, in the order of the replicas; those of the kind "sum" are
added up as they are. Either way all replicas have the same result, to the bit. What a message lacks is kept
and added to the next gradient: *error feedback*.

An encoder changes its state only at `commit`: a step that is computed again begins with the same state.

Sources: Seide and others, "1-bit stochastic gradient descent", Interspeech 2014 (error feedback); Karimireddy
and others, "Error feedback fixes SignSGD", ICML 2019 (why it converges).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.optimizers.settings import Settings
from partita.engine.parameters.vector import Vector
from partita.layers.checks import check_fields, check_flag

Shape: TypeAlias = tuple[int, ...]
"""Shape of one tensor of a range: a parameter, or the part of one that a machine has."""


class Exact(tuple[int, ...]):
    """Shape of a tensor whose numbers are sent as they are, such as running averages."""

    __slots__ = ()


Kind: TypeAlias = Literal["gather", "sum"]
"""Tells whether the messages of a round are collected, or added up."""

RESIDUAL: Final = "residual"
"""The state vector that has what the messages so far lacked."""


class BadMessage(ValueError):
    """A message is none that its compressor makes."""


@dataclass(frozen=True)
class Compressor(Settings, ABC):
    """Settings of the messages that take the place of gradients.

    Args:
        feedback: what a message lacks is added to the next gradient. False loses it, which is there to show
            that training then fails.

    Raises:
        ValueError: a setting is out of range.
    """

    feedback: bool = field(default=True, kw_only=True)

    shared_state: ClassVar[tuple[str, ...]] = ()
    """State vectors that all replicas have in common; each replica has the others for itself."""

    rounds: ClassVar[tuple[Kind, ...]] = ("gather",)
    """The kinds of the exchanges of a step, one after the other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_flag, "feedback", of=f"{type(self).__name__}'s ")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the state vectors of a replica, each of the size of its gradient."""
        return (RESIDUAL,) * self.feedback

    @abstractmethod
    def n_bytes(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        """Returns the bytes of one message for a range, by the compressor's formula.

        Args:
            shapes: of the tensors of the range.
            item_bytes: bytes of a number of the gradient.
            step: of the run.
            turn: which of the `rounds`.
        """

    def stage(self, step: int) -> float:
        """Returns a number that all steps have in common in which messages for a range have one size."""
        return 0.0

    def items(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        """Returns the length of a message in whole numbers of `item_bytes`, which is what is sent.

        The numbers of `Exact` tensors are in the message of the first round, behind the others.
        """
        n_bytes = self.n_bytes(self.encoded(shapes), item_bytes, step=step, turn=turn)
        exact = 0 if turn else sum(math.prod(shape) for shape in shapes if isinstance(shape, Exact))
        return -(-n_bytes // item_bytes) + exact

    @staticmethod
    def encoded(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """Returns the shapes less the `Exact` ones: of the tensors that the compressor makes shorter."""
        return tuple(shape for shape in shapes if not isinstance(shape, Exact))

    @property
    def alone(self) -> Compressor:
        """The compressor of what one replica sends to a shard, in messages that need none of another."""
        return self

    @abstractmethod
    def encoder(self, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> Encoder:
        """Returns the state of one range of one replica, in its initial values."""


class Encoder(ABC):
    """State of one range of the gradient of one replica. Used by one thread.

    Attributes:
        state: `[n]` each, by the names of `Compressor.state_names`; replaced by `commit`.
        size: n, numbers in the range.
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[Shape], dtype: npt.DTypeLike) -> None:
        """A state of zeros."""
        self.shapes: Final = tuple(shapes)
        self.size: Final = sum(map(math.prod, shapes))
        self.dtype: Final[np.dtype[Any]] = np.dtype(dtype)
        self.state = {name: np.zeros(self.size, self.dtype) for name in names}
        self._next: dict[str, Vector] = {}
        self._step: int | None = None

    def begin(self, view: int) -> None:  # noqa: B027 - most encoders have nothing that replicas share
        """Notes the view: replicas that have just come into it have nothing of what all had before."""

    def encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        """Writes the message of a step.

        Args:
            gradient: `[n]`, this replica's share of the mean; not changed.
            message: `[Compressor.items]` of the dtype of the gradient; its bytes are all written.
            step: of the run.
            turn: which of the compressor's rounds.
            replicas: that take part.
        """
        message.fill(0)
        self._step = step
        self._encode(gradient, message, step=step, turn=turn, replicas=replicas)

    @abstractmethod
    def _encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        """Writes the message, and the next state into `_next`."""

    @abstractmethod
    def decode(self, messages: Vector, gradient: Vector, *, step: int, turn: int) -> None:
        """Reads the messages of a round, and writes the gradient after the last one.

        Args:
            messages: `[replicas, items]`, or `[1, items]` where they were added up.
            gradient: `[n]`, becomes the sum over all replicas, as far as the messages have it.
            step: of the run.
            turn: which of the compressor's rounds.

        Raises:
            BadMessage: a message is none.
        """

    def restore(self, state: Mapping[str, Vector]) -> None:
        """Takes over state vectors, `[n]` each by name; the others stay as they are."""
        for name in self.state.keys() & state.keys():
            self.state[name] = state[name].astype(self.dtype)

    def commit(self, step: int) -> None:
        """Makes the state that of this step's end, where the message of just this step was the last one."""
        if self._step == step:
            self.state |= self._next
        self._next, self._step = {}, None


class GatherEncoder(Encoder):
    """Encoder of messages that are collected, with error feedback where the state has a residual.

    A subclass defines what is written for a vector, and what a message means.
    """

    @override
    def _encode(self, gradient: Vector, message: Vector, *, step: int, turn: int, replicas: int) -> None:
        if RESIDUAL not in self.state:
            self.write(gradient, message, step=step)
            return
        wanted = gradient + self.state[RESIDUAL]
        self.write(wanted, message, step=step)
        sent = np.zeros_like(wanted)
        self.add(message, sent, step=step)
        self._next = {RESIDUAL: np.subtract(wanted, sent, out=wanted)}

    @override
    def decode(self, messages: Vector, gradient: Vector, *, step: int, turn: int) -> None:
        gradient.fill(0)
        for rank, message in enumerate(messages):
            try:
                self.add(message, gradient, step=step)
            except BadMessage as error:
                raise BadMessage(f"the message of member {rank}: {error}") from None

    @abstractmethod
    def write(self, vector: Vector, message: Vector, *, step: int) -> None:
        """Writes the message for a vector, `[n]`."""

    @abstractmethod
    def add(self, message: Vector, vector: Vector, *, step: int) -> None:
        """Adds what a message means to a vector, `[n]`. Raises BadMessage where it is none."""


def bytes_of(message: Vector, start: int, n: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns a view of `n` numbers of another type in a message, from the byte `start` on."""
    return message.view(np.uint8)[start : start + n * np.dtype(kind).itemsize].view(kind)


def bounds(shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """Returns `[start, stop)` of each tensor in the vector of all of them."""
    found, start = [], 0
    for shape in shapes:
        found.append((start, start + math.prod(shape)))
        start = found[-1][1]
    return found
