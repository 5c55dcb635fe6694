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
