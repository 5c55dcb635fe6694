"""Downpour with compressed pushes, against a loop of NumPy that writes the algorithms densely in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from partita.engine import SGD, Downpour, train
from partita.engine.parameters import initialise
from partita.engine.parameters.compression import Compressor, Int8, OneBit, PowerSGD, TopK
from partita.engine.parameters.layout import Layout, gather, scatter
from partita.engine.runtime.buffers import layout_of
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import run_on_threads
from tests.faults import toy
from tests.properties.dense_compressor import Array, DenseCompressor

STEPS, EXAMPLES, RATE = 7, 24, 0.3


def plan_of(machines: int) -> Plan:
    """A step takes all examples, so their order does not matter."""
    cluster = Cluster.local(machines=machines)
    return partition(toy.network(hidden=6), cluster, batch=EXAMPLES, precision="float64", strategy="balanced")


def gradients(parameters: dict[str, Array], data: dict[str, Array]) -> dict[str, Array]:
    """Of the mean loss of the unpartitioned network."""
    w, b, v, c = (
        parameters[name] for name in ("hidden.weight", "hidden.bias", "scores.weight", "scores.bias")
    )
    x = data["picture"].astype(np.float64)
    h = np.tanh(x @ w.T + b)
    scores = h @ v.T + c
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(x)), data["digit"]] -= 1
    p /= len(x)
    back = (p @ v) * (1 - h * h)
    return {
        "hidden.weight": back.T @ x,
        "hidden.bias": back.sum(axis=0),
        "scores.weight": p.T @ h,
        "scores.bias": p.sum(axis=0),
    }


def ranges_of(layout: Layout) -> Iterator[tuple[int, slice, list[slice]]]:
    """Yields the ranges of all machines on shards, and the tensors in each, from its start on."""
    for shared in layout.shared_ranges:
        ends = [0]
        for shape in layout.tensors(shared.machine, shared.machine_start, shared.machine_stop):
            ends.append(ends[-1] + math.prod(shape))
        tensors = [slice(a, b) for a, b in pairwise(ends)]
        yield shared.machine, slice(shared.machine_start, shared.machine_stop), tensors


def reference(compress: Compressor, plan: Plan, shards: int, first: dict[str, Array]) -> dict[str, Array]:
    layout, data = layout_of(plan, shards=shards), toy.data(EXAMPLES)
    parameters = {name: numbers.astype(np.float64) for name, numbers in first.items()}
    links = [
        (machine, span, DenseCompressor(compress, tensors, span.stop - span.start))
        for machine, span, tensors in ranges_of(layout)
    ]
    for step in range(STEPS):
        found = gradients(parameters, data)
        for machine, slots in enumerate(layout.machines):
            vector, gradient = gather(slots, parameters, np.float64), gather(slots, found, np.float64)
            for of, span, link in links:
                if of == machine:
                    vector[span] -= RATE * link.sent(gradient[span], step)
            scatter(slots, vector, parameters)
    return parameters


@pytest.mark.parametrize(
    ("compress", "machines", "shards"),
    [
        (TopK(0.1), 1, 2),
        (TopK(0.05, 0.9, warm_up=4, clip_norm=0.2), 2, 3),
        (TopK(0.1, feedback=False), 1, 1),
        (OneBit(), 1, 2),
        (Int8(), 2, 2),
    ],
    ids=repr,
)
def test_one_replica_follows_the_algorithm(
    compress: Compressor, machines: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shards, several parts; each pair of them has a residual of its own."""
    run_on_threads(monkeypatch)
    plan = plan_of(machines)
    driver = Downpour(shards=shards, optimizer=SGD(RATE), compress=compress)
    first = initialise(plan.graph.parameters.values(), 3)
    run = train(plan, toy.data(EXAMPLES), driver=driver, epochs=STEPS, initial=first, show="nothing")
    for name, numbers in reference(compress, plan, shards, first).items():
        np.testing.assert_allclose(run.parameters[name], numbers, rtol=1e-9, atol=1e-11, err_msg=name)


def test_a_matrix_of_the_rank_arrives_whole_and_the_best_one_in_time() -> None:
    """Of one replica alone, whose message has both factors of its own gradient."""
    draw = np.random.default_rng(2)
    low = (draw.standard_normal((12, 2)) @ draw.standard_normal((2, 9))).ravel()
    compress = PowerSGD(2).alone
    assert compress.n_bytes([(12, 9), (5,)], 8) == 8 * (2 * (12 + 9) + 5)
    encoder, found = compress.encoder([(12, 9), (5,)], np.float64), np.zeros(113)
    message = np.empty(compress.items([(12, 9), (5,)], 8))
    encoder.encode(np.append(low, np.arange(5.0)), message, step=0, turn=0, replicas=1)
    encoder.decode(message[None], found, step=0, turn=0)
    np.testing.assert_allclose(found, np.append(low, np.arange(5.0)), rtol=1e-10, atol=1e-12)
    full = draw.standard_normal((12, 9)) * np.logspace(0, -3, 9)
    encoder = PowerSGD(2, feedback=False).alone.encoder([(12, 9)], np.float64)
    message, found = np.empty(42), np.zeros(108)
    for step in range(30):
        encoder.encode(full.ravel(), message, step=step, turn=0, replicas=1)
        encoder.commit(step)
    encoder.decode(message[None], found, step=29, turn=0)
    left, sizes, right = np.linalg.svd(full)
    best = (left[:, :2] * sizes[:2]) @ right[:2]
    np.testing.assert_allclose(found.reshape(12, 9), best, rtol=1e-6, atol=1e-8)
