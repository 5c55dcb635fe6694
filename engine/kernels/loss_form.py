"""The kernel of a loss by its `forward`, on any device. Importing this imports torch."""

from __future__ import annotations

from dataclasses import replace

import torch

from partita.engine.kernels.kernel import Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.losses import refuse_label
from partita.engine.kernels.tensors import as_tensor
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Span
from partita.layers.contract import Step
from partita.layers.losses import Loss


class LossFormKernel(LayerFormKernel, LossKernel):
    """A loss's `forward`: the losses of the examples, by a machine's scores.

    A third input has a factor for each node of the loss, by which its loss and gradient are multiplied.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        assert isinstance(context.grid.layer, Loss), f"{context.label} is no loss"
        self._loss, output = context.grid.layer, as_tensor(arrays.output)
        shape = (4, context.batch)
        self._evaluated = torch.zeros(shape, dtype=torch.float64, device=output.device)
        """For each example the loss, how many labels are right, are wrong in that they name no score, and
        count."""
        self._learns = any(grad is not None for grad in arrays.grad_inputs)
        self._grad = torch.ones_like(output)
        self._weights = as_tensor(arrays.inputs[2])[None] if len(arrays.inputs) > 2 else None
        context = replace(
            context,
            sources=context.sources[:2],
            windows=context.windows[:2],
            grad_windows=context.grad_windows[:2],
        )
        given = replace(arrays, inputs=arrays.inputs[:2], grad_inputs=arrays.grad_inputs[:2])
        super().__init__(context, given, pool)

    def windows(self, rows: Span) -> tuple[Span, ...]:
        """The machine's scores; of a target with a number for each score, those of these."""
        (scores, *targets), (source, *others) = self.context.windows, self.context.sources
        pairs = zip(targets, others, strict=True)
        return scores, *(scores if source.shape == other.shape else target for target, other in pairs)

    def grad_output(self, rows: Span) -> torch.Tensor | None:
        """One of so many examples (and nodes) for each loss, times its weights."""
        return self._grad if self._learns else None

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the loss of each example, as far as it depends on this machine's scores."""
        compute = self.forward_rows((self.context.rows,))

        def call() -> None:
            weight = self._loss.loss_weight * self.loss_scale
            self._grad.fill_(weight / (self.mean_over * self.context.grid.n_nodes))
            if self._weights is not None:
                self._grad.mul_(self._weights.reshape(self._grad.shape))
            compute()

        return call

    def keep(self, output: torch.Tensor, step: Step, inputs: tuple[torch.Tensor, ...]) -> None:
        """Keeps the losses, and which labels are right."""
        with torch.no_grad():
            if self._weights is not None:
                output = output * self._weights.reshape(output.shape)
                as_tensor(self.arrays.output).copy_(output)
            self._evaluated[0] = output.flatten(0, -2).double().mean(0)
            right = self._loss.right(step, inputs)
            if right is not None:
                labels = inputs[1][self._loss.label_rows]
                counts = torch.ones_like(labels, dtype=torch.bool)
                if self._loss.ignored is not None:
                    counts = labels != self._loss.ignored
                self._evaluated[1] = right.reshape(-1, right.shape[-1]).sum(0)
                self._evaluated[2] = (self._no_class(labels) & counts).sum(0)
                self._evaluated[3] = counts.sum(0)

    def _no_class(self, labels: torch.Tensor) -> torch.Tensor:
        return (labels < 0) | (labels >= self.context.sources[0].shape[-1])

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses, and the number of right labels; waits for both.

        Raises:
            ValueError: a label names no score.
        """
        loss, n_right, n_wrong, _ = self._evaluated[:, :count].sum(1).tolist()
        if n_wrong:
            labels = as_tensor(self.arrays.inputs[1])[self._loss.label_rows, :count]
            wrong = self._no_class(labels)
            if self._loss.ignored is not None:
                wrong &= labels != self._loss.ignored
            refuse_label(self.context, int(labels[wrong][0]))
        return loss, int(n_right)

    def count_labels(self, count: int) -> int:
        """The labels that are not ignored."""
        return int(self._evaluated[3, :count].sum())
