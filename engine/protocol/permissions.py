"""Permissions of senders: one table, consulted before anything else is done with a message.

The sender is known from its authenticated key. A message outside the sender's permissions is refused: it has
no effect, is counted, and is reported to the user once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from partita.engine.protocol import batch_messages as bm
from partita.engine.protocol import copy_messages as cm
from partita.engine.protocol import file_messages as fm
from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.checkpoint_messages import (
    AskUnits,
    AskUnsent,
    CheckpointCommitted,
    LogReport,
    LostPushes,
    Save,
    Saved,
    SaveFailed,
    SaveProgress,
    UnitsHeld,
    Unsent,
)
from partita.engine.protocol.names import COORDINATOR, FILES, backup_index, part_indices, shard_index
from partita.engine.protocol.session_messages import Load, Loaded, Ping, Play, Played, Pong
from partita.engine.protocol.validation_messages import ValidationResult, ValidationWork
from partita.engine.protocol.watch_messages import HostReport, Watch

HostKind: TypeAlias = Literal["coordinator", "files", "part", "shard", "backup", "stranger"]
_Kinds: TypeAlias = frozenset[type[m.Message]]

_ANY_HOST: Final[_Kinds] = frozenset(
    {m.Hello, m.DirectoryAck, m.SetUpProgress, m.Ready, m.Heartbeat, m.Failed, m.Refused, HostReport}
)
_AMONG_REPLICAS: Final[_Kinds] = frozenset(
    {rm.PartialChunk, rm.FinalChunk, rm.ChunkRequest, rm.ExchangeAck, rm.Reduced}
)
"""Messages to parts of other replicas, too. (The exchange checks that the sender is a member.)"""

_TO_ANY_HOST: Final[_Kinds] = frozenset({m.SetUp, m.Directory, m.Heartbeat, m.Stop, Watch})
_ORDERS: Final[_Kinds] = frozenset({rm.Pause, rm.View, Save})
_IN_VIEWS: Final[_Kinds] = frozenset({rm.Paused, rm.Joined, Saved, SaveProgress, SaveFailed})

_IN_ROUNDS: Final[_Kinds] = frozenset({Saved, SaveProgress, SaveFailed})

_FILE_REQUESTS: Final[_Kinds] = frozenset(
    {fm.FilesHello, fm.FindFile, fm.ReadFile, fm.WriteFile, fm.FinishFile}
)
_FILE_ANSWERS: Final[_Kinds] = frozenset(
    {
        *(fm.FilesWelcome, fm.FileFound, fm.FileMissing, fm.FileChunk),
        *(fm.FileWritten, fm.FileStored, fm.FileRefused),
    }
)

_RESULTS: Final[_Kinds] = frozenset({bm.CommandResult, bm.MissingUnits, bm.CommandsMissing})
_COPIES: Final[_Kinds] = frozenset({cm.CopyRequest, cm.CopyChunk})

PERMISSIONS: Final[Mapping[tuple[HostKind, HostKind], _Kinds]] = {
    ("coordinator", "part"): _TO_ANY_HOST
    | _ORDERS
    | {m.Begin, bm.Assignment, Load, Play, Ping, ValidationWork},
    ("coordinator", "shard"): _TO_ANY_HOST | {bm.Command, Save, AskUnits, CheckpointCommitted},
    ("coordinator", "backup"): _TO_ANY_HOST,
    ("part", "coordinator"): _ANY_HOST
    | _IN_VIEWS
    | {
        m.ResumeStep,
        m.Report,
        m.Finished,
        m.WaitReport,
        bm.AssignmentResult,
        Played,
        Pong,
        Loaded,
        ValidationResult,
    },
    ("shard", "coordinator"): _ANY_HOST
    | _IN_ROUNDS
    | {m.WaitReport, *_RESULTS, LostPushes, LogReport, UnitsHeld},
    ("backup", "coordinator"): _ANY_HOST | {cm.CopyComplete},
    ("shard", "backup"): _COPIES | {m.RecordCopy},
    ("backup", "shard"): _COPIES | {cm.RecordKept},
    ("part", "part"): _AMONG_REPLICAS | {m.Tensor, m.Credit},
    ("part", "shard"): frozenset({m.Fetch, m.Push, Unsent, bm.FetchPoint, bm.Contribution}),
    ("part", "files"): _FILE_REQUESTS | {fm.SavePushes},
    ("shard", "files"): _FILE_REQUESTS,
    ("backup", "files"): _FILE_REQUESTS,
    ("files", "part"): _FILE_ANSWERS,
    ("files", "shard"): _FILE_ANSWERS,
    ("files", "backup"): _FILE_ANSWERS,
    ("shard", "part"): frozenset({m.Parameters, m.PushAck, AskUnsent, bm.Point, bm.ContributionAck}),
}
"""Messages by (sender, receiver); other pairs have none."""

_OF_INCARNATIONS: Final = (m.Parameters, m.PushAck, AskUnsent, Saved)
"""Messages that name the incarnation of the host that sends them."""


def host_kind(name: str) -> HostKind:
    """Returns the kind of host that a name stands for."""
    if name == COORDINATOR:
        return "coordinator"
    if name == FILES:
        return "files"
    if part_indices(name) is not None:
        return "part"
    if backup_index(name) is not None:
        return "backup"
    return "shard" if shard_index(name) is not None else "stranger"


def rejection_reason(
    message: m.Message | m.Malformed, *, sender: str, receiver: str, incarnation: int | None = None
) -> str | None:
    """Returns why the sender may not send this message, in a few words; None when it may.

    Args:
        message: the message to check.
        sender: name of the sending host.
        receiver: name of the receiving host.
        incarnation: the sender's, by its key; None checks nothing that depends on it.
    """
    if isinstance(message, m.Malformed):
        return message.reason
    reason = _reason_of_kind(type(message), sender, receiver)
    if reason is not None or incarnation is None or not isinstance(message, _OF_INCARNATIONS):
        return reason
    claimed = message.incarnation if isinstance(message, Saved) else message.shard_incarnation
    if claimed != incarnation:
        kind = type(message).__name__
        return f"a {kind} of incarnation {claimed}, and it is incarnation {incarnation}"
    return None


@lru_cache(maxsize=1 << 14)
def _reason_of_kind(message: type[m.Message], sender: str, receiver: str) -> str | None:
    kind = message.__name__
    if message not in PERMISSIONS.get((host_kind(sender), host_kind(receiver)), frozenset()):
        return f"a {kind}, which '{sender}' may not send"
    ours, theirs = part_indices(receiver), part_indices(sender)
    strangers = ours is not None and theirs is not None and ours[0] != theirs[0]
    return f"a {kind} of another replica" if strangers and message not in _AMONG_REPLICAS else None
