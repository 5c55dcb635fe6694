"""Changes of a part's parameters, for what it sends to the shards: whatever its optimizer has made of them.

Nothing is added up in a step: what has changed since the last push is the parameters of then less those of
now. The module must not know messages, or when anything is sent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.engine.runtime.push_messages import PushMessages


class PushedChanges(LocalOptimizer):
    """Updates the part's own parameters, and has changes of them in flight.

    A change is what shards subtract.

    Attributes:
        in_flight: the changes that are being sent, `[n]`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        vectors: Vectors,
        *,
        memory: Callable[[int], npt.NDArray[np.uint8] | None] = lambda n_bytes: None,
        messages: PushMessages | None = None,
    ) -> None:
        """Begins without changes.

        Args:
            optimizer: see `LocalOptimizer`; its state is the part's own, and begins anew with its process.
            vectors: see `LocalOptimizer`; without tables of which gradients are a few rows.
            memory: gives the changes in flight memory that shards read, see `Mailbox.memory`.
            messages: take the place of changes in pushes; None: changes are sent.
        """
        super().__init__(optimizer, vectors)
        self.messages = messages
        device, shape, dtype = vectors.device, vectors.parameters.shape, vectors.dtype
        self._kept = device.zeros(shape, dtype)  # what `keep` keeps of a range that new values arrive in
        shared = memory(self._kept.nbytes) if device.is_host else None
        self.in_flight = device.zeros(shape, dtype) if shared is None else shared.view(dtype)

    @abstractmethod
    def swap_buffers(self, span: slice, step: int = 0) -> None:
        """Moves the changes of a range into flight, and starts from none."""

    def pushed(self, span: slice) -> Vector:
        """Returns what is sent of a range: the changes in flight, or their message; nobody writes to it."""
        if self.messages is None:
            return self._vectors.device.given(self.in_flight[span])
        return self.messages.message(span)

    def _compress(self, span: slice, step: int) -> None:
        """Makes the changes in flight of a range what their message means, if there are messages."""
        if self.messages is not None:
            self.messages.compress(span, step, self.in_flight)

    @abstractmethod
    def clear(self, span: slice) -> None:
        """Forgets the changes of a range."""

    @abstractmethod
    def keep(self, span: slice) -> None:
        """Keeps what the part has of its own in a range, in which new values arrive next."""

    @abstractmethod
    def install(self, span: slice, unheld: Sequence[str]) -> None:
        """Puts what new parameters lack over them.

        Args:
            span: where the parameters are new.
            unheld: of "in_flight" and "accumulated", the changes which they do not hold.
        """

    def _changed(self, span: slice) -> None:
        """Makes the bfloat16 copy of a range again, if there is one."""
        vectors = self._vectors
        if vectors.copy is not None:
            vectors.device.copy(vectors.copy[span], vectors.parameters[span])


class ChangeAccumulation(PushedChanges):
    """Knows what updates have changed since the last push: the parameters before less those after."""

    def __init__(
        self,
        optimizer: Optimizer,
        vectors: Vectors,
        *,
        memory: Callable[[int], npt.NDArray[np.uint8] | None] = lambda n_bytes: None,
        messages: PushMessages | None = None,
    ) -> None:
        """Begins without changes, see `PushedChanges`."""
        super().__init__(optimizer, vectors, memory=memory, messages=messages)
        # The parameters when the last changes were pushed.
        self._since = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)
        self._since[:] = vectors.parameters

    @override
    def swap_buffers(self, span: slice, step: int = 0) -> None:
        parameters = self._vectors.parameters[span]
        self.in_flight[span] = self._since[span] - parameters
        self._since[span] = parameters
        self._compress(span, step)

    @override
    def clear(self, span: slice) -> None:
        self._since[span] = self._vectors.parameters[span]

    @override
    def keep(self, span: slice) -> None:
        """Keeps the changes of a range, in which new values arrive next."""
        self._kept[span] = self._since[span] - self._vectors.parameters[span]

    @override
    def install(self, span: slice, unheld: Sequence[str]) -> None:
        """Makes the changes kept by `keep` again, over new parameters, see `PushedChanges`."""
        parameters = self._vectors.parameters
        if "in_flight" in unheld:
            parameters[span] -= self.in_flight[span]
        self._since[span] = parameters[span]
        if "accumulated" in unheld:
            parameters[span] -= self._kept[span]
        if unheld:
            self._changed(span)
