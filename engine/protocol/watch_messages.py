"""Messages of a run that is watched: what hosts are asked to measure, and what they report.

A lane is one machine's share of a step. It is folded on the host that played it, so its size has a bound
whatever the program is.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from partita.engine.protocol.message_base import Count, MessageStruct

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


class Watch(MessageStruct, frozen=True, tag=True):
    """Asks a host for a `HostReport`, about once a second.

    `sent_s` is the sender's own clock. A part records its steps whose number is a multiple of `step_every`,
    so that all parts of a replica record the same ones; 0: none.
    """

    sent_s: float
    step_every: Count = 0


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """Counters of a host's mailbox, since its process began; bytes of payloads, without headers.

    Args:
        step_bytes: (machine of the replica, bytes sent to it in activations and gradients of a step).
        push_bytes, pushes: gradients sent to shards; of a shard, received.
        pull_bytes, pulls: parameters received from shards; of a shard, sent.
        replica_bytes: sent to parts of other replicas, or to the other copy of a shard.
        sent_bytes, received_bytes: all payloads.
        shared_bytes: those of the sent ones that went through shared memory.
        refused: messages out of place.
        replica_messages: those that carried `replica_bytes`.
    """

    step_bytes: tuple[tuple[Count, Count], ...] = ()
    push_bytes: Count = 0
    pushes: Count = 0
    pull_bytes: Count = 0
    pulls: Count = 0
    replica_bytes: Count = 0
    sent_bytes: Count = 0
    received_bytes: Count = 0
    shared_bytes: Count = 0
    refused: Count = 0
    replica_messages: Count = 0


class PresentWait(msgspec.Struct, frozen=True, array_like=True):
    """Something of another host that the sender gets no further without, for so many seconds by now."""

    host: str
    what: str
    waited_s: float


class RecordedStep(msgspec.Struct, frozen=True, array_like=True):
    """A step that a part has recorded, on its own clock.

    Args:
        number: of the step, alike on all parts of the replica while their processes live.
        step: its number within the replica.
        began_s, over_s: the begin and the end of this machine's share (seconds).
        cost_s: seconds that it took to fold it.
        lane: the machine's share; its times count from `began_s`.
    """

    number: Count
    step: Count
    began_s: float
    over_s: float
    cost_s: float
    lane: Lane


class HostReport(MessageStruct, frozen=True, tag=True):
    """Answers `Watch`; sent once more with the end of the host's work.

    Args:
        sent_s: that of the question.
        received_s, replied_s: when it was received and answered, by the sender's own clock.
        pid: the process; hosts may be threads of one.
        cores: cores that the process may use.
        resident_bytes: its memory in RAM.
        pss_bytes: likewise, with each shared page divided by its users; None where the system does not say.
        cpu_s: its processor seconds so far.
        traffic: what it has sent and received.
        steps: steps that a part has computed in this process.
        staleness: pushes by staleness, see `records.HostTraffic`.
        waits: present waits, longer than a second.
        recorded: the newest step that was recorded since the last report.
        clock: identifies the clock, if other processes may have the same one; "": no other has it.
    """

    sent_s: float
    received_s: float
    replied_s: float
    pid: Count
    cores: Count
    resident_bytes: Count
    pss_bytes: Count | None
    cpu_s: float
    traffic: Traffic
    steps: Count = 0
    staleness: tuple[Count, ...] = ()
    waits: tuple[PresentWait, ...] = ()
    recorded: RecordedStep | None = None
    clock: str = ""


MOST_STALENESS: Final = 15
"""Staleness from which on pushes are counted together."""
