"""Records of a run about itself, from its beginning to its end.

A stream is a sequence of records, each a JSON object on a line of its own with its kind as "type". Its first
record is `RunBegan`, the last of a run that ended is `RunEnded`. Any prefix of a stream is legal, and says
all that is known by then. Readers ignore fields that they do not know; a change that they could misread
raises `VERSION`.

Times are seconds: `at_s` counts from the beginning of the run (`RunBegan.started_unix_s`) on the clock of the
coordinator. Counters are totals since the beginning of the process that counts, unless a field says
otherwise; a host that is started again begins anew, with a higher incarnation. A number that is not known is
null, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from partita.engine.protocol.watch_messages import Interval as Interval
from partita.engine.protocol.watch_messages import Lane as Lane
from partita.engine.protocol.watch_messages import Waited as Waited

VERSION: Final = 1
"""Version of the records that this package writes, and the newest that it reads."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A record of a stream."""

    at_s: float
    """Seconds since the beginning of the run at which the record was made."""


# The run, and what was planned. Written once, first.


class PlannedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of the plan of one replica.

    Args:
        name: as plans print it, "local0".
        device: "cpu", or a GPU as "cuda:0".
        threads: kernel threads.
        memory_bytes: predicted memory of its part (windows, vectors, scratch; without Python itself and
            libraries); None where it cannot be predicted.
        memory_limit_bytes: the limit that the cluster states; None for no limit.
        parameters: number of parameters that it owns.
        push_bytes: bytes of a gradient that its part pushes to the shards at once; 0 without shards, and for
            batch methods.
        pull_bytes: bytes of the parameters that it fetches at once; likewise.
    """

    name: str
    device: str
    threads: int
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    parameters: int = 0
    push_bytes: int = 0
    pull_bytes: int = 0


class PlannedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of the network, and the boxes of it that each machine owns.

    Args:
        name: of the layer.
        kind: "Dense", or "Placeholder" for an input or a target.
        shape: of its grid of nodes.
        sources: the layers that it reads.
        pieces: (machine, box), where a box is `[start, stop]` for each axis of the shape; none for inputs.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    pieces: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()


class PlannedLink(msgspec.Struct, frozen=True, array_like=True):
    """The messages from one machine to another in one step: their number, and the bytes of their numbers."""

    source: int
    destination: int
    messages: int
    n_bytes: int


class RunBegan(_Record, frozen=True, kw_only=True, tag=True):
    """The run, its network and its plan. Always the first record, and written once: `at_s` is 0.

    A driver that starts with another one (a run of several trainers) writes one stream for each.

    Args:
        version: of the records, see `VERSION`.
        run: id of the run, hexadecimal.
        network: name of the network.
        driver: name of the driver, "Downpour".
        settings: the driver with all of its settings, as Python prints it.
        unit: the word for what `Progress.step` counts: "step", or "iteration" of a batch method.
        started_unix_s: when the run began, in seconds since 1970 (UTC).
        replicas, shards: their numbers.
        batch: examples of a replica in one step.
        examples: examples of an epoch; 0 where the number is not known.
        steps: steps of all replicas (or iterations) until the end; None where not known.
        steps_before: those that were done before this run, which goes on from a checkpoint.
        steps_per_epoch: of all replicas together; None where not known.
        machines: of the plan of one replica.
        layers: of the network, in order of computing.
        links: from machine to machine, in one step of one replica.
        links_text: the formula of the bytes of a step, in words with numbers.
        predicted_step_s: predicted seconds of one step; None where nothing was predicted.
        lower_bound_s: no plan of this network on these machines has a faster step; None likewise.
        predicted: the predicted step: a lane for each machine; empty likewise.
    """

    version: int = VERSION
    run: str
    network: str
    driver: str
    settings: str
    unit: str
    started_unix_s: float
    replicas: int
    shards: int
    batch: int
    examples: int
    steps: int | None
    steps_before: int = 0
    steps_per_epoch: int | None = None
    machines: tuple[PlannedMachine, ...]
    layers: tuple[PlannedLayer, ...]
    links: tuple[PlannedLink, ...]
    links_text: str = ""
    predicted_step_s: float | None = None
    lower_bound_s: float | None = None
    predicted: tuple[Lane, ...] = ()


class PlanPicture(_Record, frozen=True, kw_only=True, tag=True):
    """The plan as a picture: an SVG document. Written at most once; absent where it could not be drawn."""

    svg: str


# Hosts.

HostKind: TypeAlias = Literal["coordinator", "part", "shard", "backup"]
HostState: TypeAlias = Literal["starting", "preparing", "ready", "silent", "lost", "gone"]
"""starting: its process is launched and has sent nothing. preparing: it sets up its task and compiles. ready:
at work. silent: at work, but no message has come for `SILENT_S`. lost: it died or failed; another process
follows or the run ends. gone: it has ended and is not needed any more.
"""

SILENT_S: Final = 2.5
"""Seconds without any message after which a host counts as silent; it sends heartbeats several times as
often.
"""


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """A host: the newest process of this name.

    Args:
        name: "part 0.1", "shard 0", "backup 0" or "coordinator".
        kind: see `HostKind`.
        replica: of a part; None otherwise.
        machine: the number of a part's machine in the plan; None otherwise.
        incarnation: number of the process, from 0: each restart has the next one.
        state: see `HostState`.
        since_s: when it came into this state, in seconds of the run.
        place: label of the machine on which it runs; hosts with the same label may share memory. "" unknown.
        address: its endpoint, "tcp://127.0.0.1:40001"; "" before it has sent its first message, and for hosts
            of the coordinator's own process.
        pid: number of its process; 0 unknown.
        cores: cores that its process may use; 0 unknown.
        compiled: functions that it has compiled so far, while it prepares.
    """

    name: str
    kind: HostKind
    replica: int | None = None
    machine: int | None = None
    incarnation: int = 0
    state: HostState = "starting"
    since_s: float = 0.0
    place: str = ""
    address: str = ""
    pid: int = 0
    cores: int = 0
    compiled: int = 0


class Hosts(_Record, frozen=True, kw_only=True, tag=True):
    """Hosts that are new or have changed since the record before; each row replaces that of its name."""

    hosts: tuple[HostRow, ...]


# What happens inside of a step.


class SampledStep(_Record, frozen=True, kw_only=True, tag=True):
    """One step of one replica as it was measured: every few seconds, one.

    Args:
        replica: of the step.
        step: its number within the replica, from 0.
        step_s: seconds from the beginning of the first machine's step to the end of the last one's.
        lanes: of the machines that have reported it in time, by machine; mostly of all.
        cost_s: processor seconds that recording and folding took, over all machines.
    """

    replica: int
    step: int
    step_s: float
    lanes: tuple[Lane, ...]
    cost_s: float = 0.0


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A host that gets no further at present.

    Args:
        host: the one that waits. "coordinator" where it has received no sign of life of a host.
        on: the host that it waits for.
        what: what is missing, in words: "activations of hidden", "parameters", "a sign of life".
        since_s: when the wait began, in seconds of the run.
    """

    host: str
    on: str
    what: str
    since_s: float


