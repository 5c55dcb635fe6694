"""A shard and its backup with real numbers: copies in chunks, with pushes in between, have the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partita.engine.protocol.durability import fill
from partita.engine.runtime.backup import BackupTask
from tests.runtime.backup_pair import Pair


def test_a_copy_that_is_made_while_pushes_come_has_the_bits_of_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "CHUNK", 2)
    pair = Pair(tmp_path)
    pair.begin("shard 0", 0, task=pair.task)
    for sequence in range(2):
        pair.push(0, sequence)
    assert len(pair.acknowledged) == 2, "alone, it waits for nobody"
    pair.begin("backup 0", 0, task=BackupTask(pair.task))
    for sequence in range(6):  # each between two chunks, in the ranges that are there and in the others
        pair.push(sequence % 2, sequence if sequence % 2 else sequence + 2)
        pair.deliver()
    assert len(pair.acknowledged) < 8, "the others wait for the backup"
    while pair.under_way:
        pair.deliver()
    assert len(pair.acknowledged) == 8 and pair.bits("shard 0") == pair.bits("backup 0")

    before = pair.bits("shard 0")
    pair.begin("shard 0", 1, task=replace(pair.task, from_backup=True))
    while pair.under_way:
        pair.deliver()
    assert pair.bits("shard 0") == before
    pair.push(1, 9)
    while pair.under_way:
        pair.deliver()
    assert pair.bits("shard 0") == pair.bits("backup 0") != before
    for _, _, body in pair.roles.values():
        body.close()
