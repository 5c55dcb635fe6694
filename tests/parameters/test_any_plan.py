"""What one plan has written, any other one reads: values and state of every parameter, to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import LARS, LBFGS, SGD, Adagrad, Adam, Momentum
from partita.engine.methods.lbfgs import Pairs
from partita.engine.parameters import (
    Checkpoints,
    Layout,
    Manifest,
    ShardRecord,
    ShardSnapshot,
    Slot,
    gather,
)
from partita.engine.parameters.slots import within
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.runtime.buffers import layout_of
from partita.layers import Graph
from partita.partitioner import partition
from tests.draws import examples
from tests.networks import networks
from tests.plans import clusters, cuts

STATES: dict[str, tuple[str, ...]] = {
    **{
        type(one).__name__: one.state_names
        for one in (SGD(1.0), Momentum(1.0), Adagrad(1.0), Adam(1.0), LARS(1.0))
    },
    "LBFGS": (
        "g",
        "d",
        "x_before",
        "g_before",
        *(name for pair in Pairs(LBFGS().history)._slots for name in pair),
    ),
}
"""Names of state vectors, by what keeps them."""


@dataclass(frozen=True)
class Writer:
    """A host that writes a file: its name, its numbers, and its number of updates."""

    name: str
    slots: tuple[Slot, ...]
    updates: int


@st.composite
def layouts(draw: st.DrawFn, graph: Graph) -> Layout:
    """The places of a network's parameters by a drawn plan, on a few shards."""
    cluster = draw(clusters(max_machines=5))
    plan = partition(graph, cluster, batch=2, cuts=draw(cuts(graph, len(cluster))), strategy="balanced")
    return layout_of(plan, shards=draw(st.integers(1, 9)))


@st.composite
def writers(draw: st.DrawFn, layout: Layout) -> tuple[Writer, ...]:
    """Shards, the parts of one replica, or those of several with a range of each machine's numbers."""
    counts = st.integers(0, 1000)
    kind = draw(st.sampled_from(("shards", "parts", "ranges")))
    if kind == "shards":
        return tuple(Writer(f"shard {n}", layout.slots_of(n), draw(counts)) for n in range(layout.shards))
    replicas = 1 if kind == "parts" else draw(st.integers(2, 4))
    return tuple(
        Writer(f"part {replica}.{machine}", tuple(within(slots, *bounds)), draw(counts))
        for machine, slots in enumerate(layout.machines)
        for replica, bounds in enumerate(ranges(layout.machine_size(machine), replicas))
    )


def ranges(size: int, n: int) -> Iterator[tuple[int, int]]:
    for k in range(n):
        yield k * size // n, (k + 1) * size // n


def drawn_numbers(layout: Layout, dtype: str, seed: int) -> dict[str, Any]:
    """Any bits, of whole parameters: also signed zeros and subnormal numbers, and what is not finite."""
    draw = np.random.default_rng(seed)
    return {
        name: draw.integers(0, 256, math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
        .view(dtype)
        .reshape(shape)
        for name, shape in layout.shapes.items()
    }


def write(
    store: Checkpoints, layout: Layout, hosts: Sequence[Writer], kinds: dict[str, dict[str, Any]], dtype: str
) -> None:
    entries = []
    for host in hosts:
        vectors = {kind: gather(host.slots, whole, dtype) for kind, whole in kinds.items()}
        snapshot = ShardSnapshot(vectors.pop("values"), vectors)
        record = ShardRecord("run", host.name, 0, 3, {}, host.updates)
        file, sha256 = store.write_shard(1, record, host.slots, snapshot)
        entries.append(ShardFile(host.name, 0, 3, file, sha256))
    manifest = Manifest(
        checkpoint=1,
        run="run",
        shapes=dict(layout.shapes),
        dtype=dtype,
        optimizer="",
        steps=(3,),
        units_per_epoch=1,
        entries=tuple(entries),
    )
    store.commit(manifest)


@settings(max_examples=examples(8))
@given(st.data())
def test_any_plan_reads_what_any_other_one_has_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    graph = data.draw(networks(max_layers=4).filter(lambda graph: bool(graph.parameters)))
    dtype = data.draw(st.sampled_from(("float32", "float64")))
    old, new = data.draw(layouts(graph)), data.draw(layouts(graph))
    names = ("values", *STATES[data.draw(st.sampled_from(sorted(STATES)))])
    kinds = {name: drawn_numbers(old, dtype, n) for n, name in enumerate(names)}
    hosts = data.draw(writers(old))
    store = Checkpoints(tmp_path_factory.mktemp("plan"))
    write(store, old, hosts, kinds, dtype)
    assert set(store.open(1, old.shapes).state_names) == set(names[1:])
    for host in data.draw(writers(new)):
        found = store.open(1, new.shapes, slots=host.slots)
        snapshot = found.snapshot(host.slots)
        for kind, vector in {"values": snapshot.values, **snapshot.state}.items():
            assert vector.tobytes() == gather(host.slots, kinds[kind], dtype).tobytes(), (host, kind)
        updates = {one.updates for one in hosts if shares(one.slots, host.slots)}
        assert found.updates(host.slots) == max(updates, default=0)


def shares(some: Sequence[Slot], others: Sequence[Slot]) -> bool:
    """Whether a number is in both."""
    found = [
        {(slot.parameter, int(n)) for slot in slots for run in slot.runs for n in range(*run)}
        for slots in (some, others)
    ]
    return bool(found[0] & found[1])
