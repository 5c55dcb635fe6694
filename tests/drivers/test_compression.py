"""Compressed exchanges and pushes: bytes by their formula, one result on all replicas, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.reproduce import compression, large_batch
from partita.engine import (
    SGD,
    Adagrad,
    AllReduce,
    Compensated,
    DiLoCo,
    Downpour,
    LocalSGD,
    Momentum,
    Ring,
    Server,
    Tree,
    evaluate,
    train,
)
from partita.engine.drivers import Driver
from partita.engine.parameters import Checkpoints
from partita.engine.parameters.compression import Compressor, Int8, OneBit, PowerSGD, TopK
from partita.engine.protocol.exchange import Numbers, bytes_sent
from partita.engine.protocol.names import part_name
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.joined_hands import shared_spans
from partita.engine.watch.planned import Extent, began
from partita.layers import Dense, Embedding, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

STEPS, BATCH = 6, 8
EXTENT = Extent(
    run="", unit="step", examples=0, steps=None, steps_before=0, steps_per_epoch=None, started_unix_s=0.0
)
ALL = (TopK(0.05), TopK(0.01, 0.5, warm_up=4), OneBit(), Int8(), PowerSGD(1))


def plan_of(machines: int = 1) -> Plan:
    return partition(toy.network(), Cluster.local(machines=machines), batch=BATCH, strategy="balanced")


def formula(compress: Compressor, plan: Plan, machine: int, rank: int, replicas: int, by: Any) -> int:
    """The bytes that a part sends in all steps."""
    (one,) = shared_spans(layout_of(plan, shards=1))[machine]
    sent, names = 0, [str(n) for n in range(replicas)]
    for step in range(STEPS):
        for turn, kind in enumerate(compress.rounds):
            items = compress.items(one.tensors, 4, step=step, turn=turn)
            if kind == "gather":
                sent += (replicas - 1) * items * 4
            else:
                sent += bytes_sent(by, rank, names, Numbers(items))
    return sent


@pytest.mark.parametrize(("compress", "machines"), [*((one, 1) for one in ALL), (ALL[1], 2)], ids=repr)
def test_parts_send_the_bytes_of_the_formula(
    compress: Compressor, machines: int, on_threads: list[WatchedThreads]
) -> None:
    plan, replicas = plan_of(machines), 3
    by = Tree() if isinstance(compress, PowerSGD) else Ring()
    driver = AllReduce(replicas=replicas, by=by, compress=compress, optimizer=SGD(0.1))
    run = train(plan, toy.data(BATCH * replicas * STEPS), driver=driver, epochs=1, show="nothing")
    assert run.steps == (STEPS,) * replicas
    (launcher,) = on_threads
    for machine in range(machines):
        for rank in range(replicas):
            counters: Any = launcher.boxes[part_name(rank, machine)].counters
            sent = sum(counters.sent_of(kind).payload_bytes for kind in ("PartialChunk", "FinalChunk"))
            assert sent == formula(compress, plan, machine, rank, replicas, by), (machine, rank)


def test_all_numbers_sent_is_the_run_without_compression(on_threads: object) -> None:
    """With norms of the gradient, which are measured by ranges of their own."""
    runs = [
        train(
            plan_of(),
            toy.data(60),
            driver=AllReduce(replicas=3, optimizer=SGD(0.1, clip_norm=0.5), compress=compress),
            epochs=1,
            show="nothing",
        )
        for compress in (None, TopK(1.0))
    ]
    for name, numbers in runs[0].parameters.items():
        np.testing.assert_allclose(runs[1].parameters[name], numbers, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_run_that_is_repeated_has_the_same_bits(on_threads: object) -> None:
    driver = AllReduce(replicas=2, compress=PowerSGD(1), optimizer=SGD(0.1))
    one, other = (train(plan_of(), toy.data(64), driver=driver, epochs=1, show="nothing") for _ in range(2))
    for name, numbers in one.parameters.items():
        assert other.parameters[name].tobytes() == numbers.tobytes(), name


@pytest.mark.slow
def test_one_bit_learns_with_feedback() -> None:
    driver = AllReduce(replicas=2, compress=OneBit(), optimizer=SGD(0.2))
    run = train(plan_of(), toy.data(256), driver=driver, epochs=15, show="nothing")
    assert evaluate(run, toy.data(256)).accuracy > 0.9


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"compress": 0.1}, "compress is 0.1; give TopK"),
        ({"compress": OneBit(), "by": Tree()}, r"which Tree\(\) does not do; use by=Ring\(\)"),
        ({"compress": OneBit(), "shard_optimizer": True}, "leave out compress, or shard_optimizer"),
        (
            {"compress": PowerSGD(1), "by": Server(), "backup_workers": 1, "replicas": 3},
            "leave out compress",
        ),
    ],
    ids=repr,
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AllReduce(**settings)


@pytest.mark.slow
def test_what_the_example_shows_also_fails_without_feedback() -> None:
    """The ablation has to fail: as many bytes, and far fewer digits."""
    for fed, lost in (("1 bit", "1 bit, no feedback"), ("top 1%, DGC", "top 1%, no feedback")):
        (good, _), (bad, _) = (compression.accuracy_of(case, 0) for case in (fed, lost))
        assert good > 0.95 and bad < good - 0.01, (fed, good, bad)
    (good, _), (bad, _) = (
        compression.accuracy_of(f"Downpour, top 1%{end}", 0) for end in ("", ", no feedback")
    )
    assert good > 0.9 and bad < good - 0.02, (good, bad)


@pytest.mark.slow
def test_lars_and_lamb_hold_where_linear_scaling_breaks() -> None:
    found = {case: large_batch.accuracy_of(case, 720, 0) for case in large_batch.CASES}
    assert found["SGD, linear scaling"] < 0.6 and min(found["LARS"], found["LAMB"]) > 0.9, found


def pushed_bytes(compress: Compressor, plan: Plan, machine: int, *, shards: int, step: int) -> int:
    """The bytes of a part's push of a step to all shards, less rows of sparse tables."""
    layout = layout_of(plan, shards=shards)
    shapes = [
        layout.tensors(machine, shared.machine_start, shared.machine_stop)
        for shared in layout.shards_of(machine)
    ]
    return sum(4 * compress.alone.items(one, 4, step=step) for one in shapes)


