"""Checkpoint rounds: every shard writes its file, and only the whole set counts (I5).

A round ends when its manifest is on disk, or cannot be written. A round that a shard did not survive is
dropped and its number is not used again, so that a late answer never completes another round. Acknowledged
pushes that were lost are accounted for here, too: relative to a checkpoint. This module must not know files
or manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from partita.engine.protocol.checkpoint_messages import LostPushes, Save, Saved, SaveFailed, SaveProgress
from partita.engine.protocol.coordinator_effects import Commit, ShardFile, Timeouts
from partita.engine.protocol.events import Send
from partita.engine.protocol.message_base import UnitRange


@dataclass(slots=True, eq=False)
class CheckpointRound:
    """The answers of the shards to one `Save`.

    Args:
        checkpoint: its number.
        steps: the steps that each replica had done when it began: a resumed run skips them.
        position: how many entries of the journal its files hold (Sandblaster).
        step: the step after which parts write their state; 0 for shards.
        done: the units of work that its files hold.
        progress_at: when it began, or last progressed (seconds).
        commit: the order to write its manifest, once every shard has answered.
    """

    checkpoint: int
    steps: tuple[int, ...]
    position: int | None
    step: int
    progress_at: float
    _incarnations: dict[str, int]  # of the shards, in the order of their indices
    _asked_at: float
    done: tuple[UnitRange, ...] = ()
    commit: Commit | None = None
    _saved: dict[str, Saved] = field(default_factory=dict)
    _known: dict[str, int] = field(default_factory=dict)  # lost pushes by shard, where found after its file

    @property
    def missing(self) -> tuple[str, ...]:
        """The shards that have not answered."""
        return tuple(name for name in self._incarnations if name not in self._saved)

    def ask(self, now: float) -> list[Send]:
        """Asks every shard that has not answered; a shard answers a repeat from memory."""
        self._asked_at = now
        return [Send(name, Save(self.checkpoint, self.step)) for name in self.missing]

    def ask_again(self, now: float, retry_s: float) -> list[Send]:
        """Repeats `ask` when that is due."""
        return self.ask(now) if now - self._asked_at >= retry_s else []

    def belongs(self, shard: str, answer: Saved | SaveProgress | SaveFailed) -> bool:
        """Returns whether an answer is of this round, and of the process that was asked."""
        return answer.checkpoint == self.checkpoint and self._incarnations.get(shard) == answer.incarnation

    def take(self, shard: str, saved: Saved) -> bool:
        """Notes an answer. Returns whether it was the last one missing."""
        if shard in self._saved:
            return False
        self._saved[shard] = saved
        return not self.missing

    def files(self) -> tuple[ShardFile, ...]:
        """The files by shard, once nothing is missing."""
        answers = ((name, self._saved[name]) for name in self._incarnations)
        return tuple(ShardFile(name, s.incarnation, s.version, s.file, s.sha256) for name, s in answers)

    def lost(self) -> dict[str, int]:
        """For each shard, the acknowledged pushes that its process found missing up to its file."""
        return {name: saved.lost for name, saved in self._saved.items()}

    def amend(self, shard: str, incarnation: int, lost: int) -> Iterator[Commit]:
        """Yields the order to write the manifest again, if this process wrote a file of it and knew of fewer
        pushes that it lacks: none of its files holds them.
        """
        if self.commit is None or self._incarnations.get(shard) != incarnation:
            return
        more = lost - self._known.get(shard, self._saved[shard].lost)
        if more > 0:
            self._known[shard] = lost
            self.commit = replace(self.commit, lost=self.commit.lost + more)
            yield self.commit


class CheckpointTracker:
    """The checkpoints of a run: the committed one, the round under way, and pushes lost in between.

    Attributes:
        committed: the number of the newest whole checkpoint; None before the first.
        round: the round under way, if any.
        next: the number of the next round.
        retry_at: no round begins before (seconds): the last one could not be written.
    """

    def __init__(self, next_checkpoint: int) -> None:
        self.committed: int | None = None
        self.round: CheckpointRound | None = None
        self._kept: CheckpointRound | None = None  # whose manifest is the newest
        self.retry_at = float("-inf")
        self._failed_rounds = 0  # in a row
        self._last_failed_at: float | None = None  # when a round that held all of the work first failed
        self.next = next_checkpoint
        # Lost pushes by shard: missing in its committed file, when its process began, and found by it since.
        self._in_file: dict[str, int] = {}
        self._at_start: dict[str, int] = {}
        self._since: dict[str, dict[str, int]] = {}

    @property
    def lost(self) -> int:
        """Acknowledged pushes that no shard holds any more, as far as is known."""
        shards = dict.fromkeys([*self._at_start, *self._since, *self._in_file])
        return sum(max(self._in_file.get(shard, 0), self._now(shard)) for shard in shards)

    def _now(self, shard: str) -> int:
        return self._at_start.get(shard, 0) + sum(self._since.get(shard, {}).values())

    def begin(
        self,
        incarnations: Mapping[str, int],
        *,
        steps: tuple[int, ...],
        now: float,
        position: int | None = None,
        step: int = 0,
        done: tuple[UnitRange, ...] = (),
    ) -> CheckpointRound:
        """Begins a round over these shards (name -> incarnation); one that was under way is dropped."""
        self.round = CheckpointRound(
            self.next, steps, position, step, now, dict(incarnations), now, done=done
        )
        self.next += 1
        return self.round

    def of_round(self, shard: str, answer: Saved | SaveProgress | SaveFailed) -> CheckpointRound | None:
        """Returns the round under way, if the answer belongs to it."""
        return self.round if self.round is not None and self.round.belongs(shard, answer) else None

    def saved(self, shard: str, saved: Saved, now: float) -> Commit | None:
        """Notes an answer. Returns the commit, if it was the last one of the round."""
        done = self.of_round(shard, saved)
        if done is None:
            return None
        done.progress_at = now
        if not done.take(shard, saved):
            return None
        lost = sum((self._in_file | self._in_files_of(done)).values())
        done.commit = Commit(done.checkpoint, done.files(), done.steps, lost, done.position, done.done)
        return done.commit

    def _in_files_of(self, done: CheckpointRound) -> dict[str, int]:
        return {name: self._at_start.get(name, 0) + lost for name, lost in done.lost().items()}

    def kept(self, checkpoint: int) -> bool:
        """Notes a manifest on disk. Returns whether it is that of the round under way, which ends."""
        done = self.round
        if done is None or done.commit is None or done.checkpoint != checkpoint:
            return False
        self.committed, self.round, self._kept = checkpoint, None, done
        self._failed_rounds, self._last_failed_at = 0, None
        self._in_file |= self._in_files_of(done)
        return True

    def fail(self, timeouts: Timeouts, now: float, *, last: bool) -> tuple[int, float, float]:
        """Ends the round under way, which could not be written. `last`: it held all of the work.

        Returns:
            its number, the seconds until the next round may begin (longer each time), and the seconds since
            the first last round failed.
        """
        assert self.round is not None
        failed, self.round = self.round.checkpoint, None
        wait_s = min(timeouts.retry_s * 2.0**self._failed_rounds, timeouts.longest_retry_s)
        self._failed_rounds, self.retry_at = self._failed_rounds + 1, now + wait_s
        if last and self._last_failed_at is None:
            self._last_failed_at = now
        return failed, wait_s, 0.0 if self._last_failed_at is None else now - self._last_failed_at

    def found(self, shard: str, lost: LostPushes) -> bool:
        """Notes what a shard has found missing since its process began. Returns whether that is news.

        If its file of the round under way does not know of it, the round is dropped.
        """
        parts = self._since.setdefault(shard, {})
        if lost.pushes <= parts.get(lost.part, 0):
            return False
        parts[lost.part] = lost.pushes
        under_way, all_found = self.round, sum(parts.values())
        if under_way is not None and under_way.commit is None:
            self.round = None if under_way.lost().get(shard, all_found) < all_found else under_way
        return True

    def amended(self, shard: str, incarnation: int) -> list[Commit]:
        """Returns the order to write the newest manifest again, if a shard's process has found pushes missing
        that its file lacks, too. After its death others are counted from that file on.
        """
        is_ordered = self.round is not None and self.round.commit is not None
        newest = self.round if is_ordered else self._kept
        lost = sum(self._since.get(shard, {}).values())
        return [] if newest is None else [*newest.amend(shard, incarnation, lost)]

    def shard_died(self, shard: str) -> None:
        """Drops the round; the shard goes back to its committed file, and losses are counted from there."""
        self.round = None
        self._at_start[shard] = self._in_file.get(shard, 0)
        self._since.pop(shard, None)

    def shard_continues(self, shard: str) -> None:
        """Drops the round; the shard's next process begins with all that this one had, also its counts of
        lost pushes, and reports them again: a report may have been lost with the process.
        """
        self.round = None

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self.committed is None or self.committed < self.next
        assert self.round is None or self.round.checkpoint == self.next - 1
