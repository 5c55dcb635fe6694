"""The numbers of a profile: what is compared with what, and that they survive as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from partita.engine.profile import Profile, Report, profile_network
from partita.engine.view.steps import steps_of
from partita.partitioner import Cluster, Link, Machine, Plan, partition
from partita.partitioner.text import readable_seconds
from tests.faults import toy
from tests.profile.conftest import STEPS


def test_what_can_be_played_here_is_measured_and_the_rest_is_simulated(profile: Profile) -> None:
    report = profile.report()
    assert [(p.machines, p.source) for p in report.points] == [
        (1, "measured"),
        (2, "measured"),
        (4, "simulated"),
    ]
    assert (report.cores, report.steps, report.batch, report.train) == (2, STEPS, 8, True)


def test_the_drawn_step_is_the_one_that_figures_speak_of_or_says_which_it_is(profile: Profile) -> None:
    point = profile.points[1]
    assert point.measured is not None
    lengths = [timeline.step_s for timeline in point.measured.timelines]
    nearest = min(lengths, key=lambda step_s: abs(step_s - point.measured.step_s))
    assert point.measured.typical.step_s == nearest
    for steps_s, words in (
        ((nearest,) * STEPS, f"a measured step of {readable_seconds(nearest)} · "),
        (
            (nearest / 2,) * STEPS,
            f"a measured step of {readable_seconds(min(lengths))}, of those traced the nearest to the "
            f"{readable_seconds(nearest / 2)} that a step takes · ",
        ),
    ):
        measured = replace(point.measured, steps_s=steps_s)
        drawn, _ = steps_of(replace(point, measured=measured))
        assert drawn.subtitle.startswith(words)


def test_measured_is_compared_with_measured_and_simulated_with_simulated(profile: Profile) -> None:
    one, two, four = profile.report().points
    assert one.speed_up == one.predicted_speed_up == one.efficiency == 1.0
    measured = [p.measured.steps_s for p in profile.points if p.measured is not None]
    steps = [float(np.quantile(found, 0.1)) for found in measured]
    assert (one.step_s, two.step_s) == tuple(steps)
    assert one.spread == statistics.median(measured[0]) / steps[0] - 1
    assert two.speed_up == steps[0] / steps[1] and two.efficiency == two.speed_up / 2
    plans = [point.plan for point in profile.points]
    assert four.step_s == four.predicted_step_s == plans[2].predicted_step_s
    assert four.speed_up == plans[0].predicted_step_s / plans[2].predicted_step_s
    assert two.prediction_error == two.predicted_step_s / two.step_s - 1
    assert four.prediction_error is None and four.spread is None


def test_what_is_sent_is_what_the_plan_says(profile: Profile) -> None:
    for point, found in zip(profile.points, profile.report().points, strict=True):
        messages = point.plan.messages
        assert found.sent_bytes == sum(message.n_bytes for message in messages)
        assert sum(part.sent_messages for part in found.parts) == len(messages)
        assert [part.name for part in found.parts] == [m.name for m in point.plan.cluster.machines]


def test_json_reads_back(profile: Profile) -> None:
    report = profile.report()
    assert Report.from_json(report.to_json()) == report


def test_what_is_no_report_is_refused(profile: Profile) -> None:
    text = profile.report().to_json()
    with pytest.raises(ValueError, match="has format 7, but this version reads 1; write it again"):
        Report.from_json(text.replace('"format": 1', '"format": 7'))
    with pytest.raises(ValueError, match=r"this is no report of a profile: .*; write it again"):
        Report.from_json(text.replace('"speed_up": 1.0', '"speed_up": "fast"'))
    with pytest.raises(ValueError, match="no report of a profile"):
        Report.from_json(b"\xff")


def test_the_text_says_which_is_which(profile: Profile) -> None:
    lines = str(profile).splitlines()
    assert lines[0].startswith("toy: a training step, batch 8, float32, ")
    assert "on this machine's 2 cores" in lines[1] and lines[1].endswith("simulated: predicted, uncalibrated")
    assert "of 20 steps, at workers; " in str(replace(profile, elsewhere=True, steps=20)).splitlines()[1]
    table = [line.split() for line in lines[4:7]]
    assert [row[:2] for row in table] == [["1", "measured"], ["2", "measured"], ["4", "simulated"]]
    assert [line.partition(":")[0].strip() for line in lines[9:]] == ["1 machine", "2 machines", "4 machines"]


def test_a_described_cluster_is_simulated_alone() -> None:
    fast, slow = (Machine(name, flops_per_s=rate) for name, rate in (("fast", 9e10), ("slow", 3e10)))
    cluster = Cluster((fast, slow), link=Link(bytes_per_s=1e9))
    settings = {"batch": 8, "cluster": cluster, "strategy": "balanced"}
    found = profile_network(toy.network(), (2,), cores=64, **settings)
    assert [point.source for point in found.report().points] == ["simulated", "simulated"]
    assert found.points[0].plan.cluster.machines == (fast,)
    assert found.points[1].plan.cluster == cluster
    assert found.report().conditions == "1 thread a machine; simulated: predicted, uncalibrated"
    with pytest.raises(ValueError, match="the cluster has 2 machines, not 3; ask for fewer, or add some"):
        profile_network(toy.network(), (1, 3), **settings)


def test_a_network_that_fits_on_no_single_machine_is_compared_with_the_fewest_that_hold_it() -> None:
    whole = partition(toy.network(), Cluster.local(1), batch=8).memory_bytes(0)
    machines = tuple(Machine(name, memory_bytes=int(0.9 * whole)) for name in "abcd")
    settings = {"batch": 8, "cluster": Cluster(machines), "strategy": "balanced"}
    found = profile_network(toy.network(), (2, 4), **settings).report()
    assert [point.machines for point in found.points] == [2, 4]
    two, four = found.points
    assert (two.speed_up, two.efficiency) == (1.0, 1.0)
    assert four.speed_up == two.step_s / four.step_s and four.efficiency == four.speed_up / 2
    assert "speed-up over 2 machines, because it does not fit on fewer" in found.conditions
    with pytest.raises(ValueError, match="the part of machine 'a' takes"):
        profile_network(toy.network(), (1, 2), **settings)


def test_kernels_are_measured_before_planning_and_those_of_the_plans_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Predictions use the latest measurement."""
    asked: list[tuple[object, ...]] = []

    class Found:
        def __init__(self, speed: float) -> None:
            self.speed = speed

        def cluster(self, machines: int, *, threads: int) -> Cluster:
            local = Cluster.local(machines, threads=threads)
            return Cluster(tuple(replace(machine, speed=self.speed) for machine in local.machines))

    def calibrate(network: object = None, *, plans: Sequence[Plan] = (), **settings: object) -> Found:
        asked.append((network, [len(plan.cluster) for plan in plans], settings["batch"], settings["threads"]))
        return Found(2.0 if plans else 1.0)

    monkeypatch.setattr("partita.engine.profile.run.calibrate", calibrate)
    network = toy.network()
    found = profile_network(network, (2,), batch=8, threads=3, strategy="balanced", cores=1)
    assert asked == [(network, [], 8, 3), (None, [1, 2], 8, 3)]
    assert {m.speed for point in found.points for m in point.plan.cluster.machines} == {2.0}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_report_fits_every_terminal(profile: Profile, width: int) -> None:
    report = profile.report()
    lines = report.text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert set(report.text().split()) <= {*"\n".join(lines).split()}
    assert str(report) == report.text()
