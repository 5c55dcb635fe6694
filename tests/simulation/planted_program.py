"""Faults planted in the machines of a driver's programs, and in drivers: each breaks an invariant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from partita.engine import LARS
from partita.engine.drivers import AllReduce
from partita.engine.protocol import actions as a
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.events import Received, Send, Span
from partita.engine.protocol.exchange import (
    AddChunk,
    CopyChunk,
    CopyTarget,
    Exchange,
    ExchangeDone,
    Hierarchical,
    Server,
    Tree,
)
from partita.engine.protocol.host import HostMachine, HostPhase
from partita.engine.protocol.joined_book import JoinedBook
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.joined_work import JoinedWork, Stage
from partita.engine.protocol.messages import Directory, DirectoryAck, Heartbeat, Hello, Ready
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.program_exchanges import Exchanges
from partita.engine.protocol.program_saves import Saves
from partita.engine.protocol.replica_messages import Pause, View
from partita.engine.protocol.view_change import Agreement, Place, ViewChange
from partita.engine.testing import Fault
from tests.simulation.outcomes import PlantedFaults as Planted

SHARDED = AllReduce(replicas=3, shard_optimizer=True)
BACKUP = AllReduce(replicas=4, by=Server(), backup_workers=1)
NORMED = AllReduce(replicas=3, optimizer=LARS(0.05))


def of_any_view(method: Any, part: Any, view: int) -> bool:
    return bool(method(part, view)) or part.stage in (Stage.AT_WORK, Stage.COPYING)


def taken_as_of_this_view(method: Any, exchange: Any, event: Any, now: float) -> Any:
    if isinstance(event, Received) and hasattr(event.message, "view"):
        message = msgspec.structs.replace(event.message, view=exchange.group.view)
        event = msgspec.structs.replace(event, message=message)
    return method(exchange, event, now)


def changed(effects: Any, kind: type, change: Any) -> list[Any]:
    return [
        msgspec.structs.replace(effect, message=change(effect.message))
        if isinstance(effect, Send) and isinstance(effect.message, kind)
        else effect
        for effect in effects
    ]


def with_its_replica(method: Any, mode: Any, host: Any, replica: Any, reason: str, now: float) -> Any:
    return mode.restart_replica(replica, reason, now)


def never(method: Any, change: Any) -> Place:
    return -1, 0


def seated_twice(method: Any, coordinator: Any, event: Any, now: float) -> Any:
    def twice(view: View) -> View:
        return msgspec.structs.replace(view, members=(*view.members, view.members[-1]))

    return changed(method(coordinator, event, now), View, twice)


def two_views_of_a_number(method: Any, coordinator: Any, change: Any, now: float) -> Any:
    coordinator._numbers = max(1, coordinator._numbers)
    return method(coordinator, replace(change, number=1, _answers=change._answers), now)


def from_the_start(method: Any, book: Any, step: int, replicas: int, *, stops: bool) -> Any:
    return replace(method(book, step, replicas, stops=stops), start=0)


def one_step_ahead(method: Any, book: Any, step: int, replicas: int, *, stops: bool) -> Any:
    leased = method(book, step, replicas, stops=stops)
    ahead = book.batches.after(leased.start, replicas)
    return replace(leased, start=min(ahead, leased.stop)) if step else leased


def added_again(
    method: Any, exchange: Any, use: Any, piece: int, rank: int, payload: Any, effects: Any
) -> None:
    again = rank in exchange._routes[piece].adds[: use.added[piece]] and not use.final[piece]
    method(exchange, use, piece, rank, payload, effects)
    if again:
        effects.append(AddChunk(exchange._span(use, piece), payload))


def the_slowest(method: Any, change: Any) -> Agreement | None:
    found = method(change)
    steps = [answer.step for answer in change._answers.values()]
    return found if found is None or None in steps else Agreement(min(steps), ())


def nothing_is_copied(method: Any, change: Any, step: int, sources: Any) -> Iterator[Any]:
    for copy in method(change, step, sources):
        yield msgspec.structs.replace(copy, source=copy.target, target=copy.source)


def released(method: Any, exchanges: Any, vector: str) -> bool:
    return True


def norms_are_released(method: Any, exchanges: Any, vector: str) -> bool:
    return vector == "norms" or bool(method(exchanges, vector))


def all_ranges(method: Any, exchanges: Any) -> tuple[Span, ...]:
    return tuple(Span("parameters", one.start, one.stop) for one in exchanges._seat.spans)


def window_stands_still(method: Any, exchange: Any, use: Any, piece: int, effects: list[Any]) -> None:
    before = use.ahead
    method(exchange, use, piece, effects)
    use.ahead = max(before, use.ahead)


def always_the_first(method: Any, exchange: Any, use: Any, piece: int) -> Span:
    span: Span = method(exchange, use, 0)
    return span


def without(left_out: Any) -> Any:
    """A driver's program that leaves out some actions."""

    def program(method: Any, driver: Any, me: Any) -> Any:
        return (action for action in method(driver, me) if not left_out(action))

    return program


