"""The kernel of a loss by its `forward`, on any device. Importing this imports torch."""

from __future__ import annotations

import torch

from partita.engine.kernels.kernel import Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.layer_form import FormPiece, LayerFormKernel
from partita.engine.kernels.losses import refuse_label
from partita.engine.kernels.tensors import as_tensor
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Span
from partita.layers.contract import Step
from partita.layers.losses import Loss


class LossFormKernel(LayerFormKernel, LossKernel):
    """A loss's `forward`: the losses of the examples, by a machine's scores."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        output = as_tensor(arrays.output)
        shape = (3, context.batch)
        self._evaluated = torch.zeros(shape, dtype=torch.float64, device=output.device)
        """For each example the loss, whether the scores are right, and whether its label names no score."""
        self._learns = any(grad is not None for grad in arrays.grad_inputs)
        self._grad = torch.ones_like(output)
        super().__init__(context, arrays, pool)

    def windows(self, rows: Span) -> tuple[Span, ...]:
        """The machine's scores; of a target with a number for each score, those of these."""
        (scores, target), (source, other) = self.context.windows, self.context.sources
        return scores, scores if source.shape == other.shape else target

    def grad_output(self, piece: FormPiece) -> torch.Tensor | None:
        """One of so many examples for each loss."""
        return self._grad if self._learns else None

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the loss of each example, as far as it depends on this machine's scores."""
        compute = self.forward_rows((self.context.rows,))

        def call() -> None:
            self._grad.fill_(1 / self.mean_over)
            compute()

        return call

    def keep(self, output: torch.Tensor, step: Step, inputs: tuple[torch.Tensor, ...]) -> None:
        """Keeps the losses, and which examples are right."""
        layer = self.context.grid.layer
        assert isinstance(layer, Loss), f"{self.context.label} is no loss"
        with torch.no_grad():
            self._evaluated[0] = output[0]
            right = layer.right(step, inputs)
            if right is not None:
                labels = inputs[1][0]
                self._evaluated[1] = right
                self._evaluated[2] = (labels < 0) | (labels >= step.sources[0][0])

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses, and the number of right examples; waits for both.

        Raises:
            ValueError: a label names no score.
        """
        loss, n_right, n_wrong = self._evaluated[:, :count].sum(1).tolist()
        if n_wrong:
            labels = as_tensor(self.arrays.inputs[1])[0, :count]
            refuse_label(self.context, int(labels[self._evaluated[2, :count] > 0][0]))
        return loss, int(n_right)