@pytest.mark.parametrize(
    ("compress", "machines", "settings"),
    [
        (TopK(0.05, 0.5, warm_up=4), 2, {"shards": 3, "durability": "replicated"}),
        (OneBit(), 1, {"shards": 1, "push_every": 2}),
        (Int8(), 2, {"shards": 2, "durability": "log"}),
        (PowerSGD(1), 1, {"shards": 2}),
    ],
    ids=repr,
)
def test_pushes_have_the_bytes_of_the_formula(
    compress: Compressor, machines: int, settings: dict[str, Any], on_threads: list[WatchedThreads]
) -> None:
    plan, every = plan_of(machines), settings.get("push_every", 1)
    driver = Downpour(compress=compress, optimizer=SGD(0.1), **settings)
    steps = 4
    run = train(plan, toy.data(BATCH * steps), driver=driver, epochs=1, show="nothing")
    assert run.steps == (steps,) and run.lost_pushes == 0
    (launcher,) = on_threads
    pushes = range(every - 1, steps, every)
    for machine in range(machines):
        sent: Any = launcher.boxes[part_name(0, machine)].counters.sent_of("Push")
        shards = len(layout_of(plan, shards=driver.shards).shards_of(machine))
        formula = sum(pushed_bytes(compress, plan, machine, shards=driver.shards, step=n) for n in pushes)
        assert (sent.messages, sent.payload_bytes) == (shards * len(pushes), formula)
        planned = began(plan, driver, EXTENT).machines[machine].push_bytes
        assert planned == pushed_bytes(compress, plan, machine, shards=driver.shards, step=1 << 30)


@pytest.mark.slow
def test_rows_of_sparse_tables_are_sent_beside_messages(on_threads: list[WatchedThreads]) -> None:
    """One row in each step: its number and numbers, and how many there are."""
    net = Network("words")
    table = Embedding(40, 3, sparse=True, name="table")(net.input("word", shape=1, classes=40))
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(table), net.target("label"))
    plan = partition(net, Cluster.local(machines=1), batch=1)
    data = {"word": np.arange(6)[:, None], "label": np.arange(6) % 4}
    driver = Downpour(compress=Int8(), optimizer=SGD(0.1))
    train(plan, data, driver=driver, epochs=1, show="nothing")
    counters: Any = on_threads[0].boxes[part_name(0, 0)].counters.sent_of("Push")
    assert counters.payload_bytes == 6 * (12 + 4 + 2 * 4 + 8 + 8 + 3 * 4)


@pytest.mark.parametrize("compress", [TopK(1.0), Int8()], ids=repr)
def test_one_replica_alone_has_the_parameters_of_its_shards(compress: Compressor, on_threads: object) -> None:
    """With a state of the optimizer, which the replica's own steps follow from push to push, to the bit: it
    fetches once.
    """
    settings: dict[str, Any] = {"optimizer": Adagrad(0.05), "compress": compress, "shards": 2}
    runs = [
        train(plan_of(), toy.data(48), driver=Downpour(fetch_every=n, **settings), epochs=2, show="nothing")
        for n in (1, 3)
    ]
    for name, numbers in runs[0].parameters.items():
        assert runs[1].parameters[name].tobytes() == numbers.tobytes(), name


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"compress": "top-k"}, "Downpour's compress is 'top-k'; give TopK"),
        ({"compress": Int8(), "staleness": Compensated()}, "leave one of the two out, or use Damped"),
    ],
    ids=repr,
)
def test_settings_of_downpour_that_do_not_go_together_are_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Downpour(**settings)


