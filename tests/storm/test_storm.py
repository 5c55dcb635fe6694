"""The storm's own checks find what they are for; a short storm is `slow`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from partita.engine.parameters.files import save_parameters
from partita.engine.runtime.buffers import layout_of
from tests.faults.oracle import Push
from tests.storm import checks, networks
from tests.storm.__main__ import app
from tests.storm.cells import Result, Spec, plan_of
from tests.storm.census import Census, Life, left_behind, segments
from tests.storm.checks import Violated, check_pushes
from tests.storm.moments import Moments
from tests.storm.processes import MARK
from tests.storm.recovery import Recovery, percentile, recoveries
from tests.storm.storm import Outcome
from tests.storm.table import line, table
from tests.storm.victims import Fault, Victims

ANY = 4
"""A seed that draws no moment."""

SPEC = Spec("downpour", "log", "here", 2, 3, 40, seed=5)


def sums_of(units: list[int]) -> Any:
    return -checks._units(SPEC)[units].sum(0)


def write_result(folder: Path, units: list[int]) -> None:
    """Writes the parameters of a run whose shards hold these units."""
    values = sums_of(units).astype(np.float32)
    weight = np.tile(values, (networks.ROWS, 1))
    save_parameters(folder / "result.safetensors", {"sums.weight": weight, "sums.bias": weight[:, 0].copy()})


def test_the_parameters_tell_whether_each_push_was_applied_once(tmp_path: Path) -> None:
    (tmp_path / "log-0").mkdir()
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(Result(lost=0, steps=SPEC.length)))
    everything = list(range(SPEC.length))
    write_result(tmp_path, everything)
    assert check_pushes(tmp_path, SPEC, lives=1).lost == 0
    for wrong, text in ((everything[1:], r"too many: \[-2.0"), ([*everything, 7], r"too many: \[2.0")):
        write_result(tmp_path, wrong)
        with pytest.raises(Violated, match=text):
            check_pushes(tmp_path, SPEC, lives=1)
    write_result(tmp_path, everything)
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(Result(lost=1, steps=SPEC.length)))
    with pytest.raises(Violated, match="nothing is lost, and the run reports 1 pushes"):
        check_pushes(tmp_path, SPEC, lives=1)


def pushes(life: int, units: range) -> dict[Push, tuple[int, ...]]:
    """One push of each unit to each shard, by the part of each machine."""
    return {
        (f"shard {one.shard}", f"part 0.{one.machine}", 0, unit, life): (unit,)
        for one in layout_of(plan_of(SPEC), shards=SPEC.shards).shared_ranges
        for unit in units
    }


def counted(held: set[Push], pushed: dict[Push, tuple[int, ...]]) -> checks.Counts:
    shards = {f"shard {n}": {push for push in held if push[0] == f"shard {n}"} for n in range(SPEC.shards)}
    layout = layout_of(plan_of(SPEC), shards=SPEC.shards)
    return checks._count(layout, checks._units(SPEC), pushed, shards, set(pushed), 0)[0]


def test_lost_doubled_and_redone_pushes_are_counted() -> None:
    pushed = pushes(0, range(SPEC.length))
    assert counted(set(pushed), pushed) == checks.Counts(len(pushed))
    lost = {push for push in pushed if push[0] == "shard 1" and push[3] in (3, 4)}
    assert counted(set(pushed) - lost, pushed).lost == len(lost) == 4  # of two machines
    twice = {(*push[:3], 1000 + push[3], 0): of for push, of in pushed.items() if push in lost}
    assert counted({*pushed, *twice}, pushed | twice).doubled == len(lost)
    again = pushes(1, range(2))
    assert counted({*pushed, *again}, pushed | again).redone == len(again)
    # Lost in one life, done again in the next, and lost there too: one push is lost.
    both = pushed | pushes(1, range(1))
    kept = {push for push in both if push[0] != "shard 0" or push[3] > 0}
    assert counted(kept, both).lost == 1


def test_a_unit_that_no_shard_has_acknowledged_is_a_violation() -> None:
    pushed = pushes(0, range(SPEC.length - 1))
    with pytest.raises(Violated, match="1 units were never acknowledged by shard 0, the first is 39"):
        counted(set(pushed), pushed)


def test_detection_and_recovery_are_told_apart(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"at": 10.0, "what": "restart", "hosts": [["part 0.0", 0], ["shard 0", 0]], "reason": "starts"},
        {"at": 20.1, "what": "restart", "hosts": [["part 0.0", 1]], "reason": "ended by SIGKILL"},
        {"at": 20.9, "what": "work", "host": ["part 0.0", 1]},
        {"at": 34.0, "what": "restart", "hosts": [["shard 0", 1]], "reason": "silent"},
        {"at": 34.4, "what": "work", "host": ["shard 0", 1]},  # a file; its first push comes later
    ]
    for life, found in enumerate((events, [{"at": 43.0, "what": "progress"}])):
        (tmp_path / f"events-{life}").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in found))
        (tmp_path / f"log-{life}").mkdir()
    (tmp_path / "log-0" / "shard 0#1").write_text("from|3\nat work|34.5\n")
    faults = [
        Fault(20.0, "part", "part 0.0", None, 0),
        Fault(25.0, "part", "part 0.0", 1.0, 0),  # goes on by itself
        Fault(30.0, "shard", "shard 0", 7.0, 0),
        Fault(40.0, "coordinator", "coordinator", None, 0),
    ]
    found = [*recoveries(tmp_path, faults, [9.0, 40.5])]
    assert [one.fault for one in found] == [faults[0], faults[2], faults[3]]
    times = [(round(one.detection_s, 3), round(one.recovery_s, 3), one.alone) for one in found]
    assert times == [(0.1, 0.8, True), (4.0, 0.5, True), (0.5, 2.5, True)]
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def happens(path: Path, what: str, *, at: float | None = None, **more: Any) -> None:
    """Writes an event as the run's own process does."""
    event = {"at": time.monotonic() if at is None else at, "what": what, **more}
    with path.open("ab") as file:
        file.write(msgspec.json.encode(event) + b"\n")


