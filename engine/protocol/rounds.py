"""Checkpoint rounds: every shard writes its file, and only the whole set counts (I5).

A round that a shard did not survive is dropped and its number is not used again, so that a late answer can
never complete another round. Acknowledged pushes that were lost are accounted for here too, because they are
lost in relation to a checkpoint. This module must not know files or manifests.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.engine.protocol.events import Send
from partita.engine.protocol.messages import Lost, Save, Saved
from partita.engine.protocol.orders import Commit, Entry


class CheckpointRound:
    """The answers of the shards to one `Save`.

    Attributes:
        checkpoint: its number.
        began_at: when it began (seconds).
        steps: the steps that each replica had done when it began: what a resumed run may skip.
    """

    def __init__(
        self, checkpoint: int, epochs: Mapping[str, int], *, steps: tuple[int, ...], now: float
    ) -> None:
        """A round over these shards (name -> epoch), in the order of their indices."""
        self.checkpoint = checkpoint
        self.began_at = now
        self.steps = steps
        self._epochs = dict(epochs)
        self._saved: dict[str, Saved] = {}
        self._asked_at = now

    @property
    def missing(self) -> tuple[str, ...]:
        """The shards that have not answered."""
        return tuple(name for name in self._epochs if name not in self._saved)

    def ask(self, now: float) -> list[Send]:
        """Asks everybody who has not answered, again if need be: a shard answers a repeat from memory."""
        self._asked_at = now
        return [Send(name, Save(self.checkpoint)) for name in self.missing]

    def ask_again(self, now: float, retry_s: float) -> list[Send]:
        """The same when it is due."""
        return self.ask(now) if now - self._asked_at >= retry_s else []

    def take(self, shard: str, saved: Saved) -> bool:
        """Notes an answer; whether it was the last. One of another round or epoch is nothing."""
        if saved.checkpoint != self.checkpoint or self._epochs.get(shard) != saved.epoch:
            return False
        if shard in self._saved:
            return False
        self._saved[shard] = saved
        return not self.missing

    def entries(self) -> tuple[Entry, ...]:
        """The files, by shard, once nothing is missing."""
        assert not self.missing, self.missing
        answers = ((name, self._saved[name]) for name in self._epochs)
        return tuple(Entry(name, s.epoch, s.version, s.file, s.sha256) for name, s in answers)

    def lost(self) -> dict[str, int]:
        """For each shard, the acknowledged pushes that its epoch found missing up to its file."""
        return {name: saved.lost for name, saved in self._saved.items()}


class Checkpoints:
    """The checkpoints of a run: the committed one, the round under way, and what was lost in between.

    Attributes:
        committed: the number of the newest whole checkpoint; None before the first.
        round: the round under way, if any.
    """

    def __init__(self, next_checkpoint: int) -> None:
        self.committed: int | None = None
        self.round: CheckpointRound | None = None
        self._next = next_checkpoint
        # Lost pushes by shard: missing in its committed file, when its epoch began, and found by it since.
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

    def begin(self, epochs: Mapping[str, int], *, steps: tuple[int, ...], now: float) -> list[Send]:
        """A new round; one that was under way is dropped."""
        self.round = CheckpointRound(self._next, epochs, steps=steps, now=now)
        self._next += 1
        return self.round.ask(now)

    def abandon(self) -> None:
        """Drops the round under way."""
        self.round = None

    def saved(self, shard: str, saved: Saved) -> Commit | None:
        """An answer; the commit, if it was the last one of the round."""
        done = self.round
        if done is None or not done.take(shard, saved):
            return None
        self.committed, self.round = done.checkpoint, None
        for name, lost in done.lost().items():
            self._in_file[name] = self._at_start.get(name, 0) + lost
        return Commit(done.checkpoint, done.entries(), done.steps, sum(self._in_file.values()))

    def found(self, shard: str, lost: Lost) -> bool:
        """What a shard has found missing since its epoch began; whether that is news."""
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
