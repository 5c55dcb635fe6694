"""A shard's parameters as torch updates them, for contenders that bring a transport and no optimizer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class TorchShard:
    """Parameters and PyTorch's fused Adagrad, by ranges, so that chunks can be updated as they come.

    Args:
        size: parameters of the shard.
        chunk: parameters in a range; the last may have fewer.
    """

    def __init__(self, size: int, chunk: int) -> None:
        torch.set_num_threads(1)
        self.values = np.zeros(size, np.float32)
        ranges = [self.values[start : start + chunk] for start in range(0, size, chunk)]
        self._tensors = [torch.from_numpy(numbers).requires_grad_() for numbers in ranges]
        self._optimizers = [
            torch.optim.Adagrad([one], lr=0.01, eps=1e-8, fused=True) for one in self._tensors
        ]

    def update(self, index: int, gradient: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Updates a range by its gradient `[n]`, and returns the values themselves."""
        tensor = self._tensors[index]
        tensor.grad = torch.from_numpy(gradient)
        self._optimizers[index].step()
        return tensor.detach().numpy()