def test_a_role_that_is_drawn_is_waited_for(tmp_path: Path) -> None:
    victims, there = Victims(Random(ANY)), {"coordinator": [("coordinator", psutil.Process())]}
    moments = Moments(tmp_path / "events-0")
    drawn = [victims.draw(("shard",), there, moments) for _ in range(3)]
    assert drawn == [[], [], []]
    both = {**there, "shard": [("shard 0", psutil.Process())]}
    assert victims.draw(("coordinator",), both, moments) == both["shard"]


def test_two_are_of_different_roles(tmp_path: Path) -> None:
    victims, moments = Victims(Random(ANY)), Moments(tmp_path / "events-0")
    parts = [(f"part 0.{n}", psutil.Process()) for n in range(3)]
    assert not victims.draw(("two",), {"part": parts}, moments)
    there = {"part": parts, "coordinator": [("coordinator", psutil.Process())]}
    drawn = victims.draw(("two",), there, moments)
    assert sorted(name.split()[0] for name, _ in drawn) == ["coordinator", "part"]


def test_moments_of_a_run_are_found_and_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "events-0"
    moments, names = Moments(path, length=100), ["part 0.0", "shard 0", "coordinator"]

    def struck_in(moment: Any) -> list[str]:
        return [name for name in names if moments.now(moment) and moments.fits(name, moment)]

    assert struck_in("start") == ["coordinator"] and not struck_in("checkpoint") and not struck_in("end")
    happens(path, "restart", hosts=[["part 0.0", 0]], reason="starts")
    happens(path, "progress", source="part 0.0", step=3)
    assert struck_in("start") == ["part 0.0"]
    happens(path, "ready", host=["part 0.0", 0])
    happens(path, "saving", host="shard 0", at=0.0)
    assert not struck_in("start") and not struck_in("checkpoint")
    happens(path, "saving", host="shard 0")
    happens(path, "progress", source="part 1.0", step=95)
    assert struck_in("checkpoint") == struck_in("end") == struck_in("any") == names


