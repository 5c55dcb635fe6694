"""Messages of a user's calls of a session: steps, parameters, and questions for the clock."""

from __future__ import annotations

from partita.engine.protocol.message_base import Count, MessageStruct


class Play(MessageStruct, frozen=True, tag=True):
    """Asks a part for one step over a batch of which the first `examples` are real.

    The payload is the machine's inputs, in the program's order; without one, the last batch is used again.
    `collect` names buffers to send back; with `trace`, the times of the instructions follow them. Of a
    program in phases, the step plays `phase`. `visit` is how often the examples were seen before, for random
    numbers. `onward` are the examples of the step before, by their places in its batch, that wait for the
    phase after its own.
    """

    step: Count
    examples: Count
    collect: tuple[str, ...] = ()
    trace: bool = False
    phase: Count = 0
    visit: Count = 0
    onward: tuple[Count, ...] = ()


class Played(MessageStruct, frozen=True, tag=True):
    """Answers `Play`: sums over the batch, seconds in the step and in kernels, and what the part has sent.

    The payload is what was collected.
    """

    step: Count
    loss: float
    correct: Count
    step_s: float
    busy_s: float
    sent_messages: Count
    sent_bytes: Count
    sums: tuple[float, ...] = ()


class Ping(MessageStruct, frozen=True, tag=True):
    """Asks a part for its clock. `sent_s` is the sender's own."""

    sent_s: float


class Pong(MessageStruct, frozen=True, tag=True):
    """Answers `Ping` at once: its `sent_s`, and when it was received and answered by the sender's clock."""

    sent_s: float
    received_s: float
    replied_s: float


class Load(MessageStruct, frozen=True, tag=True):
    """Gives a part its parameters (the payload: the machine's vector). Answered by `Loaded`."""


class Loaded(MessageStruct, frozen=True, tag=True):
    """Answers `Load`: the part has its parameters."""
