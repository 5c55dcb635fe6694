"""Messages of replicas that do their steps together: views, and exchanges of numbers."""

from __future__ import annotations

import msgspec

from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.message_base import Count, MessageStruct

# Views: which replicas do the next steps together.


class Pause(MessageStruct, frozen=True, tag=True):
    """Announces a view: a part drops what it does, and answers with `Paused`. Repeated until then."""

    view: Count


class Paused(MessageStruct, frozen=True, tag=True):
    """A part does nothing until the view is published. It has the state after `step` steps.

    None: it has none, because it was receiving one. `points`: safe points of that state after the first one
    of its step. `completes`: it can reach the next safe point without other replicas; `within`: which is of
    the same step. `alone`: its replica has made the state alone, which others do not have. `loaded`: the
    state is a checkpoint's, which was read. `loss_scale`: of that state; None where losses are not scaled, or
    its first step is to come.
    """

    view: Count
    step: Count | None
    completes: bool = False
    alone: bool = False
    points: Count = 0
    within: bool = False
    loaded: bool = False
    loss_scale: ScaleState | None = None


class StateCopy(msgspec.Struct, frozen=True, array_like=True):
    """The part of a machine in replica `source` sends its state to that in replica `target`."""

    machine: Count
    source: Count
    target: Count


class View(MessageStruct, frozen=True, tag=True):
    """A view: its replicas, and the step that they go on from. Repeated until `Joined`.

    Args:
        number: of the view.
        members: its replicas, ascending.
        directory: the revision in which they can all be reached.
        step: the next step.
        position: of that step: examples before it.
        until: the position at which the work ends.
        copies: the copies of state that come first.
        places: for each member, a number for where its part of the receiver's machine runs (`Peer.machine`);
            empty where each runs on its own.
        scale: factor of the learning rate.
        points: safe points of the state that they go on from, after the first one of its step.
        anew: a member's state may have come from another one, or from a file, since its last safe point.
        loss_scale: of that state; None where losses are not scaled, or their first step is to come.
    """

    number: Count
    members: tuple[Count, ...]
    directory: Count
    step: Count
    position: Count
    until: Count
    copies: tuple[StateCopy, ...] = ()
    places: tuple[Count, ...] = ()
    scale: float = 1.0
    points: Count = 0
    anew: bool = False
    loss_scale: ScaleState | None = None


class Joined(MessageStruct, frozen=True, tag=True):
    """A part has received this view."""

    view: Count


class Reduced(MessageStruct, frozen=True, tag=True):
    """The sender has completed the exchanges of this view up to this number.

    Its replica's other parts wait for that before they go on, and who sends it results before it overwrites
    them. `asks`: the receiver's own number is to be sent back, if it is as large.
    """

    view: Count
    number: Count
    asks: bool = False


# Exchanges among the parts that hold the same parameters, of several replicas.


class PartialChunk(MessageStruct, frozen=True, tag=True):
    """The payload: the sender's sum of one piece of an exchange, over itself and what it has added.

    `exchange` tells apart the exchanges of a view; `number` counts the uses of one.
    """

    view: Count
    exchange: Count
    number: Count
    piece: Count


class FinalChunk(MessageStruct, frozen=True, tag=True):
    """The payload: the final numbers of one piece, which the receiver takes over.

    `dropped` names the ranks whose contributions are not in them.
    """

    view: Count
    exchange: Count
    number: Count
    piece: Count
    dropped: tuple[Count, ...] = ()


class ChunkRequest(MessageStruct, frozen=True, tag=True):
    """Asks a member for pieces that the sender lacks: ranges `[start, stop)` of partial and final ones."""

    view: Count
    exchange: Count
    number: Count
    partial: tuple[tuple[Count, Count], ...]
    final: tuple[tuple[Count, Count], ...]


class ExchangeAck(MessageStruct, frozen=True, tag=True):
    """The sender has every piece of this exchange. Only where a step may be summed without all members."""

    view: Count
    exchange: Count
    number: Count
