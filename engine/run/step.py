"""The results of a session's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.trace import StepTrace


@dataclass(frozen=True)
class Sent:
    """Messages that a part has sent to other parts in a step, and bytes of their tensors."""

    messages: int
    n_bytes: int


@dataclass(frozen=True)
class Step:
    """Results of a step.

    Args:
        loss: mean loss of the real examples; NaN where no loss was computed.
        correct: number of examples that the losses found right.
        step_s: seconds of the slowest part.
        busy_s: seconds in kernels, for each part.
        sent: messages of each part to others.
        collected: collected activations and gradients of outputs, by buffer: node-major, `[*grid, batch]`.
        vectors: collected parameters or gradients, whole, by their name: "gradient" -> {"dense.weight": ...}.
        trace: trace of each part, if one was requested.
    """

    loss: float
    correct: int
    step_s: float
    busy_s: tuple[float, ...]
    sent: tuple[Sent, ...]
    collected: Mapping[str, Array] = field(default_factory=dict)
    vectors: Mapping[str, dict[str, Vector]] = field(default_factory=dict)
    trace: StepTrace | None = None
