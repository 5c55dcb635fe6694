"""Measures a host for those who watch the run: its memory, its processor time, and what it has exchanged."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import psutil

from partita.engine.protocol.host import MeasureHost
from partita.engine.protocol.names import machine_of, part_indices, shard_index
from partita.engine.protocol.watch_messages import HostReport, RecordedStep, Traffic
from partita.engine.transport.counters import Counters

PSS_EVERY_S: Final = 30.0
"""Seconds between two readings of the proportional set size: ten milliseconds for 250 MB, and more for more.

"""

_STEP: Final = frozenset({"Tensor"})
_PUSHES: Final = frozenset({"Push", "Contribution"})
_PULLS: Final = frozenset({"Parameters", "Point"})


@dataclass(frozen=True, slots=True)
class Observed:
    """The share of a role's body in the report: steps that have ended, and the newest recorded one."""

    steps: int = 0
    recorded: RecordedStep | None = None


class HostMeter:
    """Measures one host, on its own thread."""

    def __init__(self, name: str, counters: Counters) -> None:
        """Measures nothing yet; `counters` are those of the host's mailbox."""
        self._name, self._counters = name, counters
        self._process: Final = psutil.Process()

    def report(self, measure: MeasureHost, observed: Observed) -> HostReport:
        """Returns the answer to a question that has just been received."""
        received_s = time.perf_counter()
        used = self._process.cpu_times()
        resident = self._process.memory_info().rss
        pss = _pss(os.getpid(), int(received_s / PSS_EVERY_S))
        return HostReport(
            measure.watch.sent_s,
            received_s,
            time.perf_counter(),
            os.getpid(),
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
            resident,
            pss,
            used.user + used.system,
            traffic(self._name, self._counters),
            observed.steps,
            measure.staleness,
            measure.waits,
            observed.recorded,
            clock_id(),
        )


@cache
def clock_id() -> str:
    """Identifies the clock of `time.perf_counter`, which all processes of a Linux machine share until it is
    booted again, unless they are in time namespaces of their own; "" elsewhere.
    """
    if sys.platform != "linux":
        return ""
    found = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        try:
            found.append(" ".join(Path(path).read_text(encoding="ascii").split()))
        except OSError:  # an older kernel, which has no time namespaces; or no /proc, and nothing is known
            found.append("")
    return " ".join(found).strip() if found[0] else ""


@lru_cache(maxsize=1)
def _pss(pid: int, when: int) -> int | None:
    """The proportional set size of this process, once for all of its hosts; None where the system does not
    say.

    Args:
        pid: of this process: a forked one asks anew.
        when: changes when the size is to be read again.
    """
    try:
        return int(getattr(psutil.Process(pid).memory_full_info(), "pss", 0)) or None
    except (psutil.Error, OSError):
        return None


def traffic(name: str, counters: Counters) -> Traffic:
    """Returns the counters of a host by what they are for.

    Args:
        name: of the host: a shard's pushes and pulls are those of parts.
        counters: of its mailbox.
    """
    own = part_indices(name)
    is_shard = shard_index(name) is not None
    step: dict[int, int] = {}
    between = messages = sent = received = 0
    pushed, pulled = [0, 0], [0, 0]
    # `list` copies at once: another thread may add a kind of message meanwhile.
    for (peer, kind), count in list(counters.sent.items()):
        sent += count.payload_bytes
        if own is not None and kind in _STEP:
            machine = machine_of(peer)
            step[machine] = step.get(machine, 0) + count.payload_bytes
        elif kind in (_PULLS if is_shard else _PUSHES):
            of = pulled if is_shard else pushed
            of[0] += count.payload_bytes
            of[1] += count.messages
        else:
            between += count.payload_bytes
            messages += count.messages if count.payload_bytes else 0
    for (_, kind), count in list(counters.received.items()):
        received += count.payload_bytes
        if kind in (_PUSHES if is_shard else _PULLS):
            of = pushed if is_shard else pulled
            of[0] += count.payload_bytes
            of[1] += count.messages
    return Traffic(
        step_bytes=tuple(sorted(step.items())),
        push_bytes=pushed[0],
        pushes=pushed[1],
        pull_bytes=pulled[0],
        pulls=pulled[1],
        replica_bytes=between,
        sent_bytes=sent,
        received_bytes=received,
        shared_bytes=counters.sent_shared.payload_bytes,
        refused=counters.refused_messages,
        replica_messages=messages,
    )
