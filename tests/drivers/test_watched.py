"""Runs that are watched: the records of a real run say what its own counters say, whatever the driver."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from partita.engine import LBFGS, AllReduce, Downpour, Sandblaster, train
from partita.engine.drivers import Driver
from partita.engine.protocol.coordinator_effects import WatchPolicy
from partita.engine.run import Record, supervisor, training
from partita.engine.watch.file import read_stream
from partita.engine.watch.records import RunBegan, RunEnded, SampledStep
from partita.engine.watch.state import State
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import Partita, WatchedThreads
from tests.faults import toy


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are asked at every tick, and record many steps."""
    monkeypatch.setattr(training, "WatchPolicy", partial(WatchPolicy, ask_s=0.02, record_s=0.02))
    monkeypatch.setattr(supervisor, "TICK_S", 0.01)


def _plan(machines: int = 2) -> Plan:
    return partition(toy.network(), Cluster.local(machines), batch=16, strategy="balanced")


def _watched(path: Path, driver: Driver, plan: Plan, epochs: int | None = 12) -> tuple[State, list[Record]]:
    given: list[Record] = []
    path = path / "records.jsonl"
    train(plan, toy.data(), driver=driver, epochs=epochs, watch=path, show="nothing", on_record=given.append)
    state = State()
    for record in read_stream(path):
        state.add(record)
    return state, given


def _sum_of(state: State, field: str, kind: str) -> int:
    rows = (row for name, row in state.traffic.items() if name.startswith(kind))
    return sum(getattr(row, field) for row in rows)


def test_the_records_of_downpour_are_what_its_hosts_have_counted(
    tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    plan, driver = _plan(), Downpour(replicas=2, shards=2)
    state, given = _watched(tmp_path, driver, plan)
    run, ended, now = state.run, state.ended, state.progress
    assert run is not None and ended is not None and now is not None
    steps = 12 * 16
    assert (run.steps, ended.steps, now.step, ended.outcome) == (steps, steps, steps, "complete")
    assert now.examples == ended.examples == sum(record.examples for record in given) == 12 * 256
    assert run.predicted_step_s == plan.predicted_step_s
    assert [machine.memory_bytes for machine in run.machines] == [
        plan.memory_bytes(m, driver="downpour", optimizer_vectors=0) for m in (0, 1)
    ]

    boxes = on_threads[0].boxes
    for name, row in state.traffic.items():
        counters = boxes[name].counters
        if name.startswith("part"):
            assert sum(n for _, n in row.step_bytes) == counters.sent_of("Tensor").payload_bytes
            assert row.pushes == counters.sent_of("Push").messages
            assert row.push_bytes == counters.sent_of("Push").payload_bytes
            assert row.pulls == counters.received_of("Parameters").messages
            assert sum(row.staleness) == row.pushes, "every push is acknowledged at the end"
    of_parts, of_shards = (_sum_of(state, "pushes", kind) for kind in ("part", "shard"))
    assert of_parts == of_shards, "what is sent arrives"
    assert 0 < sum(one.pushes or 0 for one in state.replicas.values()) <= of_parts, "as of the last reports"
    assert _sum_of(state, "steps", "part") == 2 * steps, "each of two machines has done each step"
    sent = {(link.source, link.destination): link.n_bytes for link in run.links}
    assert state.sent_per_step() == sent, "the formula is what is sent"


@pytest.mark.slow
def test_sampled_steps_show_where_the_time_of_every_machine_went(
    tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    state, _ = _watched(tmp_path, Downpour(), _plan(), epochs=15)
    samples = [one for one in read_stream(tmp_path / "records.jsonl") if isinstance(one, SampledStep)]
    assert samples and state.newest_sample() == samples[-1]
    whole = [sample for sample in samples if [lane.machine for lane in sample.lanes] == [0, 1]]
    assert whole, "both parts record the same steps"
    for sample in whole:
        for lane in sample.lanes:
            parts = lane.compute_s + lane.transfer_s + lane.wait_s + lane.idle_s
            assert parts == pytest.approx(sample.step_s, rel=1e-6, abs=1e-6)
            assert lane.compute_s > 0 and {one.peer for one in lane.waited} <= {1 - lane.machine}
            assert any(one.layer == "hidden" for one in lane.intervals)


@pytest.mark.parametrize(
    ("driver", "machines", "epochs"),
    [
        pytest.param(AllReduce(replicas=2), 1, 15, id="all-reduce"),
        pytest.param(
            Sandblaster(LBFGS(max_iterations=40, gtol=0.0), replicas=2),
            1,
            None,
            id="sandblaster",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Sandblaster(LBFGS(max_iterations=40, gtol=0.0)),
            2,
            None,
            id="sandblaster-cut",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_driver_writes_progress_samples_and_an_end(
    driver: Driver, machines: int, epochs: int | None, tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    state, given = _watched(tmp_path, driver, _plan(machines), epochs)
    assert state.ended is not None and state.ended.outcome == "complete"
    assert state.progress is not None and state.progress.step == state.ended.steps
    last = {record.replica: record.step for record in given}
    assert sum(last.values()) == state.ended.steps
    assert state.newest_sample() is not None
    assert state.counts["started"] == state.counts["ended"] == 1
    assert {row.state for row in state.hosts.values()} <= {"ready", "gone"}


def test_a_run_that_fails_says_so_in_its_last_record(
    tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    path = tmp_path / "records.jsonl"
    wrong = RuntimeError("the user's function does not like this loss")

    def fails(record: Record) -> None:
        raise wrong

    with pytest.raises(RuntimeError, match="does not like"):
        train(_plan(1), toy.data(), driver=Downpour(), epochs=3, watch=path, show="nothing", on_record=fails)
    records = read_stream(path)
    assert isinstance(records[0], RunBegan) and isinstance(records[-1], RunEnded)
    assert records[-1].outcome == "failed" and records[-1].text == str(wrong)


def test_the_command_shows_a_run_from_the_folder_of_its_checkpoints(
    partita: Partita, on_threads: list[WatchedThreads]
) -> None:
    file = Path(toy.__file__)
    ran = partita("train", str(file), "--machines", "1", "--epochs", "2", "--watch")
    assert ran.code in (0, None), ran.err
    assert "toy.checkpoints/records-1.jsonl" in ran.err
    shown = partita("watch", "toy.checkpoints", "--once")
    live = partita("watch", "toy.checkpoints", "--text")
    assert "toy, Downpour: complete" in live.out
    for wrong in (("--once", "--page"), ("--text", "--save-page", "page.html")):
        refused = partita("watch", "toy.checkpoints", *wrong)
        assert refused.code == 1 and wrong[0] in refused.err
    assert "toy, Downpour: complete" in shown.out and "part 0.0" in shown.out
    missing = partita("watch", ".", "--once")
    assert missing.code == 1 and "no records of a run" in missing.err
