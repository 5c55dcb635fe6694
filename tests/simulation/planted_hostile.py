"""Receivers of a hostile member's frames that leave a check out: each must be caught."""

from __future__ import annotations

from typing import Any

import msgspec

from partita.engine.protocol import ApplyOnArrival, Coordinator, ShardRanges
from partita.engine.protocol.conduct import Conduct
from partita.engine.protocol.exchange.exchange import Exchange
from partita.engine.protocol.host import HostMachine
from partita.engine.protocol.host_registry import HostState
from partita.engine.protocol.link import Links
from partita.engine.protocol.supervision import Supervision
from partita.engine.testing import Fault
from tests.simulation.outcomes import PlantedFaults


def nothing(real: Any, self: Any, *arguments: Any) -> list[Any]:
    return []


def none(real: Any, self: Any, *arguments: Any) -> None:
    return None


def never_cuts_off(real: Any, self: Any, sender: str, now: float) -> str:
    return "again"


def unreported(real: Any, self: Any, effect: Any, now: float) -> list[Any]:
    return real(self, effect, now)[:1]


def thrice(real: Any, self: Any, effect: Any, now: float) -> list[Any]:
    return 3 * real(self, effect, now)


def reports_once(real: Any, self: Any, now: float) -> Any:
    self._cut_off.clear()
    return real(self, now)


def takes_any_report(real: Any, self: Any, event: Any, fetch: Any) -> Any:
    known = max([event.incarnation, *(one.incarnation + 1 for one in fetch.earlier)])
    return real(self, msgspec.structs.replace(event, incarnation=known), fetch)


def waits_for_a_backup(real: Any, self: Any, host: Any, why: str, now: float) -> Any:
    if host.shard and host.state is HostState.READY:
        return [] if host.replaced is not None else self._replace_later(host, why, now)
    return real(self, host, why, now)


FAULTS = [
    PlantedFaults("nobody is cut off", "C1", (Fault(Conduct, "refused", never_cuts_off),), driver="downpour"),
    PlantedFaults(
        "one that is cut off is taken",
        "C1",
        (Fault(Conduct, "is_cut_off", lambda *_: False),),
        "sandblaster",
        at=6,
    ),
    PlantedFaults("a host refuses nothing", "C2", (Fault(HostMachine, "_refuse", nothing),), "all_reduce"),
    PlantedFaults(
        "a coordinator refuses nothing", "C2", (Fault(Coordinator, "_refuse", nothing),), "downpour"
    ),
    PlantedFaults("a flood is taken", "C1", (Fault(Conduct, "flood", none),), "downpour", at=79),
    PlantedFaults(
        "each accusation is believed", "C5", (Fault(Conduct, "accused", lambda *_: True),), "downpour", at=98
    ),
    PlantedFaults(
        "a refusal is not reported",
        "C3",
        (Fault(HostMachine, "_refuse", unreported), Fault(HostMachine, "_tick", reports_once)),
        "all_reduce",
        at=108,
    ),
    PlantedFaults(
        "who is cut off stays", "C3", (Fault(Supervision, "_cut_off", nothing),), "all_reduce", at=21
    ),
    PlantedFaults("a refusal does much", "C4", (Fault(HostMachine, "_refuse", thrice),), "sandblaster"),
    PlantedFaults(
        "a shard takes gradients of any size",
        "I1 validate",
        (Fault(ShardRanges, "rejection_reason", none),),
        "downpour_log",
        at=128,
    ),
    PlantedFaults(
        "a link takes parameters of any size",
        "I14 validate",
        (Fault(Links, "_rejection_reason", none),),
        "downpour",
        at=118,
    ),
    PlantedFaults(
        "an exchange takes pieces of any size",
        "R1 R2 V4 validate",
        (Fault(Exchange, "_misplaced", none),),
        "all_reduce",
        at=61,
    ),
    PlantedFaults(
        "a part may report about processes to come",
        "I1 I2 I3 I8",
        (Fault(ApplyOnArrival, "_fetch", takes_any_report),),
        "downpour",
        at=37,
    ),
    PlantedFaults(
        "a backup that was cut off fills a shard",
        "I4 I8 C3",
        (Fault(Supervision, "_cut_off", waits_for_a_backup),),
        "downpour_replicated",
        at=19,
    ),
]
