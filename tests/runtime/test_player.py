"""The interpreter of a part under threads that change places as often as they can."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from partita.engine.parameters import initialise
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import MessageFeed
from partita.engine.runtime.player import Player
from partita.layers import Activation, Network
from partita.partitioner import Cluster, partition


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads are interrupted every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_no_step_is_lost_between_two_looks() -> None:
    net = Network("tiny")
    Activation("relu", name="only")(net.input("x", shape=(1,)))
    plan = partition(net, Cluster.local(), batch=1)
    assert not initialise(plan.graph.parameters.values(), 0)
    program = plan.programs[0]
    vectors, feed = Vectors(plan, 0), MessageFeed()
    buffers = Buffers(plan, 0, program, vectors)
    computations = Computations(buffers, feed)
    player = Player(
        computations,
        host_of=lambda _: "nobody",
        send=lambda *_: None,
        wake=threading.Event().set,
        lanes=1,
    )
    for step in range(2000):
        player.begin(step)
        looks = 0
        while not (over := player.poll()):
            looks += 1
            assert looks < 10_000_000, f"step {step} never ended"
        assert [found.step for found in over] == [step]
    player.close()


@pytest.mark.usefixtures("restless_threads")
def test_a_dropped_step_ends_before_the_next_one_begins_and_counts_for_nothing() -> None:
    net = Network("pair")
    Activation("relu", name="second")(Activation("tanh", name="first")(net.input("x", shape=(4,))))
    plan = partition(net, Cluster.local(), batch=2)
    vectors, feed = Vectors(plan, 0), MessageFeed()
    computations = Computations(Buffers(plan, 0, plan.programs[0], vectors), feed)
    under_way, most, may_go_on, woken = 0, 0, threading.Event(), threading.Event()

    def hold() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        may_go_on.wait(60)
        under_way -= 1

    player = Player(
        computations,
        host_of=lambda _: "nobody",
        send=lambda *_: None,
        wake=woken.set,
        after_each=hold,
    )
    for number in (0, 100, 200):
        may_go_on.clear()
        player.start(number)
        player.begin(number)
        while not under_way:
            pass
        player.start(number + 1)
        assert not player.may_begin(), "a computation of the dropped step goes on"
        may_go_on.set()
        while not player.may_begin():
            woken.wait(1)
            woken.clear()
        assert not player.poll()
        player.begin(number + 1)
        while not (over := player.poll()):
            pass
        assert [found.step for found in over] == [number + 1]
    assert most == 1
    player.close()