class Waits(_Record, frozen=True, kw_only=True, tag=True):
    """All waits at present that last longer than a second; replaces those of the record before.

    A host that hangs or has died is named here within five seconds, at least by the coordinator.
    """

    waits: tuple[Wait, ...]


# How far the run is.


class ReplicaProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as far as its parts have reported.

    Args:
        replica: its number.
        step: steps that all of its parts have done, counted from the run's beginning (with those of a run
            from which it goes on).
        examples: examples behind these steps, since this run began.
        examples_per_s: over about the last second; None before the first two reports.
        loss: mean over the examples since the record before; None where there were none.
        pushes: gradients that shards have acknowledged, over all of its parts' processes; None without
            shards.
        staleness: mean over the pushes since the record before; None where there were none.
    """

    replica: int
    step: int
    examples: int
    examples_per_s: float | None = None
    loss: float | None = None
    pushes: int | None = None
    staleness: float | None = None


class Progress(_Record, frozen=True, kw_only=True, tag=True):
    """How far the run is, about once a second, and after each iteration of a batch method.

    Args:
        step: steps of all replicas, or iterations, with those before this run.
        epoch: passes over the data so far, as a fraction; None where not known.
        examples: examples of this run so far.
        examples_per_s: since the record before; None where there were none.
        loss: mean over the examples since the record before (an iteration: the value of the function).
        staleness: mean over all pushes so far; None before the first, and without shards.
        metrics: other figures by name, likewise: "accuracy", each loss where there are several, metrics of
            the user's, and of a batch method "gradient_norm", "evaluations" and others.
        replicas: those that have reported since the record before.
        remaining_s: estimated seconds until the end; None where not known.
        note: exceptional events of an iteration; "" for none.
    """

    step: int
    epoch: float | None = None
    examples: int = 0
    examples_per_s: float | None = None
    loss: float | None = None
    staleness: float | None = None
    metrics: Mapping[str, float | None] = {}
    replicas: tuple[ReplicaProgress, ...] = ()
    remaining_s: float | None = None
    note: str = ""


class Validation(_Record, frozen=True, kw_only=True, tag=True):
    """Figures over held-out examples after `step` steps of all replicas: "loss", "accuracy", and others."""

    step: int
    epoch: float | None = None
    examples: int = 0
    metrics: Mapping[str, float | None] = {}


# What hosts exchange and hold.


class HostTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one host, since its process began. Bytes are those of the numbers, without headers.

    Args:
        host, incarnation: the process.
        steps: steps that a part has finished in this process; 0 for others. Divides the bytes beside the
            plan's.
        step_bytes: (machine of the replica, bytes sent to it in activations, gradients and partial sums).
        push_bytes, pushes: gradients sent to shards (of a shard: received from parts), and their number.
        pull_bytes, pulls: parameters received from shards (of a shard: sent to parts), and their number.
        replica_bytes, replica_messages: sent to other replicas' parts (all-reduce), or between copies of a
            shard, and the number of messages with them.
        sent_bytes, received_bytes: all payloads.
        shared_bytes: those of them that were sent through shared memory.
        staleness: pushes by staleness: entry n counts those with n updates in between, the last one also
            those with more. Empty for hosts other than parts, and without shards.
        refused: messages that were out of place.
    """

    host: str
    incarnation: int = 0
    steps: int = 0
    step_bytes: tuple[tuple[int, int], ...] = ()
    push_bytes: int = 0
    pushes: int = 0
    pull_bytes: int = 0
    pulls: int = 0
    replica_bytes: int = 0
    replica_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    shared_bytes: int = 0
    staleness: tuple[int, ...] = ()
    refused: int = 0


