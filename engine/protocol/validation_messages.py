"""Messages of validations: minibatches of the validation data, and the sums over each of them."""

from __future__ import annotations

from partita.engine.protocol.message_base import Count, MessageStruct, UnitRange


class ValidationWork(MessageStruct, frozen=True, tag=True):
    """Has a part evaluate minibatches of the validation data, in this order; all parts of a replica alike.

    A larger `round` ends the one before. `evaluation` is the command of a batch method by which shards send
    the point; 0 where parts have the parameters, or fetch them. Repeated until all minibatches are answered:
    a part answers those that it has done from memory.
    """

    round: Count
    units: tuple[UnitRange, ...]
    evaluation: Count = 0


class ValidationResult(MessageStruct, frozen=True, tag=True):
    """A part's sums over a minibatch of the validation data: the loss, the examples that are right, and the
    further ones in the order in which parts report them.
    """

    round: Count
    unit: Count
    loss: float
    correct: Count
    sums: tuple[float, ...] = ()
