"""Makes the records of a run of what its coordinator sees: effects, events, and the records of hosts.

It decides nothing and asks nobody. What has come is gathered, and written about once a second: the number of
records does not depend on the number of messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from partita.engine.protocol.coordinator_effects import Commit, Committed, HostObserved, Restart, Warn
from partita.engine.protocol.events import Died, Received
from partita.engine.protocol.host_lifecycle import HostLifecycle, Phase
from partita.engine.protocol.host_registry import HostRecord, HostState
from partita.engine.protocol.messages import Failed
from partita.engine.protocol.names import COORDINATOR, machine_of
from partita.engine.watch import records as r
from partita.engine.watch.sampled import SampledSteps

EVERY_S: Final = 1.0
"""Seconds between two looks at what has come."""

_STATES: Final[dict[HostState, r.HostState]] = {
    HostState.LAUNCHED: "starting",
    HostState.PREPARING: "preparing",
    HostState.READY: "ready",
    HostState.GONE: "gone",
    HostState.AWAY: "lost",
}


class RunObserver:
    """Follows one run. All methods are for the thread of the coordinator; times are of its clock."""

    def __init__(self, machines: int, write: Callable[[r.Record], object], *, began_at: float) -> None:
        """Follows a run that has not begun.

        Args:
            machines: of a replica.
            write: takes the records, in order.
            began_at: when the run began, in seconds of the coordinator's clock.
        """
        self._write, self._began_at = write, began_at
        self._looked_at = float("-inf")
        self._heard: dict[str, float] = {}  # hosts, and when their last message came
        self._rows: dict[str, r.HostRow] = {}
        self._reports: dict[str, HostObserved] = {}  # since the last look
        self._known: dict[str, HostObserved] = {}
        self._answered: dict[str, float] = {}  # when the known report came, in seconds of the run
        self._samples: Final = SampledSteps(machines)
        self._waits: tuple[r.Wait, ...] = ()
        self._commits: dict[int, Commit] = {}
        self._has_started = False

    # What the coordinator sees.

    def saw_event(self, event: Any, now: float) -> None:
        """Notes an event before the coordinator handles it."""
        match event:
            case Received(sender=sender, message=message):
                self._heard[sender] = now
                if isinstance(message, Failed):
                    self._event("lost", f"{sender} failed: {message.reason}", now, host=sender)
            case Died(name=name, reason=reason):
                self._event("lost", f"{name} lost: {reason or 'its process ended'}", now, host=name)
            case Committed(checkpoint=number):
                self._checkpoint(self._commits.pop(number, None), now)

    def saw_effect(self, effect: Any, now: float) -> None:
        """Notes an effect that the coordinator asks for."""
        match effect:
            case HostObserved():
                self._reports[effect.host] = effect
                self._answered[effect.host] = now - self._began_at
                if effect.report.recorded is not None:
                    self._add_share(effect, now)
            case Warn(text=text):
                self._event("warning", text, now)
            case Commit():
                self._commits[effect.checkpoint] = effect
            case Restart(hosts=hosts, reason=reason) if any(incarnation for _, incarnation in hosts):
                names = ", ".join(name for name, _ in hosts)
                self._event("restarted", f"{names} restarted: {reason}", now, host=hosts[0][0])

    def _add_share(self, effect: HostObserved, now: float) -> None:
        row = self._rows.get(effect.host)
        recorded = effect.report.recorded
        if row is not None and row.replica is not None and recorded is not None:
            if row.incarnation != effect.incarnation:
                self._samples.drop(row.replica)
            self._samples.add(row.replica, recorded, effect.clock, now - self._began_at)

    def _checkpoint(self, commit: Commit | None, now: float) -> None:
        if commit is not None:
            steps = sum(commit.steps)
            text = f"checkpoint {commit.checkpoint} written ({steps:,} steps, {commit.lost:,} pushes lost)"
            self._event("checkpoint", text, now, step=steps)

    def _event(
        self, kind: r.EventKind, text: str, now: float, *, host: str = "", step: int | None = None
    ) -> None:
        self._write(r.Event(at_s=now - self._began_at, kind=kind, text=text, host=host, step=step))

    # Looks.

    def look(self, coordinator: HostLifecycle, now: float) -> None:
        """Writes what has changed, if the last look is a second ago."""
        if now - self._looked_at >= EVERY_S:
            self._looked_at = now
            self.flush(coordinator, now)

    def flush(self, coordinator: HostLifecycle, now: float) -> None:
        """Writes what has changed since the last look."""
        at_s = now - self._began_at
        self._write_hosts(coordinator, at_s)
        if not self._has_started and coordinator.phase is not Phase.LAUNCHING:
            self._has_started = True
            ready = coordinator.registry.counts[HostState.READY]
            self._event("started", f"{ready} hosts ready after {at_s:.1f} s", now)
        reports, self._reports = self._reports, {}
        self._known |= reports
        if reports:
            self._write(r.Exchanges(at_s=at_s, hosts=tuple(map(_traffic, reports.values()))))
            self._write(r.Memory(at_s=at_s, hosts=tuple(map(_memory, reports.values()))))
        for sample in self._samples.complete(at_s):
            self._write(sample)
        waits = tuple(self._present_waits(coordinator, at_s))
        if waits != self._waits:
            self._waits = waits
            self._write(r.Waits(at_s=at_s, waits=waits))

    def _write_hosts(self, coordinator: HostLifecycle, at_s: float) -> None:
        changed = []
        for host in coordinator.registry.hosts.values():
            before, row = self._rows.get(host.name), self._row(host, at_s)
            if row == before:
                continue
            self._rows[host.name] = row
            changed.append(row)
            is_back = row.state == "ready" and before is not None and before.state not in ("ready", "silent")
            if is_back and self._has_started:
                now = at_s + self._began_at
                self._event("joined", f"{host.name} is ready", now, host=host.name)
        if not self._has_started and COORDINATOR not in self._rows:
            own = r.HostRow(name=COORDINATOR, kind="coordinator", state="ready", pid=os.getpid())
            self._rows[COORDINATOR] = own
            changed.append(own)
        if changed:
            self._write(r.Hosts(at_s=at_s, hosts=tuple(changed)))

    def _row(self, host: HostRecord, at_s: float) -> r.HostRow:
        known, before = self._known.get(host.name), self._rows.get(host.name)
        measured = known is not None and known.incarnation == host.incarnation
        state = _STATES[host.state]
        if state == "ready" and self._silence(host.name, at_s) >= r.SILENT_S:
            state = "silent"
        kept = before is not None and (before.state, before.incarnation) == (state, host.incarnation)
        return r.HostRow(
            name=host.name,
            kind="part" if host.replica is not None else "backup" if host.shard else "shard",
            replica=host.replica,
            machine=machine_of(host.name) if host.replica is not None else None,
            incarnation=host.incarnation,
            state=state,
            since_s=before.since_s if kept and before is not None else at_s,
            place=host.machine,
            address=host.endpoint,
            pid=known.report.pid if measured and known is not None else 0,
            cores=known.report.cores if measured and known is not None else 0,
            compiled=host.compiled,
        )

    def _silence(self, host: str, at_s: float) -> float:
        heard = self._heard.get(host)
        return 0.0 if heard is None else at_s + self._began_at - heard

    def _present_waits(self, coordinator: HostLifecycle, at_s: float) -> Iterator[r.Wait]:
        for name, host in coordinator.registry.hosts.items():
            if host.state is not HostState.READY:
                continue
            silent_s = self._silence(name, at_s)
            if silent_s >= r.SILENT_S:
                since_s = round(at_s - silent_s, 3)
                yield r.Wait(host=COORDINATOR, on=name, what="a sign of life", since_s=since_s)
            known = self._known.get(name)
            if known is None or known.incarnation != host.incarnation:
                continue
            for wait in known.report.waits:
                since_s = round(self._answered[name] - wait.waited_s, 1)
                yield r.Wait(host=name, on=wait.host, what=wait.what, since_s=since_s)


def _traffic(observed: HostObserved) -> r.HostTraffic:
    report, counted = observed.report, observed.report.traffic
    return r.HostTraffic(
        host=observed.host,
        incarnation=observed.incarnation,
        steps=report.steps,
        step_bytes=counted.step_bytes,
        push_bytes=counted.push_bytes,
        pushes=counted.pushes,
        pull_bytes=counted.pull_bytes,
        pulls=counted.pulls,
        replica_bytes=counted.replica_bytes,
        replica_messages=counted.replica_messages,
        sent_bytes=counted.sent_bytes,
        received_bytes=counted.received_bytes,
        shared_bytes=counted.shared_bytes,
        staleness=report.staleness,
        refused=counted.refused,
    )


def _memory(observed: HostObserved) -> r.HostMemory:
    report = observed.report
    return r.HostMemory(
        host=observed.host,
        incarnation=observed.incarnation,
        pid=report.pid,
        resident_bytes=report.resident_bytes,
        pss_bytes=report.pss_bytes,
        cpu_s=round(report.cpu_s, 3),
    )
