"""DiLoCo: rounds of local steps, and an outer optimizer for what they have changed.

All replicas keep an anchor, the parameters at the beginning of the round. After `every` local steps the mean
over the replicas of "anchor less parameters" is the gradient of an outer optimizer, SGD with Nesterov
momentum, which updates the anchor; the next round begins there. The inner optimizer's state is each
replica's own, and outlives the rounds.

Source: Douillard and others, "DiLoCo: distributed low-communication training of language models", 2023,
algorithm 1 and section 3 (AdamW inside, Nesterov momentum of 0.9 at a rate of 0.7 outside, H = 500).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from partita.engine.drivers.local_sgd import LocalDriver
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import AdamW, Momentum, Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member


@dataclass(frozen=True)
class DiLoCo(LocalDriver):
    """The settings of DiLoCo.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan.
        every: steps of a round. None: one round, to the end of the work.
        by: how replicas add up vectors at the end of a round.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
        elastic: the least and the most replicas, as under `AllReduce`.
        loss_scale: of a plan in float16: the settings of each replica's scale; None: `LossScale()`.
        outer_learning_rate: of the outer optimizer. With 1, and no momentum, DiLoCo is `LocalSGD`.
        outer_momentum: of the outer optimizer, from 0 to below 1.
        nesterov: whether that momentum is Nesterov's.
        compress: makes the messages of what replicas have changed, as under `LocalSGD`.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **LocalDriver._meant,
        "outer": "write outer_learning_rate=0.7, outer_momentum=0.9",
        "outer_optimizer": "write outer_learning_rate=0.7, outer_momentum=0.9",
        "outer_lr": ("outer_learning_rate",),
    }

    optimizer: Optimizer = field(default=AdamW(0.001), metadata={"chosen": "adamw"})
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    compress: Compressor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.outer  # raises ValueError where a number is out of range

    @property
    def outer(self) -> Optimizer:
        """The optimizer of the anchor."""
        return Momentum(self.outer_learning_rate, momentum=self.outer_momentum, nesterov=self.nesterov)

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {"anchor": Kept(self.outer)}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return ("delta",)

    @override
    def end_of_round(self, me: Member) -> a.Program:
        yield from self.mean_change(me)
        yield a.Apply(self.outer, gradient="delta", to="anchor")
        yield a.Combine("parameters", {"anchor": 1.0})
        yield a.SafePoint()