def test_one_of_a_pair_is_struck_only_while_the_other_could_go_on_alone(tmp_path: Path) -> None:
    path = tmp_path / "events-0"
    moments, names = Moments(path, pairs=True), ["shard 0", "backup 0", "part 0.0", "backup 1", "shard 1"]
    same = "shard {0} and backup {0} have the same, and each can go on alone"
    assert moments.among(names) == ["backup 0", "part 0.0", "backup 1"], "shards are alone at first"
    for n in (0, 1):
        happens(path, "line", text=same.format(n))
    assert moments.among(names) == ["shard 0", "part 0.0", "backup 1"]
    moments.struck("shard 0", None)
    moments.struck("backup 1", 0.0)  # frozen for a moment
    happens(path, "line", text=same.format(0))  # is of the time before
    assert moments.among(names) == ["shard 0", "part 0.0"]
    assert [name for name in names if moments.fits(name, "copy")] == ["shard 0", "backup 0"]
    happens(path, "restart", hosts=[["shard 0", 1]], reason="killed")
    assert not moments.may_strike("backup 0")
    happens(path, "line", text=same.format(0), at=time.monotonic() + 1.0)
    assert moments.among(reversed(names)) == ["part 0.0", "backup 0"]
    with path.open("ab") as file:
        file.write(b'{"what": "restart", "hosts": [["backup 0"')  # a line that is being written
    assert moments.may_strike("shard 0")


def test_what_is_left_behind_is_named(tmp_path: Path) -> None:
    before, mark = segments(), f"test-{os.getpid()}"
    assert not left_behind(mark, (), tmp_path, before, within_s=0.0)
    (tmp_path / "partita-run-left").mkdir()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, MARK: mark},
    )
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()  # it has an environment that can be read only once it runs
        found = left_behind(mark, (), tmp_path, before, within_s=0.0)
        process, folder = found
        assert folder == str(tmp_path / "partita-run-left")
        assert process.startswith(f"process {sleeper.pid} (")
    finally:
        sleeper.communicate(b"")


def test_a_process_whose_memory_grows_is_named() -> None:
    census = Census({("part", 1, 0.0): Life(0.0, 100 << 20, 110 << 20), ("shard", 2, 0.0): Life(0.0, 9, 9)})
    assert not census.grown()
    census.lives["worker", 3, 0.0] = Life(0.0, 100 << 20, 200 << 20)
    assert census.grown() == ["a worker took 100 MiB more"]


def test_the_table_has_times_by_role_and_losses_by_durability() -> None:
    faults = Fault(20.0, "part", "part 0.0", None, 0), Fault(30.0, "pool", "pool", 1.0, 0)
    found = Recovery(faults[0], 0.1, 0.8, alone=True)
    outcomes = [Outcome(SPEC, 12.0, 1, faults, checks.Counts(5), (found,))]
    said = table(outcomes, Census({("part", 1, 0.0): Life(0.0, 100 << 20, 110 << 20)})).splitlines()
    assert said[1] == "1 runs in 12 s, 2 faults, one every 6.0 s; times are p50, p99 (how many)"
    assert " ".join(said[3].split()) == (
        "part 1 0 0.10, 0.10 s (1) 0.80, 0.80 s (1) 0.80, 0.80 s (1) 4 s, 2 s"
    )
    assert " ".join(said[4].split()) == "pool 0 1 - - -"
    assert said[5].endswith("100.0 MiB at first, 110.0 at last; the most that one took is 10.0")
    assert said[6] == "log: 5 acknowledged, 0 lost; 0 doubled"
    assert len(said) == 8, "no aim was missed"


def test_missed_aims_and_violations_have_lines_of_their_own() -> None:
    fault = Fault(20.0, "part", "part 0.0", None, 0, "start")
    late = [Recovery(fault, 4.6, 2.5, alone=True), Recovery(fault, 9.0, 9.0, alone=False)]
    outcomes = [
        Outcome(SPEC, 12.0, 1, (fault, fault), checks.Counts(5), tuple(late)),
        Outcome(SPEC, 12.0, 1, (fault,), checks.Counts(), (), "5 pushes are lost"),
    ]
    said = table(outcomes, Census()).splitlines()
    assert said[4] == "of them 3 during start"
    assert said[-3] == "VIOLATED in downpour log here: 5 pushes are lost"
    assert said[-2].startswith(
        "missed aim: part at work within 2 s, p99 2.50 s; 20.00 life 0: part 0.0 killed"
    )
    assert said[-1].startswith("missed aim: part detected within 4 s, p99 4.60 s")
    assert line(outcomes[1]).endswith("1 lives; VIOLATED: 5 pushes are lost")


@pytest.mark.slow
def test_a_short_storm() -> None:
    with pytest.raises(SystemExit) as ended:
        app(["--seconds", "1", "--seed", "1", "--only", "downpour log", "--place", "here", "--scale", "0.5"])
    assert ended.value.code == 0