@pytest.mark.parametrize("compress", [TopK(0.05, 0.5, warm_up=8), OneBit(), PowerSGD(1)], ids=repr)
@pytest.mark.parametrize("machines", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_what_was_not_sent(
    compress: Compressor, machines: int, tmp_path: Path, on_threads: object
) -> None:
    """The bits of one that was not interrupted."""
    goes_on_with_the_bits(
        AllReduce(replicas=2, compress=compress, optimizer=Momentum(0.1)), machines, tmp_path
    )


@pytest.mark.parametrize(
    "driver",
    [
        LocalSGD(replicas=2, every=3, compress=TopK(0.05, 0.5), optimizer=Momentum(0.1)),
        pytest.param(
            DiLoCo(replicas=3, every=2, compress=OneBit(), optimizer=Momentum(0.1)), marks=pytest.mark.slow
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_run_of_rounds_goes_on_with_what_each_replica_has(
    driver: Driver, tmp_path: Path, on_threads: object
) -> None:
    """What it has not sent, and the state of its own optimizer."""
    goes_on_with_the_bits(driver, 1, tmp_path)


@pytest.mark.parametrize(
    ("compress", "settings"),
    [
        (TopK(0.05, 0.5), {"shards": 2, "optimizer": Momentum(0.1)}),
        pytest.param(PowerSGD(1), {"shards": 3, "durability": "replicated"}, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_a_run_with_shards_goes_on_with_what_was_not_sent(
    compress: Compressor, settings: dict[str, Any], tmp_path: Path, on_threads: object
) -> None:
    goes_on_with_the_bits(Downpour(compress=compress, **settings), 2, tmp_path)
    assert all("_0" in name for name in unsent_in(tmp_path)), "the names of a replica"
    assert any(np.abs(one).max() > 0 for whole in unsent_in(tmp_path).values() for one in whole.values())


def goes_on_with_the_bits(driver: Driver, machines: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"driver": driver, "show": "nothing"}
    plan, data = plan_of(machines), toy.data(48)
    whole = train(plan, data, epochs=3, **settings)
    train(plan, data, epochs=1, checkpoints=tmp_path, **settings)
    run = train(plan, data, epochs=3, checkpoints=tmp_path, resume=True, **settings)
    assert run.steps == whole.steps
    for name, numbers in whole.parameters.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


def unsent_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The state of compressors in the newest checkpoint, by name, as whole parameters."""
    found = Checkpoints(folder).latest(None)
    assert found is not None
    return {name: found.parameters(f"state.{name}") for name in found.state_names if "unsent" in name}


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_more_or_fewer_replicas_share_what_was_not_sent(
    replicas: int, tmp_path: Path, on_threads: object
) -> None:
    """Under another plan, too: all of it is sent in the next step, and nothing else, as gradients of then are
    clipped to nothing.
    """
    settings: dict[str, Any] = {"checkpoints": tmp_path, "show": "nothing"}
    driver = AllReduce(replicas=2, compress=TopK(0.05), optimizer=SGD(0.1))
    train(plan_of(1), toy.data(32), driver=driver, epochs=1, **settings)
    saved, before = unsent_in(tmp_path), Checkpoints(tmp_path).latest(None)
    assert sorted(saved) == ["unsent_residual_0", "unsent_residual_1"] and before is not None
    nothing_new = TopK(1.0, clip_norm=1e-9)
    driver = AllReduce(replicas=replicas, compress=nothing_new, optimizer=SGD(0.1))
    run = train(plan_of(2), toy.data(32), driver=driver, epochs=2, resume=True, **settings)
    for name, numbers in before.parameters().items():
        total = sum(one[name] for one in saved.values())
        assert np.abs(total).max() > 1e-3
        np.testing.assert_allclose(run.parameters[name], numbers - 0.1 * total, rtol=1e-5, atol=1e-6)


def test_downpour_goes_on_with_a_checkpoint_of_compressed_sums(tmp_path: Path, on_threads: object) -> None:
    settings: dict[str, Any] = {"checkpoints": tmp_path, "show": "nothing"}
    driver = AllReduce(replicas=2, compress=Int8(), optimizer=Adagrad(0.1))
    train(plan_of(), toy.data(16), driver=driver, epochs=1, **settings)
    run = train(
        plan_of(), toy.data(16), driver=Downpour(optimizer=Adagrad(0.1)), epochs=2, resume=True, **settings
    )
    assert run.steps == (4,)
