"""Events of a coordinator beyond messages, its effects, and its settings.

The interpreter (in the user's process) starts and ends processes, writes manifests and shows progress. It
carries effects out in order, each finished before the next one starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from partita.engine.protocol.actions import Decision, Validate
from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.commands import Outcome, Scalars
from partita.engine.protocol.events import Died, Received, Refuse, Send, Tick
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.message_base import UnitRange
from partita.engine.protocol.watch_messages import HostReport

ProcessId: TypeAlias = tuple[str, int]
"""A process: (name, incarnation)."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Event, the first one: the coordinator's inbox is open, and hosts can be launched."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Event, answers `Restart` for each of its hosts: the process runs, with this public key (Z85).

    `machine` is the label of where it runs, see `Peer`.
    """

    name: str
    incarnation: int
    public_key: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """Event: the process of this host runs. Not reported for a host that a command starts."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Event: the user wants the run to end soon and to keep its results (Ctrl-C)."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """Event: the user wants a checkpoint soon."""


@dataclass(frozen=True, slots=True)
class SetScale:
    """Event: from the next safe point on, the optimizer's learning rate is multiplied by this factor."""

    scale: float


@dataclass(frozen=True, slots=True)
class Decided:
    """Event, answers `Validated`: how the run goes on."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Committed:
    """Event, answers `Commit`: the manifest is on disk."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """Event, answers `Commit`: the manifest could not be written."""

    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Effect: end every older process of these hosts, revoke its key, and launch these incarnations.

    The first launch of a run is one, too. A shard starts from its file of `checkpoint`, with the watermarks
    in it; None: from the parameters that the run itself started from, without watermarks. With `from_backup`
    it starts from what its backup has, instead. An old process that cannot be ended does no harm: a part's
    pushes count for its own incarnation, and a shard has no lease. The name of a shard's file contains its
    incarnation.
    """

    hosts: tuple[ProcessId, ...]
    checkpoint: int | None
    reason: str
    from_backup: bool = False


@dataclass(frozen=True, slots=True)
class Misbehaved:
    """Event: the interpreter has a message of this process that it may not send."""

    name: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndHosts:
    """Effect: end every process of these hosts, and revoke their keys. A later `Restart` may follow."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Starting:
    """Effect: display the progress of hosts that start.

    Args:
        hosts: their number.
        running: hosts whose process is known to run.
        ready: hosts that are ready to work.
        compiled: functions compiled so far, by all of them.
        waits_for: the last few hosts that are not ready, and what they do; "" while there are more.
    """

    hosts: int
    running: int
    ready: int
    compiled: int
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Effect: report how far a host, or the coordinator's method, has come. One kind for all drivers.

    Args:
        source: name of the host; COORDINATOR for a batch method.
        step: steps, or iterations, done.
        examples: number of examples behind `sums`.
        sums: over the examples since the last report of the source: "loss", "correct".
        counters: totals since the process of the source began: "pushes", "staleness".
        values: present values: "loss", "gradient_norm".
        note: exceptional events, in a few words; "" for none.
        further: further sums over these examples, in the order in which parts report them; () for none.
        read: seconds and examples of reading the data since the last report; () where nothing is read.
    """

    source: str
    step: int
    examples: int = 0
    sums: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    further: tuple[float, ...] = ()
    read: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard's file in a checkpoint. The manifest has these names."""

    shard: str
    incarnation: int
    version: int
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: write the manifest, atomically and last, and after every earlier `AppendJournal`; every shard's
    file of this checkpoint is on disk. Later effects are carried out meanwhile; `Committed` or `NotCommitted`
    reports the end.

    `steps` are the steps done by each replica when the checkpoint was begun, `lost` the acknowledged pushes
    that are in none of the files. `position` is how many entries of the journal the files hold (Sandblaster),
    and `done` are the units of work that they hold, as ranges: steps, or examples of joined
    batches.
    From `Committed` on, restarts are from this checkpoint. Where more `lost` pushes become known later, its
    manifest is ordered again.
    """

    checkpoint: int
    entries: tuple[ShardFile, ...]
    steps: tuple[int, ...]
    lost: int
    position: int | None = None
    done: tuple[UnitRange, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortRun:
    """Effect, the last one: end every process, and raise this reason, with that traceback.

    `host` names the hosts that have failed, where the reason does not.
    """

    reason: str
    traceback: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class EndRun:
    """Effect, the last one: Stop was sent to every host; end those that do not stop.

    `steps` are those done by each replica, `checkpoint` the last committed one, and `lost` as in `Commit`,
    exact for every part that could still report. `complete` is False if the checkpoint does not contain all
    of the work (Ctrl-C). `outcome` is how a batch method ended.
    """

    steps: tuple[int, ...]
    checkpoint: int | None
    lost: int
    complete: bool
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Validated:
    """Effect: the replicas have stopped at a `Validate`, and have evaluated its data; `Decided` answers it.

    Args:
        action: of the driver's program.
        steps: steps done by each replica, or iterations.
        next_checkpoint: the least number of a checkpoint of these parameters.
        sums: for each minibatch, the sums of each part of one replica: loss, correct, and the further ones in
            the order in which parts report them.
    """

    action: Validate
    steps: tuple[int, ...]
    next_checkpoint: int
    sums: tuple[tuple[tuple[float, ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Warn:
    """Effect: display a line. The run goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class HostObserved:
    """Effect: a host has answered; add `clock.offset_s` to the times of its clock.

    Not part of a run's decisions: an interpreter may ignore it.
    """

    host: str
    incarnation: int
    report: HostReport
    clock: Offset


