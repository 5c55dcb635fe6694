"""Checkpoint rounds: every shard writes its file, and only the whole set counts (I5).

A round is over when its manifest is on disk, or cannot be written. One that a shard did not survive is
dropped and its number is not used again, so that a late answer can never complete another round. Acknowledged
pushes that were lost are accounted for here too, because they are lost in relation to a checkpoint. This
module must not know files or manifests.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.engine.protocol.coordinator_effects import Commit, ShardFile, Timeouts
from partita.engine.protocol.events import Send
from partita.engine.protocol.messages import LostPushes, Save, Saved, SaveFailed, SaveProgress


class CheckpointRound:
    """The answers of the shards to one `Save`.

    Attributes:
        checkpoint: its number.
        progress_at: when it began, or last came further (seconds).
        commit: the order to write its manifest, once every shard has answered.
        steps: the steps that each replica had done when it began: what a resumed run may skip.
    """

    def __init__(
        self, checkpoint: int, incarnations: Mapping[str, int], *, steps: tuple[int, ...], now: float
    ) -> None:
        """A round over these shards (name -> incarnation), in the order of their indices."""
        self.checkpoint = checkpoint
        self.progress_at = now
        self.commit: Commit | None = None
        self.steps = steps
        self._incarnations = dict(incarnations)
        self._saved: dict[str, Saved] = {}
        self._asked_at = now

    @property
    def missing(self) -> tuple[str, ...]:
        """The shards that have not answered."""
        return tuple(name for name in self._incarnations if name not in self._saved)

    def ask(self, now: float) -> list[Send]:
        """Asks everybody who has not answered, again if need be: a shard answers a repeat from memory."""
        self._asked_at = now
        return [Send(name, Save(self.checkpoint)) for name in self.missing]

    def ask_again(self, now: float, retry_s: float) -> list[Send]:
        """The same when it is due."""
        return self.ask(now) if now - self._asked_at >= retry_s else []

    def belongs(self, shard: str, answer: Saved | SaveProgress | SaveFailed) -> bool:
        """Whether it is of this round, and of the process that was asked."""
        return answer.checkpoint == self.checkpoint and self._incarnations.get(shard) == answer.incarnation

    def take(self, shard: str, saved: Saved) -> bool:
        """Notes an answer; whether it was the last. One of another round or process is nothing."""
        if not self.belongs(shard, saved) or shard in self._saved:
            return False
        self._saved[shard] = saved
        return not self.missing

    def entries(self) -> tuple[ShardFile, ...]:
        """The files, by shard, once nothing is missing."""
        assert not self.missing, self.missing
        answers = ((name, self._saved[name]) for name in self._incarnations)
        return tuple(ShardFile(name, s.incarnation, s.version, s.file, s.sha256) for name, s in answers)

    def lost(self) -> dict[str, int]:
        """For each shard, the acknowledged pushes that its process found missing up to its file."""
        return {name: saved.lost for name, saved in self._saved.items()}


class CheckpointTracker:
    """The checkpoints of a run: the committed one, the round under way, and what was lost in between.

    Attributes:
        committed: the number of the newest whole checkpoint; None before the first.
        round: the round under way, if any.
        retry_at: no round begins before (seconds): the last one could not be written.
    """

    def __init__(self, next_checkpoint: int) -> None:
        self.committed: int | None = None
        self.round: CheckpointRound | None = None
        self.retry_at = float("-inf")
        self._lost_rounds = 0  # in a row
        self._last_lost_at: float | None = None  # when one that held all of the work was first lost
        self._next = next_checkpoint
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

    def begin(self, incarnations: Mapping[str, int], *, steps: tuple[int, ...], now: float) -> list[Send]:
        """A new round; one that was under way is dropped."""
        self.round = CheckpointRound(self._next, incarnations, steps=steps, now=now)
        self._next += 1
        return self.round.ask(now)

    def abandon(self) -> None:
        """Drops the round under way."""
        self.round = None

    def saved(self, shard: str, saved: Saved, now: float) -> Commit | None:
        """An answer; the commit, if it was the last one of the round."""
        done = self.round
        if done is None or not done.belongs(shard, saved):
            return None
        done.progress_at = now
        if not done.take(shard, saved):
            return None
        lost = sum((self._in_file | self._in_files_of(done)).values())
        done.commit = Commit(done.checkpoint, done.entries(), done.steps, lost)
        return done.commit

    def _in_files_of(self, done: CheckpointRound) -> dict[str, int]:
        return {name: self._at_start.get(name, 0) + lost for name, lost in done.lost().items()}

    def saving(self, shard: str, saving: SaveProgress, now: float) -> bool:
        """A shard has come further with its file; whether it is that of the round under way."""
        if self.round is None or not self.round.belongs(shard, saving):
            return False
        self.round.progress_at = now
        return True

    def kept(self, checkpoint: int) -> bool:
        """The manifest of a checkpoint is on disk; whether it is that of the round under way, now over."""
        done = self.round
        if done is None or done.commit is None or done.checkpoint != checkpoint:
            return False
        self.committed, self.round = checkpoint, None
        self._lost_rounds, self._last_lost_at = 0, None
        self._in_file |= self._in_files_of(done)
        return True

    def writes(self, checkpoint: int) -> bool:
        """Whether this is the round under way."""
        return self.round is not None and self.round.checkpoint == checkpoint

    def lose(self, timeouts: Timeouts, now: float, *, last: bool) -> tuple[int, float, float]:
        """The round under way could not be written. `last`: it held all of the work.

        Returns:
            its number, the seconds until the next round may begin (longer each time), and the seconds since
            the first last one was lost.
        """
        assert self.round is not None
        lost, self.round = self.round.checkpoint, None
        wait_s = min(timeouts.retry_s * 2.0**self._lost_rounds, timeouts.longest_retry_s)
        self._lost_rounds, self.retry_at = self._lost_rounds + 1, now + wait_s
        if last and self._last_lost_at is None:
            self._last_lost_at = now
        return lost, wait_s, 0.0 if self._last_lost_at is None else now - self._last_lost_at

    def is_lost(self, shard: str, not_saved: SaveFailed) -> bool:
        """A shard could not write its file; whether it is that of the round under way."""
        return self.round is not None and self.round.belongs(shard, not_saved)

    def found(self, shard: str, lost: LostPushes) -> bool:
        """What a shard has found missing since its process began; whether that is news."""
        parts = self._since.setdefault(shard, {})
        if lost.pushes <= parts.get(lost.part, 0):
            return False
        parts[lost.part] = lost.pushes
        return True

    def shard_died(self, shard: str) -> None:
        """It goes back to its committed file, and what was lost is counted from there again."""
        self.abandon()
        self._at_start[shard] = self._in_file.get(shard, 0)
        self._since.pop(shard, None)

    def validate(self) -> None:
        """Its invariants. Raises AssertionError."""
        assert self.committed is None or self.committed < self._next
        assert self.round is None or self.round.checkpoint == self._next - 1
