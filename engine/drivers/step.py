"""What a session's step comes to, and how a host's failure reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.trace import StepTrace


class HostError(RuntimeError):
    """What a host ran into, in one sentence. Its own traceback, if there is one, is the note.

    Attributes:
        host: its name.
    """

    def __init__(self, host: str, reason: str, remote_traceback: str = "") -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        if remote_traceback:
            self.add_note(f"On {host}:\n{remote_traceback}")


@dataclass(frozen=True)
class Sent:
    """What a part has sent to other parts in a step: messages, and bytes of their tensors."""

    messages: int
    n_bytes: int


@dataclass(frozen=True)
class Step:
    """What a step came to.

    Args:
        loss: the mean loss of the real examples; NaN where no loss was computed.
        correct: how many of them the losses found right.
        step_s: seconds of the slowest part.
        busy_s: seconds in kernels, for each part.
        sent: what each part has sent to others.
        states: what was collected, by buffer: node-major, `[*grid, batch]`.
        vectors: collected parameters or gradients, whole, by their name: "gradient" -> {"dense.weight": ...}.
        trace: what each part did when, where that was asked for.
    """

    loss: float
    correct: int
    step_s: float
    busy_s: tuple[float, ...]
    sent: tuple[Sent, ...]
    states: Mapping[str, Array] = field(default_factory=dict)
    vectors: Mapping[str, dict[str, Vector]] = field(default_factory=dict)
    trace: StepTrace | None = None
