"""A network whose pictures are cut into tiles computes what the whole one does, and so do its parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.engine import SGD, Session
from partita.engine.parameters import (
    Checkpoints,
    Manifest,
    ShardRecord,
    ShardSnapshot,
    gather,
    initialise,
    scatter,
)
from partita.engine.parameters.initial_values import initial_vector
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.runtime.buffers import layout_of
from partita.layers import (
    Dense,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Plan, RowSplit, StepKind, Tiles, Whole, partition
from partita.partitioner.assign.cuts import Cut
from tests.draws import examples
from tests.plans import plans
from tests.properties.results import assert_same
from tests.truth.interleaved import InterleavedReplica, draw_batch, play, whole

DRAWS = settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@DRAWS
@given(plan=plans(precision="float64", shared=True, tiles=True), seed=st.integers(0, 1 << 30))
def test_any_network_agrees_within_rounding(plan: Plan, seed: int) -> None:
    """States, errors and gradients; then what an optimizer makes of the parameters, learning block by
    block."""
    assert_same(play(plan, seed=seed), play(whole(plan), seed=0), tolerance=1e-11)
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    batch = draw_batch(plan.graph, plan.batch, 11)
    found, expected = (
        InterleavedReplica(p, parameters, seed=seed, kind=StepKind(), optimizer=SGD(0.1), keep=p.kept).step(
            batch
        )
        for p in (plan, whole(plan))
    )
    for name, array in expected.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=1e-11)


@DRAWS
@given(plan=plans(local=True, shared=True, tiles=True, losses=False), seed=st.integers(0, 1 << 30))
def test_states_of_local_networks_agree_to_the_bit(plan: Plan, seed: int) -> None:
    """A node receives the same numbers in the same order, in float32, for any tiles and any interleaving."""
    assert_same(play(plan, seed=seed), play(whole(plan), seed=0), tolerance=0.0)


@pytest.mark.slow
@DRAWS
@given(plan=plans(shared=True, tiles=True), first=st.integers(0, 1 << 30), second=st.integers(0, 1 << 30))
def test_the_order_of_events_changes_no_bit(plan: Plan, first: int, second: int) -> None:
    assert_same(play(plan, seed=first), play(plan, seed=second), tolerance=0.0)


def stages() -> Network:
    """Patches whose halos cross tiles, and pools that lie inside them."""
    net = Network("stages")
    first = LocallyConnected2D(2, 3, padding="same", activation="tanh", name="first")(
        net.input("picture", shape=(8, 8, 2))
    )
    pool = MaxPool2D(2, name="pool")(LocalContrastNormalisation2D(3, name="normal")(first))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(3, name="scores")(pool), net.target("label"))
    return net


def cut(name: str, *, precision: str = "float64") -> Plan:
    """Over four machines: in tiles, mixed with rows and whole layers, or in rows."""
    quarters = Tiles(4, (2, 2))
    cuts: dict[str, dict[str, Cut]] = {
        "tiles": dict.fromkeys(("first", "normal", "pool"), quarters),
        "mixed": {
            "first": Tiles((3, 1), (1, 2), ((8,), (3, 5))),
            "normal": RowSplit((2, 0)),
            "pool": quarters,
        },
        "whole": {"first": Whole(2), "normal": Tiles((1, 0, 3), (1, 3)), "pool": Whole(1)},
        "rows": {},
    }
    return partition(stages(), Cluster.local(4), batch=3, cuts=cuts[name], precision=precision)


@pytest.mark.parametrize("name", ["tiles", "mixed", "whole"])
def test_a_session_collects_tiles(name: str) -> None:
    """States, errors, gradients and parameters over the in-process transport; then a step that learns."""
    plan = cut(name)
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    batch = draw_batch(plan.graph, plan.batch, 11)
    expected = InterleavedReplica(whole(plan), parameters, seed=0).step(batch)
    with Session(plan, parameters, train=True) as session:
        found = session.step(batch, collect=("gradient", "parameters", *expected.states, *expected.errors))
    for group, truth in (
        (found.collected, {**expected.states, **expected.errors}),
        (found.vectors["gradient"], expected.gradients),
    ):
        for key, array in truth.items():
            np.testing.assert_allclose(group[key], array, rtol=0, atol=1e-12, err_msg=key)
    for key, array in parameters.items():
        np.testing.assert_array_equal(found.vectors["parameters"][key], array)


@pytest.mark.slow
def test_bfloat16_tiles_come_near_float64() -> None:
    plan = cut("mixed", precision="bfloat16")
    parameters = initialise(plan.graph.parameters.values(), 7)
    batch = draw_batch(plan.graph, plan.batch, 11)
    exact = InterleavedReplica(whole(cut("rows")), parameters, seed=0).step(batch)
    found = InterleavedReplica(plan, parameters, seed=0).step(batch)
    for name, array in exact.gradients.items():
        scale = float(np.abs(array).max())
        np.testing.assert_allclose(found.gradients[name], array, rtol=0, atol=0.05 * scale, err_msg=name)


def test_a_tile_is_drawn_from_its_seed_as_the_whole_is() -> None:
    plan = cut("tiles")
    specs = plan.graph.parameters
    expected = initialise(specs.values(), 5)
    found = {name: np.zeros_like(array) for name, array in expected.items()}
    for slots in layout_of(plan, shards=1).machines:
        scatter(slots, initial_vector(slots, specs, 5), found)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("tiles", "rows", marks=pytest.mark.slow),
        pytest.param("rows", "mixed", marks=pytest.mark.slow),
        ("mixed", "tiles"),
    ],
)
def test_a_checkpoint_is_read_into_a_plan_of_other_tiles(tmp_path: Path, before: str, after: str) -> None:
    old, new = layout_of(cut(before), shards=3), layout_of(cut(after), shards=2)
    values = initialise(cut(before).graph.parameters.values(), 3)
    checkpoints, entries = Checkpoints(tmp_path), []
    for shard in range(3):
        record = ShardRecord("run", f"shard {shard}", 0, 1, {})
        held = ShardSnapshot(gather(old.slots_of(shard), values), {})
        file, sha256 = checkpoints.write_shard(1, record, old.slots_of(shard), held)
        entries.append(ShardFile(record.shard, 0, 1, file, sha256))
    shapes = dict(old.shapes)
    checkpoints.commit(
        Manifest(
            checkpoint=1, run="run", shapes=shapes, dtype="float32", optimizer="SGD(rate=0.1)", steps=(1,),
            units_per_epoch=1, entries=tuple(entries),
        )
    )  # fmt: skip
    found = checkpoints.open(1, shapes)
    for shard in range(2):
        slots = new.slots_of(shard)
        np.testing.assert_array_equal(found.snapshot(slots).values, gather(slots, values))