own_norms_alone = without(lambda action: isinstance(action, a.AllReduce) and action.vector == "norms")
no_norms = without(lambda action: isinstance(action, a.Norms))


def first_piece_is_all(method: Any, target: Any, event: Any, now: float) -> Any:
    effects = method(target, event, now)
    if target._waiting is not None and any(isinstance(effect, CopyChunk) for effect in effects):
        target._waiting = None
        effects.append(ExchangeDone(target._group.exchange, 0))
    return effects


def one_step_late(method: Any, saves: Any, step: int, loss_scale: Any) -> Any:
    asked = saves._asked
    if asked is not None and step == asked.step:
        return []
    late = asked is not None and step == asked.step + 1
    return method(saves, asked.step if late else step, loss_scale)


def between_update_and_safe_point(method: Any, part: Any) -> Any:
    part._changed = False
    return method(part)


def asked_once(method: Any, coordinator: Any, now: float) -> Any:
    effects = method(coordinator, now)
    return [e for e in effects if not isinstance(e, Send) or not isinstance(e.message, Pause | View)]


def nothing_is_asked_again(method: Any, exchange: Any, now: float, effects: Any) -> None:
    return None


def alone(method: Any, exchanges: Any, names: Any, number: int) -> list[str]:
    return []


def a_sum_is_left_out(method: Any, exchange: Any, use: Any, piece: int, effects: list[Any]) -> None:
    before = len(effects)
    method(exchange, use, piece, effects)
    added = [effect for effect in effects[before:] if isinstance(effect, AddChunk)]
    if len(added) == len(exchange._routes[piece].adds) > 0:
        effects.remove(added[0])


def unscaled(method: Any, exchange: Any, use: Any) -> float:
    return 1


def not_again(kind: type) -> Any:
    """A host that sends a message of this kind once."""

    def once(method: Any, host: Any, now: float) -> Any:
        effects = method(host, now)
        said = host.__dict__.setdefault("said", [])
        kept = [e for e in effects if not isinstance(e, Send) or not isinstance(e.message, kind) or not said]
        said += [e for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]
        return kept

    return once


def ready_is_not_repeated(method: Any, host: Any, now: float) -> Any:
    return [e for e in method(host, now) if not isinstance(e, Send) or not isinstance(e.message, Ready)]


def set_up_again(method: Any, host: Any, event: Any) -> Any:
    host.phase, host.role = HostPhase.GREETING, None
    return method(host, event)


def acknowledged_whether_it_applies_or_not(method: Any, host: Any, directory: Any, now: float) -> Any:
    effects = method(host, directory, now)
    return [*effects[:-1], Send(COORDINATOR, DirectoryAck(directory.revision))]


def older_ones_apply(method: Any, directory: Any, revision: int) -> bool:
    return bool(directory.since <= revision)


HOST_FAULTS = [
    Planted("Hello is sent once", "I8", (Fault(HostMachine, "_tick", not_again(Hello)),)),
    Planted("Ready is sent once", "I8", (Fault(HostMachine, "_tick", ready_is_not_repeated),)),
    Planted("one heartbeat is enough", "I8", (Fault(HostMachine, "_tick", not_again(Heartbeat)),), at=707),
    Planted(
        "a task is set up again", "V1 V2 W1 validate", (Fault(HostMachine, "_set_up", set_up_again),), at=9
    ),
    Planted(
        "a gap in the directory is acknowledged",
        "I8",
        (Fault(HostMachine, "_update_peers", acknowledged_whether_it_applies_or_not),),
        at=73,
    ),
    Planted(
        "an older directory replaces a newer one",
        "I8 V4",
        (Fault(Directory, "applies_to", older_ones_apply),),
        at=12,
    ),
]
"""Faults of the machine that every host has."""

