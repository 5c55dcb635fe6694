"""Messages of a run that is watched: what hosts are asked to measure, and what they report.

A lane is one machine's share of a step. It is folded on the host that played it, so its size has a bound
whatever the program is.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from partita.engine.protocol.message_base import Count

Kind: TypeAlias = Literal["forward", "backward", "update", "other", "send", "receive", "wait"]
"""Kinds of activity in a lane; time that no interval covers is idle."""

GROUP_OF: Final[dict[Kind, Literal["compute", "transfer", "wait"]]] = {
    "forward": "compute",
    "backward": "compute",
    "update": "compute",
    "other": "compute",
    "send": "transfer",
    "receive": "transfer",
    "wait": "wait",
}
"""The three groups of the kinds: kernels, messages, and waiting for a message."""


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """A span of a machine's step in which it did one kind of thing.

    Args:
        start_s, stop_s: seconds from the beginning of the step, which is that of its first machine.
        kind: see `Kind`.
        what: the instruction and its buffer as text, "FORWARD hidden"; of a wait, the buffer that is missing
            in words, "activations of hidden". Where short intervals were joined, that of the longest of them.
        layer: the layer whose numbers are computed, sent or missing; "" for none.
        peer: the machine that is sent to, received from or waited for; -1 for none.
        joined: the number of instructions and gaps that the interval stands for.
    """

    start_s: float
    stop_s: float
    kind: Kind
    what: str
    layer: str = ""
    peer: int = -1
    joined: Count = 1


class Waited(msgspec.Struct, frozen=True, array_like=True):
    """Time of a step in which a machine had nothing to do because a message was missing.

    Args:
        peer: the machine that sends the message.
        seconds: the sum over the step.
        what: the buffer that was waited for longest, in words.
    """

    peer: int
    seconds: float
    what: str


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's share of one step. The four times add up to the step, and are exact however few intervals
    there are.

    Args:
        machine: number of the machine in the plan.
        compute_s: seconds in which at least one kernel thread was busy.
        transfer_s: seconds in which none was, and a message was sent or received.
        wait_s: seconds in which neither happened, and a message that could be used was missing.
        idle_s: all others, until the last machine of the step is done.
        between_s: seconds from the end of the machine's step before until the beginning of this one: for
            updates, pushes, and waiting for shards or replicas. None where not known, as in a prediction.
        uncertainty_s: the largest possible shift of all times of this lane against other lanes.
        instructions: number of instructions of the machine's program.
        intervals: at most `MOST_INTERVALS`, in order of time; they do not overlap.
        waited: waits by machine, longest first; their sum is `wait_s`.
    """

    machine: int
    compute_s: float
    transfer_s: float
    wait_s: float
    idle_s: float
    between_s: float | None = None
    uncertainty_s: float = 0.0
    instructions: Count = 0
    intervals: tuple[Interval, ...] = ()
    waited: tuple[Waited, ...] = ()


MOST_INTERVALS: Final = 160
"""Largest number of intervals of a lane: more than a page has pixels for, and about 8 kB."""
