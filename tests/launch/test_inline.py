"""Hosts in the coordinator's process: what a run computes, and how such a host fails and ends."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from partita.engine import LBFGS, Method, Objective, Outcome, Run, RunFailed, Sandblaster, train
from partita.engine.launch import ProcessLauncher
from partita.engine.protocol.commands import POINT, Evaluate, Segment, Steps, dot
from partita.engine.protocol.messages import Heartbeat, Hello
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.faults.helpers import hosts_of

DRIVER = Sandblaster(LBFGS(max_iterations=12, ftol=0), push_every=1, l2=1e-3)


def plan_of(machines: int = 1) -> Plan:
    return partition(toy.network(), Cluster.local(machines), batch=8)


def run(driver: Sandblaster = DRIVER, **more: object) -> Run:
    return train(plan_of(), toy.data(), driver=driver, show="nothing", **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def in_processes() -> Run:
    return run(dataclasses.replace(DRIVER, inline="none"))


@pytest.mark.parametrize("inline", ["shard", "all"])
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_inline_hosts_compute_the_same_bits(in_processes: Run, inline: str, replicas: int) -> None:
    found = run(dataclasses.replace(DRIVER, inline=inline, replicas=replicas))
    for name, values in in_processes.parameters.items():
        assert np.array_equal(found.parameters[name], values), name
    assert found.outcome == in_processes.outcome
    assert not [one for one in threading.enumerate() if one.name.startswith(("kernel", "vectors"))]


@dataclasses.dataclass
class Watching(Method):
    """Notes which processes the run has, and asks for the sum of squares."""

    seen: list[set[str]] = dataclasses.field(default_factory=list, repr=False)

    def steps(self, objective: Objective) -> Steps:
        yield (Evaluate((Segment("g", 0, objective.portions.per_epoch),)),)
        yield (dot(POINT, POINT),)
        self.seen.append(set(hosts_of(os.getpid())))
        return Outcome("stopped", "enough was seen")


@pytest.mark.parametrize(
    ("inline", "processes"),
    [
        pytest.param("none", {"shard 0", "part 0.0"}, marks=pytest.mark.slow),
        pytest.param("shard", {"part 0.0"}, marks=pytest.mark.slow),
        ("auto", {"part 0.0"}),
        ("all", set()),
    ],
)
def test_what_is_inline_has_no_process(inline: str, processes: set[str]) -> None:
    watching = Watching()
    run(Sandblaster(watching, inline=inline))  # type: ignore[arg-type]
    assert {name for name in watching.seen[0] if name.startswith(("part", "shard"))} == processes


@pytest.mark.slow
def test_two_shards_are_processes() -> None:
    watching = Watching()
    run(Sandblaster(watching, inline="all", shards=2))
    assert {"shard 0", "shard 1", "part 0.0"} <= watching.seen[0]


@dataclasses.dataclass
class Impossible(Method):
    def steps(self, objective: Objective) -> Steps:
        yield (dot("nothing", POINT),)
        return Outcome("stopped", "cannot be")


def test_an_error_of_an_inline_shard_ends_the_run_with_its_sentence() -> None:
    with pytest.raises(RunFailed, match="shard 0: a Dots cannot be done: there is no vector 'nothing'"):
        run(Sandblaster(Impossible(), inline="shard"))


def test_a_run_with_inline_hosts_goes_on_from_its_journal(in_processes: Run, tmp_path: Path) -> None:
    for iterations in (5, 12):
        method = LBFGS(max_iterations=iterations, ftol=0)
        found = run(
            dataclasses.replace(DRIVER, method=method, inline="all"),
            checkpoints=tmp_path,
            resume=iterations > 5,
        )
    assert found.iterations == in_processes.iterations
    for name, values in in_processes.parameters.items():
        assert np.array_equal(found.parameters[name], values), name


def test_an_inline_host_is_launched_again_under_a_new_key() -> None:
    with ProcessLauncher(inline=["shard 0"]) as launcher:
        first = launcher.launch("shard 0", 0)
        (hello,) = [event for event in launcher.mailbox.receive(0.0) if isinstance(event.message, Hello)]
        assert (hello.sender, hello.incarnation) == ("shard 0", 0)
        second = launcher.launch("shard 0", 1)
        assert second.public_key != first.public_key
        (again,) = [event for event in launcher.mailbox.receive(0.0) if event.incarnation == 1]
        assert isinstance(again.message, Hello)
        launcher.mailbox.send("shard 0", Heartbeat(1))
        launcher.mailbox.receive(0.0)
        assert not launcher.ended()


@pytest.mark.parametrize("inline", [pytest.param("none", marks=pytest.mark.slow), "all"])
def test_a_method_may_hold_what_cannot_be_pickled(inline: str) -> None:
    @dataclasses.dataclass
    class Locked(Watching):
        lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    watching = Locked()
    run(Sandblaster(watching, inline=inline))  # type: ignore[arg-type]
    assert watching.seen
