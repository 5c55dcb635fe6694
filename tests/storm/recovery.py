"""How long a fault lasts: until it is detected, and from then until its victim's successor is at work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.storm.moments import DEAD_S
from tests.storm.victims import Fault

_TOGETHER_S: Final = 1.0
_AFTER_S: Final = 0.5  # a host is at work before its whole run is

DETECTION_S: Final = 4.0
RECOVERY_S: Final = {"part": 2.0, "shard": 3.0, "backup": 3.0, "coordinator": 3.0}
"""Aims, on a machine that does nothing else."""


@dataclass(frozen=True)
class Recovery:
    """How long one fault lasted.

    Args:
        fault: which.
        detection_s: until a successor was ordered.
        recovery_s: from then until it was at work.
        alone: no other fault came before the successor was at work.
    """

    fault: Fault
    detection_s: float
    recovery_s: float
    alone: bool

    @property
    def is_late(self) -> bool:
        """Whether an aim was missed by far: by more where another fault may have delayed it."""
        aim = RECOVERY_S.get(self.fault.role, 10.0)
        if not self.alone:
            return self.detection_s > 3 * DETECTION_S or self.recovery_s > 5 * aim
        return self.detection_s > 1.25 * DETECTION_S or self.recovery_s > 1.25 * aim

    def __str__(self) -> str:
        return f"{self.fault}: detected after {self.detection_s:.1f} s, at work {self.recovery_s:.1f} s later"


def events_of(folder: Path, life: int) -> list[dict[str, Any]]:
    """The events of one life of a run's own process; the last line may be torn by a kill."""
    path = folder / f"events-{life}"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line) for line in lines]


def at_work(folder: Path, life: int, events: Iterable[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """When each process of a host did its first work. Downpour's shards write that down themselves."""
    found = {(one["host"][0], one["host"][1]): one["at"] for one in events if one["what"] == "work"}
    for path in (folder / f"log-{life}").glob("shard *"):
        name, _, incarnation = path.name.partition("#")
        times = [line.split("|")[1] for line in path.read_text().splitlines() if line.startswith("at work|")]
        found.pop((name, int(incarnation)), None)
        found.update({(name, int(incarnation)): float(one) for one in times})
    return found


def recoveries(folder: Path, faults: Sequence[Fault], starts: Sequence[float]) -> Iterator[Recovery]:
    """Yields the recoveries from the faults of a run whose own process was started at these times."""
    events = [events_of(folder, life) for life in range(len(starts))]
    found = {fault: _of(fault, folder, events, starts) for fault in faults}
    for fault, times in found.items():
        if times is not None:
            others = [one for one in faults if one is not fault]
            alone = not any(_touches(one, found[one], fault.at, times[1]) for one in others)
            began = fault.at
            if fault.role != "coordinator":  # it may have come while the run's own process was imported
                began = max(began, events[fault.life][0]["at"])
            yield Recovery(fault, times[0] - began, times[1] - times[0], alone)


def _of(
    fault: Fault, folder: Path, events: Sequence[list[dict[str, Any]]], starts: Sequence[float]
) -> tuple[float, float] | None:
    """When a successor was ordered, and when it was at work; None where there was none."""
    if fault.role == "pool":
        return None  # no run waits for it
    if fault.role == "coordinator":
        return _of_coordinator(fault, events, starts)
    works = at_work(folder, fault.life, events[fault.life])
    is_one = fault.role not in ("template", "worker")
    return (_of_host if is_one else _of_many)(fault, events[fault.life], works)


def _touches(fault: Fault, times: tuple[float, float] | None, start: float, stop: float) -> bool:
    """Whether a fault may have delayed what happened in a time."""
    until = fault.at + (fault.frozen_s or 0.0) + _AFTER_S
    return fault.at < stop and start < (until if times is None else max(times[1] + _AFTER_S, until))


def _of_coordinator(
    fault: Fault, events: Sequence[list[dict[str, Any]]], starts: Sequence[float]
) -> tuple[float, float] | None:
    if fault.frozen_s is not None or fault.life + 1 >= len(starts):
        return None
    steps = [one["at"] for one in events[fault.life + 1] if one["what"] == "progress"]
    return (starts[fault.life + 1], steps[0]) if steps else None


def _of_many(
    fault: Fault, events: list[dict[str, Any]], works: dict[tuple[str, int], float]
) -> tuple[float, float] | None:
    """Of a process with which its hosts end: all that are ordered anew within a second."""
    if fault.frozen_s is not None:
        return None
    text = "its worker" if fault.role == "worker" else "its process"
    orders = [one for one in events if one["what"] == "restart" and one["at"] >= fault.at]
    orders = [one for one in orders if text in one["reason"]]
    hosts = {
        (name, incarnation)
        for one in orders
        if one["at"] < orders[0]["at"] + _TOGETHER_S
        for name, incarnation in one["hosts"]
    }
    if not hosts or any(host not in works for host in hosts):
        return None
    return orders[0]["at"], max(works[host] for host in hosts)


def _of_host(
    fault: Fault, events: list[dict[str, Any]], works: dict[tuple[str, int], float]
) -> tuple[float, float] | None:
    if fault.frozen_s is not None and fault.frozen_s < DEAD_S:
        return None
    until = math.inf if fault.frozen_s is None else fault.at + fault.frozen_s + _TOGETHER_S
    for one in events:
        if one["what"] == "restart" and fault.at <= one["at"] < until:
            for name, incarnation in one["hosts"]:
                if name == fault.name:
                    worked = works.get((name, incarnation))
                    return None if worked is None else (one["at"], worked)
    return None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as this share of them; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
