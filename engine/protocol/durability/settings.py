"""Settings of durability: what a shard's acknowledgement promises, and at which price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

Mode: TypeAlias = Literal["checkpoint", "replicated", "log"]


@dataclass(frozen=True)
class Durability:
    """The keepers of a shard's records; one of the classes below."""

    mode: ClassVar[str]
    promise: ClassVar[str]
    """Cost of a failure, in words."""

    @property
    def keeps(self) -> bool:
        """Returns whether anybody keeps records, and replies wait for it."""
        return True

    def __str__(self) -> str:
        return f"{self.mode} ({self.promise})"


@dataclass(frozen=True)
class CheckpointOnly(Durability):
    """Nobody keeps records: a shard's failure costs its pushes since the last checkpoint, counted exactly."""

    mode = "checkpoint"
    promise = "a shard's failure costs its pushes since the last checkpoint"

    @property
    def keeps(self) -> bool:
        """Returns whether anybody keeps records: no."""
        return False


@dataclass(frozen=True)
class Replicated(Durability):
    """A second process of each shard keeps its records, and takes over where the shard dies."""

    mode = "replicated"
    promise = "no failure costs an acknowledged push while one of each shard's two processes lives"


@dataclass(frozen=True)
class Log(Durability):
    """A log keeps the records, beside the checkpoints.

    Args:
        sync: "disk" acknowledges what is on the disk; "process" what the kernel has, so that a failure of the
            machine costs the last 100 ms.
        most_bytes: size of a shard's log behind a checkpoint beyond which it asks for the next; if not given,
            1 GiB, or that of 16 pushes to all of the shard's parameters where this is more.

    Raises:
        ValueError: a setting is out of range.
    """

    mode = "log"
    promise = "no failure costs an acknowledged push"

    sync: Literal["disk", "process"] = "disk"
    most_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.sync not in ("disk", "process"):
            raise ValueError(f"Log's sync is {self.sync!r}; write 'disk' or 'process'")
        most: Any = self.most_bytes  # whatever a user wrote
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"Log's most_bytes is {most!r}; write a whole number of at least 1")

    def __str__(self) -> str:
        if self.sync == "disk":
            return super().__str__()
        costs = "no death of a process costs an acknowledged push, a machine's failure those of 100 ms"
        return f"{self.mode} without syncs ({costs})"


CHECKPOINT_ONLY: Final = CheckpointOnly()
_MODES: Final = {kind.mode: kind for kind in (CheckpointOnly, Replicated, Log)}
_BUILT: Final = ("checkpoint", "replicated", "log")


def durability_of(value: Any) -> Durability:
    """Returns the settings that the value of a driver's `durability` means.

    Raises:
        ValueError: it is no such value, or that mode does not exist yet.
    """
    found = _MODES[value]() if isinstance(value, str) and value in _MODES else value
    if not isinstance(found, Durability):
        names = ", ".join(f"'{name}'" for name in get_args(Mode))
        raise ValueError(f"durability is {value!r}; write one of {names}, or Log(...), Replicated(...)")
    if found.mode not in _BUILT:
        raise ValueError(f"durability '{found.mode}' does not exist yet; write 'checkpoint'")
    return found
