"""The lanes of a run's newest sampled step, each above the one that was predicted."""

from __future__ import annotations

from typing import Final

from partita.engine.protocol.watch_messages import Lane as Measured
from partita.engine.view.gantt import Gantt, GanttBar, Lane
from partita.engine.watch.records import RunBegan, SampledStep
from partita.engine.watch.state import State
from partita.partitioner.text import readable_seconds

_OLD_S: Final = 20.0
"""Seconds for which a step that all machines have reported is preferred to a newer one."""
_LEAST: Final = 0.05
"""Share of a step by which a machine must wait longer than predicted to be worth a sentence."""


def shown_sample(state: State) -> SampledStep | None:
    """Returns the newest sampled step that all machines have reported, or the newest if it is far newer."""
    newest = state.newest_sample()
    if newest is None or state.run is None:
        return newest
    whole = [
        one
        for samples in state.samples.values()
        for one in samples
        if len(one.lanes) == len(state.run.machines) and one.at_s >= newest.at_s - _OLD_S
    ]
    return max(whole, key=lambda sample: sample.at_s, default=newest)


def step_gantt(state: State) -> Gantt | None:
    """Lays out the newest sampled step beside the predicted one; the predicted alone before the first sample,
    and None where nothing is known.
    """
    run, sample = state.run, shown_sample(state)
    if run is None or not (run.predicted or sample):
        return None
    measured = {lane.machine: lane for lane in sample.lanes} if sample else {}
    predicted = {lane.machine: lane for lane in run.predicted}
    lanes: list[Lane] = []
    bars: list[GanttBar] = []
    for machine in sorted(measured.keys() | predicted.keys()):
        name = name_of(run, machine)
        if machine in measured:
            bars += _bars(run, measured[machine], len(lanes))
            lanes.append(Lane(name, note=_note(measured[machine])))
        if machine in predicted:
            bars += _bars(run, predicted[machine], len(lanes))
            alone = machine not in measured
            lanes.append(Lane(name if alone else "", thin=not alone, pale=True, note="predicted" * alone))
    title = "The predicted step" if sample is None else f"Step {sample.step:,} of replica {sample.replica}"
    return Gantt(title, "", tuple(lanes), tuple(bars))


def name_of(run: RunBegan, machine: int) -> str:
    """Returns the name of a machine of the plan."""
    return run.machines[machine].name if 0 <= machine < len(run.machines) else f"machine {machine}"


def slowest_wait(run: RunBegan, sample: SampledStep) -> str:
    """Says which machine waits longest beyond its prediction, for whom and what; nothing if none does."""
    predicted = {lane.machine: lane.wait_s for lane in run.predicted}
    late = [(lane.wait_s - predicted.get(lane.machine, 0.0), lane) for lane in sample.lanes if lane.waited]
    if not late:
        return ""
    beyond_s, lane = max(late, key=lambda pair: pair[0])
    if beyond_s < _LEAST * sample.step_s:
        return ""
    first = lane.waited[0]
    name, peer = name_of(run, lane.machine), name_of(run, first.peer)
    return (
        f"{name} waits {readable_seconds(beyond_s)} longer than predicted, most for {first.what} from {peer}."
    )


def _bars(run: RunBegan, lane: Measured, number: int) -> list[GanttBar]:
    found = []
    for one in lane.intervals:
        label = one.what
        if one.kind == "wait":
            label = f"waits for {one.what}" + (f" from {name_of(run, one.peer)}" if one.peer >= 0 else "")
        if one.joined > 1:
            label += f" and {one.joined - 1} more"
        found.append(GanttBar(number, one.start_s, one.stop_s, label, one.kind))
    return found


def _note(lane: Measured) -> str:
    step_s = (lane.compute_s + lane.transfer_s + lane.wait_s + lane.idle_s) or 1.0
    shares = {"compute": lane.compute_s, "transfer": lane.transfer_s, "wait": lane.wait_s}
    return " · ".join(f"{name} {seconds / step_s:.0%}" for name, seconds in shares.items())
