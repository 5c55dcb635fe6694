"""Changes of a part's parameters, for what it sends to the shards: whatever its optimizer has made of them.

Nothing is added up in a step: what has changed since the last push is the parameters of then less those of
now. The module must not know messages, or when anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.updates import LocalOptimizer


class ChangeAccumulation(LocalOptimizer):
    """Updates the part's own parameters, and knows what that has changed since the last push.

    A change is what shards subtract: the parameters before less those after.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        vectors: Vectors,
        *,
        memory: Callable[[int], npt.NDArray[np.uint8] | None] = lambda n_bytes: None,
    ) -> None:
        """Begins without changes.

        Args:
            optimizer: see `LocalOptimizer`; its state is the part's own, and begins anew with its process.
            vectors: see `LocalOptimizer`; without tables of which gradients are a few rows.
            memory: gives the changes in flight memory that shards read, see `Mailbox.memory`.
        """
        super().__init__(optimizer, vectors)
        device, shape, dtype = vectors.device, vectors.parameters.shape, vectors.dtype
        self._since = device.zeros(shape, dtype)  # the parameters when the last changes were pushed
        self._since[:] = vectors.parameters
        self._kept = device.zeros(shape, dtype)  # the changes in a range that new values arrive in
        shared = memory(self._since.nbytes) if device.is_host else None
        self.in_flight = device.zeros(shape, dtype) if shared is None else shared.view(dtype)

    def swap_buffers(self, span: slice, step: int = 0) -> None:
        """Moves the changes of a range into flight, and starts from none."""
        parameters = self._vectors.parameters[span]
        self.in_flight[span] = self._since[span] - parameters
        self._since[span] = parameters

    def clear(self, span: slice) -> None:
        """Forgets the changes of a range."""
        self._since[span] = self._vectors.parameters[span]

    def keep(self, span: slice) -> None:
        """Notes the changes of a range, in which new values arrive next."""
        self._kept[span] = self._since[span] - self._vectors.parameters[span]

    def install(self, span: slice, unheld: Sequence[str]) -> None:
        """Makes the changes noted by `keep` again, over new parameters.

        Args:
            span: where the parameters are new.
            unheld: of "in_flight" and "accumulated", the changes which they do not hold.
        """
        parameters = self._vectors.parameters
        if "in_flight" in unheld:
            parameters[span] -= self.in_flight[span]
        self._since[span] = parameters[span]
        if "accumulated" in unheld:
            parameters[span] -= self._kept[span]
        if unheld and self._vectors.copy is not None:
            self._vectors.device.copy(self._vectors.copy[span], parameters[span])
