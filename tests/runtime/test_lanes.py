"""Lanes: the division of a machine's step is that of its timeline, in a bounded number of intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.watch_messages import GROUP_OF, MOST_INTERVALS, Lane
from partita.engine.runtime.lanes import LaneFolder, lanes_of
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition
from partita.partitioner.ir.program import parse_program
from tests.plans import plans


def _whole(lane: Lane) -> float:
    return lane.compute_s + lane.transfer_s + lane.wait_s + lane.idle_s


def _check(lane: Lane, step_s: float, most: int) -> None:
    assert len(lane.intervals) <= most
    assert _whole(lane) == pytest.approx(step_s, abs=1e-7)
    assert sum(waited.seconds for waited in lane.waited) == pytest.approx(lane.wait_s, abs=1e-6)
    ends = [end for one in lane.intervals for end in (one.start_s, one.stop_s)]
    assert ends == sorted(ends), "intervals overlap"
    assert not ends or (ends[0] >= 0.0 and ends[-1] <= step_s + 1e-7)


@given(plans())
def test_a_lane_divides_a_step_as_its_timeline_does(plan: Plan) -> None:
    timeline = plan.simulated_step
    for lane, times in zip(lanes_of(timeline, most=1 << 20), timeline.times, strict=True):
        _check(lane, timeline.step_s, 1 << 20)
        found = lane.compute_s, lane.transfer_s, lane.wait_s, lane.idle_s
        wanted = times.computing_s, times.sending_s, times.waiting_s, times.idle_s
        assert found == pytest.approx(wanted, abs=1e-7)
        sums = dict.fromkeys(("compute", "transfer", "wait"), 0.0)
        for one in lane.intervals:
            sums[GROUP_OF[one.kind]] += one.stop_s - one.start_s
        assert tuple(sums.values()) == pytest.approx(found[:3], abs=1e-6)


@given(st.integers(3, 40))
def test_intervals_are_joined_until_there_are_few_enough(most: int) -> None:
    net = Network("deep")
    x = net.input("x", shape=(8,))
    for n in range(3):
        x = Dense(8, activation="relu", name=f"h{n}")(x)
    net.loss = SoftmaxCrossEntropy()(x, net.target("label"))
    plan = partition(net, Cluster.local(2), batch=16, strategy="balanced", micro_batches=4)
    timeline = plan.simulated_step
    for lane, whole in zip(lanes_of(timeline, most=most), lanes_of(timeline, most=1 << 20), strict=True):
        assert len(whole.intervals) > most
        _check(lane, timeline.step_s, most)
        assert lane.waited == whole.waited
        counted = sum(one.joined for one in lane.intervals)
        assert counted >= len(whole.intervals) / 2, "joined intervals say how many they are"


def test_a_wait_names_what_is_missing_and_who_sends_it() -> None:
    program = parse_program(
        1, "0 RECV h[0:4] <- 0\n1 FORWARD g[0:2] = h[0:4] after 0\n2 SEND g[0:2] -> 2 after 1"
    )
    started = np.array([3.0, 3.5, 6.0]) + 100.0
    stopped = np.array([3.5, 5.5, 6.25]) + 100.0
    arrived = np.array([2.5, np.nan, np.nan]) + 100.0
    lane = LaneFolder(program).fold(started, stopped, arrived, began_s=100.0, over_s=107.0)
    assert (lane.compute_s, lane.transfer_s, lane.wait_s, lane.idle_s) == (2.0, 0.75, 2.5, 1.75)
    spans = [(one.start_s, one.stop_s, one.kind, one.what, one.layer, one.peer) for one in lane.intervals]
    assert spans == [
        (0.0, 2.5, "wait", "activations of h", "h", 0),
        (3.0, 3.5, "receive", "RECV h", "h", 0),
        (3.5, 5.5, "forward", "FORWARD g", "g", -1),
        (6.0, 6.25, "send", "SEND g", "g", 2),
    ]
    assert [(one.peer, one.seconds, one.what) for one in lane.waited] == [(0, 2.5, "activations of h")]


def test_a_lane_of_ten_thousand_instructions_is_small() -> None:
    lines = [f"{n} FORWARD h/{n}[0:1]" for n in range(10_000)]
    program = parse_program(0, "\n".join(lines))
    times = np.arange(10_000) * 1e-5
    lane = LaneFolder(program).fold(times, times + 8e-6, np.full(10_000, np.nan), began_s=0.0, over_s=0.1)
    assert lane.instructions == 10_000
    assert len(lane.intervals) <= MOST_INTERVALS
    assert lane.compute_s == pytest.approx(0.08)
