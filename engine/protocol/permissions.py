"""Who may say what to whom: one table, looked up before anything else is done with a message.

Who speaks is known from the authenticated key. A member that acts outside its role is refused: what it said
has no effect, is counted, and is told to the user once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from partita.engine.protocol.messages import (
    Assignment,
    AssignmentResult,
    Begin,
    Command,
    CommandResult,
    Contribution,
    ContributionAck,
    Credit,
    Directory,
    DirectoryAck,
    Failed,
    Fetch,
    FetchPoint,
    Finished,
    Heartbeat,
    Hello,
    Load,
    LostPushes,
    Malformed,
    Message,
    MissingUnits,
    Parameters,
    Ping,
    Play,
    Played,
    Point,
    Pong,
    Push,
    PushAck,
    Ready,
    Refused,
    Report,
    ResumeStep,
    Save,
    Saved,
    SaveFailed,
    SaveProgress,
    SetUp,
    SetUpProgress,
    Stop,
    Tensor,
    WaitReport,
)
from partita.engine.protocol.names import COORDINATOR, part_indices, shard_index

HostKind: TypeAlias = Literal["coordinator", "part", "shard", "stranger"]

_ANY_HOST: Final[frozenset[type[Message]]] = frozenset(
    {Hello, DirectoryAck, SetUpProgress, Ready, Heartbeat, Failed, Refused}
)
"""From a host to the coordinator, whatever the host is."""

PERMISSIONS: Final[Mapping[tuple[HostKind, HostKind], frozenset[type[Message]]]] = {
    ("coordinator", "part"): frozenset(
        {SetUp, Directory, Heartbeat, Begin, Assignment, Load, Play, Ping, Stop}
    ),
    ("coordinator", "shard"): frozenset({SetUp, Directory, Heartbeat, Command, Save, Stop}),
    ("part", "coordinator"): _ANY_HOST
    | {ResumeStep, Report, Finished, WaitReport, AssignmentResult, Played, Pong},
    ("shard", "coordinator"): _ANY_HOST
    | {CommandResult, MissingUnits, Saved, SaveProgress, SaveFailed, LostPushes},
    ("part", "part"): frozenset({Tensor, Credit}),
    ("part", "shard"): frozenset({Fetch, Push, FetchPoint, Contribution}),
    ("shard", "part"): frozenset({Parameters, PushAck, Point, ContributionAck}),
}
"""By (sender, receiver); who is in none of the pairs says nothing to the other."""

_OF_EPOCH: Final = (Parameters, PushAck, Saved)
"""What a shard says under its own epoch, which is its incarnation."""


def host_kind(name: str) -> HostKind:
    """What a host of this name is."""
    if name == COORDINATOR:
        return "coordinator"
    if part_indices(name) is not None:
        return "part"
    return "shard" if shard_index(name) is not None else "stranger"


def rejection_reason(
    message: Message | Malformed, *, sender: str, receiver: str, incarnation: int | None = None
) -> str | None:
    """Why this host may not say this to that one, in a few words; None when it may.

    Args:
        message: what it says.
        sender: the host's name.
        receiver: to whom.
        incarnation: the sender's, by its key; None checks nothing that depends on it.
    """
    if isinstance(message, Malformed):
        return message.reason
    said = PERMISSIONS.get((host_kind(sender), host_kind(receiver)), frozenset())
    if type(message) not in said:
        return f"a {type(message).__name__}, which is not for '{sender}' to say"
    ours, theirs = part_indices(receiver), part_indices(sender)
    if ours is not None and theirs is not None and ours[0] != theirs[0]:
        return f"a {type(message).__name__} of another replica"
    if incarnation is not None and isinstance(message, _OF_EPOCH) and message.epoch != incarnation:
        return f"a {type(message).__name__} of epoch {message.epoch}, and it is incarnation {incarnation}"
    return None