FAULTS = [
    Planted(
        "a part takes others with it", "V5", (Fault(JoinedMode, "restart_part", with_its_replica),), at=540
    ),
    Planted("only a replica has a state", "V5", (Fault(ViewChange, "_reached_by_parts", never),), at=540),
    Planted(
        "an exchange of an old view is accepted",
        "V4 R1 R2",
        (
            Fault(JoinedWork, "_is_of_view", of_any_view),
            Fault(Exchange, "receive", taken_as_of_this_view),
        ),
        at=62,
    ),
    Planted("a replica is seated twice", "V2", (Fault(Coordinator, "receive", seated_twice),)),
    Planted("examples are done twice", "W1", (Fault(JoinedBook, "renew", from_the_start),)),
    Planted("examples are never done", "W1", (Fault(JoinedBook, "renew", one_step_ahead),)),
    Planted("a repeated sum counts twice", "R1 R2", (Fault(Exchange, "_add", added_again),), at=92),
    Planted("a view goes back", "V3 W1", (Fault(ViewChange, "agree", the_slowest),)),
    Planted(
        "the copy has the wrong direction",
        "R1 R2 validate W1",
        (Fault(ViewChange, "_copies", nothing_is_copied),),
    ),
    Planted(
        "numbers change that others may ask for", "R1 R2", (Fault(Exchanges, "released", released),), at=97
    ),
    Planted("a copy ends after its first piece", "R1", (Fault(CopyTarget, "receive", first_piece_is_all),)),
    Planted("a file is of the step after", "I5 I8", (Fault(Saves, "at", one_step_late),)),
    Planted(
        "a file is written between an update and its safe point",
        "I5",
        (Fault(JoinedWork, "_save_if_there", between_update_and_safe_point),),
        AllReduce(replicas=2, shard_optimizer=True),
        at=369,
    ),
    Planted("a view is announced once", "I8", (Fault(JoinedMode, "watch", asked_once),), at=9),
    Planted(
        "what is lost is not asked for", "I8", (Fault(Exchange, "_retry", nothing_is_asked_again),), at=38
    ),
    Planted(
        "a part goes on without its replica", "R1 R2 V3 W1 W2 validate", (Fault(Exchanges, "_behind", alone),)
    ),
    *(
        Planted(
            f"a sum is left out by {name}", "R2", (Fault(Exchange, "_add_held", a_sum_is_left_out),), driver
        )
        for name, driver in (
            ("ring", AllReduce(replicas=3)),
            ("tree", AllReduce(replicas=4, by=Tree())),
            ("hierarchical", AllReduce(replicas=4, by=Hierarchical())),
            ("server", AllReduce(replicas=3, by=Server())),
            ("reduce-scatter", SHARDED),
        )
    ),
    Planted("a sum without the last is not scaled", "R2", (Fault(Exchange, "_divisor", unscaled),), BACKUP),
    Planted(
        "norms change that others may ask for",
        "R1",
        (Fault(Exchanges, "released", norms_are_released),),
        AllReduce(replicas=4, by=Server(), backup_workers=1, optimizer=LARS(0.05)),
        at=385,
    ),
    Planted("norms count ranges of others", "R2", (Fault(Exchanges, "owned", all_ranges),), NORMED, at=1),
    Planted("norms are those of a part", "R2", (Fault(AllReduce, "replica", own_norms_alone),), NORMED, at=1),
    Planted(
        "no piece begins when another one is complete",
        "I8",
        (Fault(Exchange, "_finish_piece", window_stands_still),),
        NORMED,
        6,
    ),
    Planted("all pieces are the first", "R1 R2 S5", (Fault(Exchange, "_span", always_the_first),)),
    Planted("norms are forgotten", "program", (Fault(AllReduce, "replica", no_norms),), NORMED),
]
