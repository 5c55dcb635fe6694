"""Messages of Sandblaster: the coordinator sends commands to shards, and work units to replicas."""

from __future__ import annotations

from partita.engine.protocol.commands import Operation, Scalars
from partita.engine.protocol.message_base import Count, MessageStruct


class Command(MessageStruct, frozen=True, tag=True):
    """Orders a shard to execute operations, once: numbers rise, and one below its last is ignored.

    A new one drops an evaluation that is under way. The number of a command that evaluates names the
    evaluation.
    """

    number: Count
    operations: tuple[Operation, ...]


class CommandResult(MessageStruct, frozen=True, tag=True):
    """The scalars of a shard's slice, except those of `Evaluate`. Repeated for a repeated command."""

    number: Count
    scalars: Scalars


class MissingUnits(MessageStruct, frozen=True, tag=True):
    """Answers a repeat of a command in its evaluation: the work units that a shard still lacks.

    Ranges `[start, stop)` of their numbers, ascending; empty while it executes the operations of the command.
    """

    number: Count
    units: tuple[tuple[Count, Count], ...]


class CommandsMissing(MessageStruct, frozen=True, tag=True):
    """Answers a command whose predecessors the shard lacks: its log was lost. All shards must go back.

    `last` is the number of the last command that it has; 0: of none.
    """

    number: Count
    last: Count


class EvaluationSum(MessageStruct, frozen=True, tag=True):
    """The record of a finished sum of an evaluation (the payload: all of the shard's numbers of the vector).

    Never sent by itself: in a log, or in a `RecordCopy`.
    """

    evaluation: Count
    vector: str


class Assignment(MessageStruct, frozen=True, tag=True):
    """Assigns all parts of a replica a work unit of an evaluation: portions `[first, first + count)`.

    `sequence` counts the assignments of a replica's process, from 0; they are executed in this order.
    """

    evaluation: Count
    sequence: Count
    unit: Count
    first: Count
    count: Count


class AssignmentResult(MessageStruct, frozen=True, tag=True):
    """Sums over the examples of an assignment whose losses this part computes. Repeated on request.

    `read` has the sums of reading the data since the part's result before, see `Report`.
    """

    sequence: Count
    evaluation: Count
    unit: Count
    loss: float
    correct: Count
    sums: tuple[float, ...] = ()
    read: tuple[float, ...] = ()


class FetchPoint(MessageStruct, frozen=True, tag=True):
    """Asks a shard for its slice of `x` in the first evaluation above `after`: answered when that begins."""

    after: Count


class Point(MessageStruct, frozen=True, tag=True):
    """Answers `FetchPoint`. The payload is the machine's slice of `x` in this evaluation."""

    evaluation: Count


class Contribution(MessageStruct, frozen=True, tag=True):
    """The payload: a machine's gradient of a shard's numbers, summed over the portions of a work unit."""

    evaluation: Count
    unit: Count


class ContributionAck(MessageStruct, frozen=True, tag=True):
    """The contribution or another one of this work unit is counted, or the evaluation has ended."""

    evaluation: Count
    unit: Count
