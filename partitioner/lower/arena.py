"""Offsets of windows in a machine's memory: a window may take the place of another whose use has ended.

Threads run concurrently and messages arrive at any time, so only the predecessors of each instruction are
certain. A window takes the place of another only if every instruction that touches the other is a predecessor
of all that touch it. So a message that no instruction has to wait for keeps a place of its own. A message of
the next step finds its place free, because a machine receives it when its own next step has begun.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from partita.layers.box import NOTHING, BoxSet
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import Op, Program
from partita.partitioner.lower.access import Access
from partita.partitioner.lower.windows import ALIGNMENT, WindowPlan


def arranged(
    owned: Ownership, program: Program, windows: Mapping[Buffer, WindowPlan], keep: Collection[Buffer] | None
) -> dict[Buffer, WindowPlan]:
    """Places windows, the largest first, each in the first gap that is large enough.

    Buffers in `keep` (None: all) keep their rows until the end of the step.
    """
    lives = _Lives(owned, program)
    kept = (name for name in windows if keep is None or name.undivided in keep)
    lasting = lives.lasting | set(kept)
    placed: dict[Buffer, WindowPlan] = {}
    for name in sorted(windows, key=lambda name: -windows[name].n_bytes):
        window = windows[name]
        apart = [
            other
            for known, other in placed.items()
            if name in lasting or known in lasting or not lives.may_share(name, known)
        ]
        placed[name] = replace(window, offset=_first_gap(window.n_bytes, apart))
    return {name: placed[name] for name in windows}


def arena_bytes(windows: Mapping[Buffer, WindowPlan]) -> int:
    """Bytes of memory that placed windows take."""
    return max((_up(window.offset + window.n_bytes) for window in windows.values()), default=0)


def _first_gap(n_bytes: int, apart: list[WindowPlan]) -> int:
    """Finds the first offset at which so many bytes touch none of these windows."""
    offset = 0
    for window in sorted(apart, key=lambda window: window.offset):
        if offset + n_bytes <= window.offset:
            break
        offset = max(offset, _up(window.offset + window.n_bytes))
    return offset


def _up(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


class _Lives:
    """Instructions that touch each buffer, and those done before the first (bit sets of positions)."""

    def __init__(self, owned: Ownership, program: Program) -> None:
        self.lasting: set[Buffer] = set()
        """Buffers that are fed, because a step may be repeated, or read before they are written: zeros."""
        access = Access(owned, program.machine, slots=program.slots)
        done: list[int] = []
        written: dict[Buffer, BoxSet] = {}
        self._touched: dict[Buffer, int] = {}
        self._before: dict[Buffer, int] = {}
        for n, instruction in enumerate(program.instructions):
            before = 0
            for k in instruction.after:
                before |= done[k] | 1 << k
            done.append(before)
            read, write = access.reads(instruction), access.writes(instruction)
            for operand in (*read, *write):
                name = operand.buffer
                self._touched[name] = self._touched.get(name, 0) | 1 << n
                self._before[name] = self._before.get(name, before) & before
            for operand in read:
                if operand.rows - written.get(operand.buffer, NOTHING):
                    self.lasting.add(operand.buffer)
            for operand in write:
                if instruction.op is Op.FEED:
                    self.lasting.add(operand.buffer)
                written[operand.buffer] = written.get(operand.buffer, NOTHING) | operand.rows

    def may_share(self, one: Buffer, other: Buffer) -> bool:
        """Returns whether all use of one buffer ends before that of the other begins, in any order of
        execution.
        """
        return self._follows(one, other) or self._follows(other, one)

    def _follows(self, later: Buffer, earlier: Buffer) -> bool:
        return not self._touched[earlier] & ~self._before[later]
