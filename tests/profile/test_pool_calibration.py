"""Calibration of a pool: what is measured where, the cluster that comes of it, plans for uneven machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import partita.engine.profile.pool_calibration as module
from partita.engine.cli.calibrate import parse_like, pool_of
from partita.engine.kernels.tiles.forms import OWN, candidates
from partita.engine.launch import ThreadLauncher
from partita.engine.launch.on import OnOptions
from partita.engine.launch.pool import Pool
from partita.engine.profile import tiles
from partita.engine.profile.host_questions import AskBusy, Facts, Interview, answered
from partita.engine.profile.links import SIZES, LinkMeasurement
from partita.engine.profile.pool_calibration import PoolCalibration, calibrate_pool, cluster_of
from partita.engine.profile.pool_pairs import groups_of, pairs_of
from partita.engine.profile.pool_tables import pool_text
from partita.engine.profile.store import Store
from partita.engine.protocol.pool.messages import Status, WorkerStatus
from partita.engine.protocol.pool.resources import Resources
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Choice, Cluster, Link, Machine, ProductShape, TiledLoop, partition
from partita.partitioner.cluster.processor import Processor
from tests.profile.test_calibration import Pretended, network

groupings = st.lists(st.integers(1, 3), min_size=1, max_size=9).map(
    lambda sizes: [[f"w{n}-{k}" for k in range(size)] for n, size in enumerate(sizes)]
)


@given(groupings, st.integers(0, 20))
def test_a_ring_of_neighbours_is_measured_and_as_many_others_as_there_may_be(
    groups: list[list[str]], most: int
) -> None:
    found = pairs_of(groups, most=most)
    ends = [frozenset(pair[:2]) for pair in found.pairs]
    assert len(set(ends)) == len(ends) and all(len(pair) == 2 for pair in ends)
    within = sum(len(group) > 1 for group in groups)
    every = within + len(groups) * (len(groups) - 1) // 2
    assert len(ends) + found.left_out == every
    assert found.left_out == 0 if every <= most else len(ends) <= max(most, within + len(groups))
    firsts = [group[0] for group in groups]
    assert all(frozenset(pair) in ends for pair in pairwise(firsts))
    assert found == pairs_of(groups, most=most)


def test_machines_that_are_alike_are_measured_once() -> None:
    machines = {"a": "1", "b": "2", "c": "2", "d": "3", "e": "4"}
    like = {"b": ["a", "d"]}
    assert groups_of(list(machines), machines, like) == [["b", "a", "d"], ["e"]]
    assert groups_of(list(machines), machines, {}) == [["a"], ["b"], ["d"], ["e"]]


@pytest.mark.parametrize(
    ("like", "sentence"),
    [
        ({"a": ["x"]}, "--like names 'x', but the pool's workers are a, b, c"),
        ({"a": ["b"], "b": ["c"]}, "--like names 'b' both as a machine to measure and as one like another"),
    ],
)
def test_a_wrong_group_is_named(like: dict[str, list[str]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        groups_of(["a", "b", "c"], {"a": "1", "b": "2", "c": "3"}, like)


def test_groups_are_read_from_the_command_line() -> None:
    assert parse_like(["a=b, c", "a=d"]) == {"a": ("b", "c", "d")}
    with pytest.raises(ValueError, match="--like is 'a'; write for example --like shelf-1=shelf-2"):
        parse_like(["a"])


def test_only_a_pool_can_be_calibrated_from_afar() -> None:
    assert pool_of(OnOptions(on="tcp://127.0.0.1:7077")) == Pool("tcp://127.0.0.1:7077")
    with pytest.raises(ValueError, match="--on is 'env', and a calibration measures the machines of a pool"):
        pool_of(OnOptions(on="env"))


def status(name: str, cpu: int) -> WorkerStatus:
    has = Resources(cpu=cpu, memory=cpu << 30)
    return WorkerStatus(
        name=name, endpoint="tcp://10.0.0.1:1", resources=has, free=has, runs=(), draining=False
    )


LABELS = {"w0": "one", "w1": "two", "w2": "two", "w3": "three"}


class PretendedPool(Pretended):
    """Workers on which all takes what was agreed; two are on one machine."""

    opened: list[tuple[tuple[str, ...], int]]

    def __init__(self, pool: Pool, workers: Sequence[WorkerStatus], *, threads: int = 1, **_: object) -> None:
        super().__init__(cores=threads)
        self._names = [worker.name for worker in workers]
        self.opened.append((tuple(self._names), threads))

    def facts(self) -> list[Facts]:
        zen = Processor("Zen", "AuthenticAMD", "26", features=("avx512f",))
        return [Facts(LABELS[name], f"of {LABELS[name]}", zen) for name in self._names]

    def close(self) -> None:
        pass


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pool:
    PretendedPool.opened = []
    workers = tuple(status(name, cpu) for name, cpu in zip(LABELS, (4, 2, 1, 2), strict=True))
    monkeypatch.setattr(module, "PoolBench", PretendedPool)
    monkeypatch.setattr(module, "ask_pool", lambda *_: Status(workers=workers, runs=()))
    monkeypatch.setattr(module, "Store", lambda *, of: Store(tmp_path / "machine.json", of=of))
    return Pool("tcp://127.0.0.1:7077")


def test_every_machine_and_link_of_a_pool_is_measured_once(pool: Pool) -> None:
    said: list[str] = []
    found = calibrate_pool(
        pool, network(), batch=8, threads=2, progress=lambda what, done, total: said.append(what)
    )
    machines = [(names, threads) for names, threads in PretendedPool.opened[1:] if len(names) == 1]
    assert machines == [(("w0",), 2), (("w1",), 1), (("w1",), 2), (("w3",), 2)]
    links = [names for names, _ in PretendedPool.opened[1:] if len(names) == 2]
    assert links == [("w1", "w2"), ("w0", "w1"), ("w0", "w3"), ("w1", "w3")]
    assert "the link between w0 and w3" in said and "kernels alone of w3, machine 3 of 3" in said
    cluster = found.cluster()
    assert [(m.name, m.worker, m.threads, m.cores) for m in cluster.machines] == [
        ("w0", "w0", 2, 4),
        ("w1", "w1", 2, 2),
        ("w2", "w2", 1, 1),
        ("w3", "w3", 2, 2),
    ]
    assert cluster.hosts == ("w0", "w1", "w1", "w3")
    assert cluster.link_between(1, 2) == cluster.memory != cluster.link_between(0, 1)
    rules = {machine.products.rule for machine in cluster.machines if machine.products is not None}
    assert rules == {"tiles"}, "the rule is that of the workers' processors"
    assert partition(network(), cluster, batch=8).costs.calibrated
    text = pool_text(found, cluster, width=78)
    assert "w0 and w3" in text and max(map(len, text.splitlines())) <= 78


def test_machines_that_are_said_to_be_alike_are_not_measured(pool: Pool, tmp_path: Path) -> None:
    found = calibrate_pool(pool, network(), batch=8, like={"w0": ["w3"]})
    assert [names for names, _ in PretendedPool.opened[1:] if len(names) == 1] == [("w0",), ("w1",)]
    cluster = found.cluster()
    assert [machine.kind for machine in cluster.machines] == ["w0", "", "", "w0"]
    assert cluster.machines[3].times is cluster.machines[0].times
    assert {frozenset((b.one, b.other)) for b in cluster.between} == {
        frozenset({"w0"}),
        frozenset({"w0", "w1"}),
    }
    assert Cluster.read(cluster.write(tmp_path / "cluster.toml")) == cluster


def test_nothing_is_measured_again(pool: Pool) -> None:
    calibrate_pool(pool, network(), batch=8)
    again = calibrate_pool(pool, network(), batch=8)
    assert all(machine.measured == 0 for machine in again.machines.values())


def test_a_pool_without_workers_is_refused(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ask_pool", lambda *_: Status(workers=(), runs=()))
    with pytest.raises(ValueError, match=r"no worker has joined the pool at tcp://127\.0\.0\.1:7077"):
        calibrate_pool(pool)


def test_a_pool_that_was_not_calibrated_is_described_by_what_its_workers_have(pool: Pool) -> None:
    cluster = cluster_of(pool, threads=2)
    assert [(m.worker, m.threads, m.cores, m.memory_bytes) for m in cluster.machines] == [
        ("w0", 2, 4, 4 << 30),
        ("w1", 2, 2, 2 << 30),
        ("w2", 1, 1, 1 << 30),
        ("w3", 2, 2, 2 << 30),
    ]
    assert not partition(network(), cluster, batch=8).costs.calibrated


def link_of(streams: Mapping[str, float]) -> LinkMeasurement:
    """A link on which a byte takes 1 ns on average, and so many ns in a stream there and back."""
    stream, back = (tuple(1e-9 * n * streams[way] for n in SIZES) for way in ("there", "back"))
    totals = tuple(1e-4 + 1e-9 * n for n in SIZES)
    return LinkMeasurement(1e-4, totals, (1e-5,) * 11, (1e-5,) * 11, stream, 1.0, SIZES, back)


def test_directions_that_differ_have_links_of_their_own() -> None:
    assert link_of({"there": 1.0, "back": 1.1}).directions is None
    links = link_of({"there": 1.5, "back": 0.5}).directions
    assert links is not None
    rates = [link.times(1 << 24)[1] / (1 << 24) for link in links]
    assert rates == pytest.approx([1.5e-9, 0.5e-9], rel=0.02)


def test_a_cluster_has_a_link_for_each_direction(pool: Pool) -> None:
    found = calibrate_pool(pool)
    slow_up = link_of({"there": 1.5, "back": 0.5})
    changed = PoolCalibration(**{**vars(found), "links": dict.fromkeys(found.links, slow_up)})
    cluster = changed.cluster()
    assert cluster.link_between(0, 3).bytes_per_s < 0.5 * cluster.link_between(3, 0).bytes_per_s


def test_hosts_answer_questions_about_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    few = candidates()[:1]
    loop = TiledLoop("forward", False, (2, 2), (1, 1), (0, 0), (4, 4, 1), (3, 3, 2), 8, "float32")
    monkeypatch.setattr(tiles, "candidates", lambda: few)
    with closing(Interview(ThreadLauncher(), 2)) as interview:
        facts = interview.facts()
        shape = ProductShape(8, 8, 8, "NN", "float32", 1)
        measured = interview.multiply(shape, Choice("numpy", 1))
        tiled = interview.tiles(loop)
    assert facts[0] == facts[1] and facts[0].signature
    assert measured is None or measured.shape == shape
    assert tiled is None or (tiled.loop, tiled.form) == (loop, OWN)
    assert "others use" in (answered(AskBusy()) or "others use")


def wide() -> Network:
    net = Network("wide")
    states = net.input("x", shape=400)
    for n in range(2):
        states = Dense(900, activation="tanh", name=f"hidden{n}")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(100, name="scores")(states), net.target("y"))
    return net


@given(
    st.sampled_from([1.0, 1.5, 2.0, 4.0]),
    st.sampled_from([1e-5, 1e-4]),
    st.sampled_from([1e8, 1e9, 1e10]),
)
def test_a_pair_of_uneven_machines_gets_a_plan_that_is_no_slower_than_even_pieces(
    ratio: float, latency_s: float, bytes_per_s: float
) -> None:
    machines = Machine("quick", speed=ratio, worker="quick"), Machine("slow", worker="slow")
    cluster = Cluster(machines, Link(latency_s, bytes_per_s))
    even = partition(wide(), Cluster.local(2), batch=64, strategy="balanced")
    plan = partition(wide(), cluster, batch=64)
    assert plan.predicted_step_s <= even.on(cluster).predicted_step_s * (1 + 1e-9)


def test_a_machine_of_twice_the_speed_gets_about_twice_the_rows() -> None:
    machines = Machine("quick", speed=2.0), Machine("slow")
    plan = partition(wide(), Cluster(machines, Link(1e-6, 1e11)), batch=256)
    rows = {piece.machine: piece.rows.size for piece in plan.ownership.of("hidden1")}
    assert rows.keys() == {0, 1} and 0.55 <= rows[0] / 900 <= 0.75