@dataclass(frozen=True, slots=True)
class AppendJournal:
    """Effect: append the scalars of request number `index` to the journal, before the next effect.

    `digest` is the request's. An entry that cannot be written ends the run.
    """

    index: int
    digest: int
    scalars: Scalars


CoordinatorEvent: TypeAlias = (
    Opened
    | Launched
    | ProcessStarted
    | Received
    | Misbehaved
    | Tick
    | Died
    | StopRequested
    | CheckpointRequested
    | SetScale
    | Decided
    | Committed
    | NotCommitted
)
CoordinatorEffect: TypeAlias = (
    Refuse
    | Send
    | Restart
    | EndHosts
    | Starting
    | Progress
    | Commit
    | AppendJournal
    | Validated
    | AbortRun
    | EndRun
    | Warn
    | HostObserved
)


START_TIMEOUT_S: Final = 300.0
"""Default of the seconds that a starting host may be silent. With many more processes than cores, importing
takes a minute, and so does compiling one function.
"""
INSTRUCTION_TIMEOUT_S: Final = 60.0
"""Default of the seconds that one computation of a part may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The coordinator's waits and limits (seconds and counts).

    Attributes:
        heartbeats: interval of heartbeats, and limits of silence.
        checkpoint_every_s: from one checkpoint round to the next; None: only the last one.
        start_s: for a starting host without a sign of life (process, first message, compiled function,
            Ready).
        save_s: for a checkpoint round without progress, which is then given up; the last one fails the run,
            also after this long a time of failed attempts.
        retry_s: before an unanswered `Begin` or `Save` is repeated.
        stall_s: for a replica without a new step, which is then restarted, as after a death; doubled each
            time, so that long steps are reached in the end.
        answer_s: for a shard that does not answer a host, which is then replaced although it is alive.
        work_s: for a shard that reports to be executing a command.
        stop_s: for the last checkpoint round after Ctrl-C, without progress.
        restart_s: from a shard's return to the next checkpoint round: its losses are not to be repeated.
        longest_retry_s: largest wait before a failed checkpoint round is tried again.
        failures: errors that a host may raise in all (I13).
        deaths: deaths in a row of a host without progress (a part: a reported step; a shard: a committed
            checkpoint), and replacements of a shard that does not answer.
        wave_s: from a replica's leaving to the next wave, in which all that have left are started again;
            doubled with each wave in which none joins.
        longest_wave_s: largest wait before the next wave.
    """

    heartbeats: HeartbeatPolicy = field(default_factory=HeartbeatPolicy)
    checkpoint_every_s: float | None = 30.0
    start_s: float = START_TIMEOUT_S
    save_s: float = 120.0
    retry_s: float = 1.0
    stall_s: float = 120.0
    answer_s: float = 60.0
    work_s: float = 600.0
    stop_s: float = 3.0
    restart_s: float = 2.0
    longest_retry_s: float = 30.0
    wave_s: float = 30.0
    longest_wave_s: float = 600.0
    failures: int = 3
    deaths: int = 5

    def __post_init__(self) -> None:
        waits = [self.start_s, self.save_s, self.retry_s, self.stall_s, self.stop_s]
        waits += [self.restart_s, self.longest_retry_s, self.answer_s, self.work_s]
        waits += [self.wave_s, self.longest_wave_s]
        if min(waits) <= 0 or (self.checkpoint_every_s or 1.0) <= 0 or min(self.failures, self.deaths) < 1:
            raise ValueError(f"{self}: times are above 0 s and counts above 0; change what is not")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPolicy:
    """The intervals of questions and of recorded steps, in seconds.

    `clock` identifies the clock of the coordinator: a host whose reports have the same text has the same
    clock.
    """

    ask_s: float = 1.0
    record_s: float = 2.0
    clock: str = ""

    def __post_init__(self) -> None:
        if min(self.ask_s, self.record_s) <= 0:
            raise ValueError(f"{self}: seconds between two questions are above 0; change what is not")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run that no driver interprets.

    Attributes:
        run: the run's id, sent in `SetUp`.
        next_checkpoint: the number of the next checkpoint.
        incarnations: of the first processes, where not 0.
        versions: what every host must report in `Hello`; other keys may have any value.
        timeouts: waits and limits.
        least: replicas with which the run begins, and without which it cannot go on; None: all of them.
        keeps_records: whether somebody keeps the records of shards, see `protocol.durability`.
        validated: the last `Validate.at` that an earlier run is done with; -1: none.
        scale: factor of the learning rate.
        watch: how often hosts are asked how they are; None: never.
    """

    run: str = ""
    next_checkpoint: int = 1
    incarnations: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    least: int | None = None
    keeps_records: bool = False
    validated: int = -1
    scale: float = 1.0
    watch: WatchPolicy | None = None