class Exchanges(_Record, frozen=True, kw_only=True, tag=True):
    """Counters of hosts that have reported since the record before, every few seconds; each row replaces that
    of its name.
    """

    hosts: tuple[HostTraffic, ...]


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and processor time of one host's process.

    Args:
        host, incarnation, pid: the process. Hosts with the same pid and place are threads of one process,
            whose memory counts once.
        resident_bytes: memory of the process that is in RAM, with pages that it shares with others.
        pss_bytes: likewise, with each shared page divided by the number of processes that have it
            (proportional set size); None where the system does not say.
        cpu_s: processor seconds of the process so far.
    """

    host: str
    incarnation: int = 0
    pid: int = 0
    resident_bytes: int
    pss_bytes: int | None = None
    cpu_s: float | None = None


class Memory(_Record, frozen=True, kw_only=True, tag=True):
    """Memory of hosts that have reported since the record before; each row replaces that of its name."""

    hosts: tuple[HostMemory, ...]


# Events, and the end.

EventKind: TypeAlias = Literal[
    "started", "joined", "lost", "restarted", "left", "checkpoint", "warning", "note", "ended"
]


class Event(_Record, frozen=True, kw_only=True, tag=True):
    """Something that happened once.

    Args:
        kind: started: the run began to compute. joined: a host became ready that was not there at the start.
            lost: a process died, failed or was given up. restarted: its successor was launched. left: a
                replica
            left an elastic run. checkpoint: one was written. warning: a line that the run printed. note: any
            other. ended: as `RunEnded`.
        host: whom it happened to; "" for the run.
        text: one sentence.
        step: steps of all replicas by then; None where not known.
    """

    kind: EventKind
    text: str
    host: str = ""
    step: int | None = None


class RunEnded(_Record, frozen=True, kw_only=True, tag=True):
    """The end of the run, the last record.

    Args:
        outcome: "complete"; "interrupted": stopped by the user, with what was done kept; "failed".
        text: one sentence: the result, or the error.
        steps: steps of all replicas, or iterations, with those before this run.
        examples: examples of this run.
        seconds: of the run.
        lost_pushes: acknowledged pushes that a failure has cost; None where not known.
        checkpoint: number of the last checkpoint; None where there is none.
    """

    outcome: Literal["complete", "interrupted", "failed"]
    text: str
    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    lost_pushes: int | None = None
    checkpoint: int | None = None


Record: TypeAlias = (
    RunBegan
    | PlanPicture
    | Hosts
    | SampledStep
    | Waits
    | Progress
    | Validation
    | Exchanges
    | Memory
    | Event
    | RunEnded
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class MalformedRecord(ValueError):
    """A line that is no record of this version."""


def encode(record: Record) -> bytes:
    """Returns the line of a record, with its newline. Safe from several threads."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """Returns the record of a line, with or without its newline.

    Raises:
        MalformedRecord: the line is none, or of a newer version than `VERSION`.
    """
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"{line[:80]!r} is no record of a run: {error}") from error
    if isinstance(record, RunBegan) and record.version > VERSION:
        raise MalformedRecord(
            f"the stream has version {record.version}, and this installation reads up to {VERSION}; install "
            "a newer one"
        )
    return record
