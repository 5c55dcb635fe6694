"""The driver of evaluations and predictions by several replicas, which share minibatches of data."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from partita.engine.drivers.session import Steps
from partita.engine.protocol.actions import Plan, Work
from partita.engine.protocol.views import Outline
from partita.layers.checks import check_whole


@dataclass(frozen=True)
class Evaluate(Steps):
    """The settings of an evaluation.

    Args:
        train, optimizer, overlap: left out: a step has no backward pass.
        replicas: copies of the network, each over all machines of the plan.

    Raises:
        ValueError: a setting is out of range.
    """

    replicas: int = 1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "replicas", check_whole(self.replicas, "replicas is"))

    @override
    def coordinator(self, run: Outline) -> Plan:
        yield Work(epochs=1)
