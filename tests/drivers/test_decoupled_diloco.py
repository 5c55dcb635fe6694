"""Decoupled DiLoCo in runs: bytes by the formula, resuming, kills, goodput, command line, and mistakes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import goodput as in_processes
from partita.engine import LARS, SGD, AdamW, AllReduce, DecoupledDiLoCo, Downpour, evaluate, train
from partita.engine.drivers.traffic import shard_traffic
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.merge_on_quorum import MergeOnQuorum
from partita.engine.testing import Fault, play
from partita.engine.testing.goodput import Kills, goodput
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import Partita, WatchedThreads
from tests.faults import toy


def plan_of(machines: int) -> Plan:
    return partition(toy.network(), Cluster.local(machines=machines), batch=16, strategy="balanced")


def test_a_part_exchanges_the_bytes_of_the_formula(on_threads: list[WatchedThreads]) -> None:
    """2 K / H S and the first fetch; the last changes are pushed, too."""
    driver = DecoupledDiLoCo(shards=2, every=4, run_ahead=1)
    run = train(plan_of(1), toy.data(224), driver=driver, epochs=1, show="nothing")
    assert run.steps == (14,)
    (pushed, fetched) = (Counter[str](), Counter[str]())
    boxes, parameters = on_threads[-1].boxes, sum(array.size for array in run.parameters.values())
    for shard in range(2):
        pushed[f"shard {shard}"] = boxes["part 0.0"].counters.sent[f"shard {shard}", "Push"].payload_bytes
        fetched[f"shard {shard}"] = boxes[f"shard {shard}"].counters.sent_of("Parameters").payload_bytes
    sizes = [parameters // 2, parameters - parameters // 2]
    links = [*enumerate(sizes)]
    times = 3 + 1  # after steps 4, 8, 12, and the rest
    assert [pushed[f"shard {shard}"] for shard in range(2)] == [times * 4 * size for size in sizes]
    expected = shard_traffic(driver, steps=14, sizes=links)
    assert pushed.total() + fetched.total() == expected.n_bytes
    often = shard_traffic(Downpour(shards=2), steps=14, sizes=links)
    assert often.n_bytes > 3 * expected.n_bytes


def test_replicas_learn_together_and_an_outer_rate_of_ten_fails(on_threads: list[WatchedThreads]) -> None:
    data, found = toy.data(256), {}
    for rate in (0.7, 10.0):
        driver = DecoupledDiLoCo(
            replicas=2, shards=2, every=8, optimizer=SGD(0.3), outer_learning_rate=rate, run_ahead=2
        )
        run = train(plan_of(1), data, driver=driver, epochs=12, show="nothing")
        assert sum(run.steps) == 192 and min(run.steps) > 0
        found[rate] = evaluate(run, data, show="nothing").loss
    assert found[0.7] < 0.6 and found[10.0] > 3 * found[0.7], found


def test_a_run_that_is_resumed_has_the_outer_momentum(
    on_threads: list[WatchedThreads], tmp_path: Path
) -> None:
    driver = DecoupledDiLoCo(shards=2, every=4)
    first = train(plan_of(1), toy.data(64), driver=driver, epochs=1, checkpoints=tmp_path, show="nothing")
    kept = Checkpoints(tmp_path).latest(None)
    assert kept is not None and all(array.any() for array in kept.parameters("state.velocity").values())
    last = train(
        plan_of(1), toy.data(64), driver=driver, epochs=2, checkpoints=tmp_path, resume=True, show="nothing"
    )
    assert (first.steps, last.steps) == ((4,), (8,))
    assert any(np.any(first.parameters[name] != last.parameters[name]) for name in last.parameters)
    with pytest.raises(ValueError, match="Momentum"):
        train(plan_of(1), toy.data(64), driver=Downpour(), epochs=3, checkpoints=tmp_path, resume=True)


def test_the_simulator_plays_it_and_finds_a_merge_that_counts_replicas_alike() -> None:
    for seed in range(12):
        replicas = 1 + seed % 4
        driver = DecoupledDiLoCo(
            replicas=replicas,
            shards=1 + seed % 3,
            every=1 + seed % 5,
            quorum=1 + seed // 4 % replicas,
            fragments=(None, 1, 5)[seed // 3 % 3],
            run_ahead=(None, 3)[seed // 2 % 2],
        )
        assert play(driver, seed).violation is None, (driver, seed)

    def alike(method: Any, policy: MergeOnQuorum, own: Any) -> Any:
        policy._sizes = type("Alike", (), {"of": lambda self, units: 1})()
        return method(policy, own)

    fault = Fault(MergeOnQuorum, "_merge", alike)
    driver = DecoupledDiLoCo(replicas=3, every=3, quorum=2, grace=1.0)
    found = play(driver, 1, faults=[fault]).violation
    assert found is not None and found.startswith("I16"), found


def test_at_a_kill_a_minute_the_goodput_is_above_that_of_replicas_that_wait() -> None:
    """In virtual time: four replicas, and ten seconds until a process is there again."""
    kills = Kills(every_s=60.0, launch_s=10.0)
    found = goodput(DecoupledDiLoCo(replicas=4, every=4), 1, steps=140, step_s=2.0, kills=kills)
    waiting = goodput(AllReduce(replicas=4), 1, steps=60, step_s=2.0, kills=kills)
    assert found.killed >= 2 and found.share >= 0.85, found
    assert waiting.killed >= 2 and waiting.share < found.share, waiting


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_processes_every_step_counts_once_whoever_is_killed() -> None:
    driver = in_processes.drivers(3)["decoupled-diloco"]
    found = in_processes.measure(driver, seconds=30.0, every_s=10.0)
    assert found.killed >= 2
    assert found.steps % (in_processes.EXAMPLES // in_processes.BATCH) == 0


def test_the_command_line_has_its_options(partita: Partita, on_threads: list[WatchedThreads]) -> None:
    options = ("--driver", "decoupled-diloco", "--replicas", "2", "--shards", "2", "--quorum", "2")
    ended = partita(
        "train", str(Path(toy.__file__)), "--batch", "16", "--epochs", "1", "--every", "3", *options
    )
    assert ended.code == 0 and "trained 16 steps in " in ended.out, ended.err


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every": 0}, "every"),
        ({"quorum": 2}, "quorum is 2, and there are 1 replicas"),
        ({"grace": -1.0}, "grace is -1.0; give 0, or a number above"),
        ({"patience": 0.0}, "patience is 0.0; give seconds, above 0"),
        ({"run_ahead": 0}, "run_ahead"),
        ({"optimizer": LARS(0.1)}, "needs norms over all machines"),
        ({"optimizer": AdamW(0.1, clip_norm=1.0)}, "needs norms over all machines"),
        ({"outer_momentum": 1.0}, "momentum"),
        ({"fragments": 0}, "fragments"),
        ({"num_fragments": 4}, "fragments"),
        ({"H": 4}, "every"),
    ],
)
def test_mistakes_are_said(settings: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        DecoupledDiLoCo(**settings)
