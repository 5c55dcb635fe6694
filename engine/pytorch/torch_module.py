"""A module of PyTorch, the tensors that it is called with, and its loss, in one description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

import torch

from partita.engine.pytorch.example_args import Arguments
from partita.engine.pytorch.from_torch import from_torch
from partita.engine.pytorch.imported_network import ImportedNetwork
from partita.layers import HalfSquaredError, SoftmaxCrossEntropy

StandIn: TypeAlias = Literal["cross-entropy", "squared-error"]
"""A loss in the place of the module's own."""

POSITIONS: Final = 2
"""Most dimensions of scores, behind the examples, that are taken for classes: of a sequence, for example."""


@dataclass(frozen=True)
class TorchModule:
    """A module with a loss, and the network that it becomes when that is first asked for.

    Args:
        module: with the numbers that the network begins with; it stays as it is.
        example_args: a tensor for each input, in order or by name, with two examples or more.
        loss: stands for the loss of a module that returns scores; if not given, cross-entropy over the last
            dimension, or the squared error where the scores are no classes. A module that returns its loss
            keeps that.
        target: name of the target of that loss in the network; `<output>_target` if not given.
        name: of the network; that of the module's class if not given.
        opaque: whether parts that have operations without layers stay as they are; see `from_torch`.
    """

    module: torch.nn.Module
    example_args: Arguments
    loss: StandIn | None = None
    target: str = ""
    name: str = ""
    opaque: bool = False

    @property
    def network(self) -> ImportedNetwork:
        """The network, with its loss. Raises ValueError where `from_torch` does."""
        return self._network[0]

    @property
    def stand_in(self) -> StandIn | None:
        """The loss in the place of the module's own; None if that is used."""
        return self._network[1]

    @cached_property
    def _network(self) -> tuple[ImportedNetwork, StandIn | None]:
        net = from_torch(self.module, self.example_args, name=self.name, opaque=self.opaque)
        if net.loss:
            return net, None
        scores, shape = net.output, net.output.shape
        target = net.target(self.target or f"{scores.name}_target")
        classes = len(shape) <= POSITIONS and shape[-1] > 1
        found = self.loss or ("cross-entropy" if classes else "squared-error")
        make = SoftmaxCrossEntropy() if found == "cross-entropy" else HalfSquaredError()
        net.loss = make(scores, target)
        return net, found
