"""Calibration: what is measured, what is not measured again, and what becomes of it; by no real clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from partita.engine.cli.calibrate import calibrate as command
from partita.engine.cli.fields import Command
from partita.engine.cli.kernels import kernels
from partita.engine.kernels.tiles.forms import candidates
from partita.engine.launch import Launcher, ThreadLauncher
from partita.engine.profile import calibrate, known
from partita.engine.profile.bench import Bench, StepTimes
from partita.engine.profile.kernel_benchmark import BenchmarkPart, KernelBenchmark, Seconds
from partita.engine.profile.links import SIZES, Runtime, measure_link, measure_runtime
from partita.engine.profile.products import ProductMeasurement
from partita.engine.profile.signature import signature
from partita.engine.profile.sizes import plans_of_all_sizes, works
from partita.engine.profile.store import VERSION, Record, Store
from partita.engine.profile.tables import calibration_text
from partita.engine.profile.tiles import TileMeasurement
from partita.layers import Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import (
    Choice,
    Cluster,
    InputSplit,
    Link,
    Op,
    Plan,
    Products,
    ProductShape,
    RowSplit,
    StepKind,
    partition,
)
from partita.partitioner.cluster.processor import processor
from partita.partitioner.cluster.products import LARGE, products_for
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TiledLoop
from partita.partitioner.ir.program import COMPUTES

RUNTIME = Runtime(instruction_s=4e-6, step_s=5e-5, cold_s=2e-5)
MEMORY = Link(2e-5, 4e9, send_s=1e-5, receive_s=2e-5, send_bytes_per_s=8e9, receive_bytes_per_s=4e9)
TCP = Link(5e-5, 1e9, send_s=2e-5, receive_s=3e-5, send_bytes_per_s=8e9, receive_bytes_per_s=2e9)


def network(name: str = "small", *, classes: int = 4, **names: str) -> Network:
    net = Network(name)
    hidden = Dense(16, activation="relu", name=names.get("hidden"))(net.input(names.get("x", "x"), shape=12))
    scores = Dense(classes, name=names.get("scores"))(hidden)
    net.loss = SoftmaxCrossEntropy(name=names.get("loss"))(scores, net.target(names.get("y", "y")))
    return net


class Pretended(Bench):
    """A bench on which all takes what was agreed, and which counts what it is asked for."""

    def __init__(self, cores: int = 2, *, refuses: str | None = None) -> None:
        self.timed_groups: list[str] = []
        self.multiplied: list[ProductShape] = []
        self.tiled: list[TiledLoop] = []
        self.played_by: list[Products] = []
        self.shared: list[int] = []
        self.played = 0
        self._cores, self._refuses = cores, refuses

    @property
    def cores(self) -> int:
        return self._cores

    @property
    def memory_bytes(self) -> int:
        return 1 << 30

    def time_kernels(
        self, parts: Sequence[Sequence[BenchmarkPart]], *, threads: int, on_group: Callable[[int], None]
    ) -> list[list[Seconds]]:
        for n in range(len(parts)):
            on_group(n)
        self.played_by += [group[0].plan.products_of(0) for group in parts]
        self.timed_groups += [f"{len(group)} of {len(group[0].plan.cluster)}" for group in parts]
        return [[self._seconds(part, len(group)) for part in group] for group in parts]

    def busy(self) -> str | None:
        return self._refuses

    def multiply(self, shape: ProductShape, usual: Choice) -> ProductMeasurement | None:
        self.multiplied.append(shape)
        chosen = Choice("numpy", 1)
        return ProductMeasurement(shape=shape, seconds=((usual, 2.0), (chosen, 1.0)), choice=chosen)

    def tiles(self, loop: TiledLoop) -> TileMeasurement | None:
        self.tiled.append(loop)
        rule, chosen = candidates()[:2]
        return TileMeasurement(loop=loop, seconds=((rule, 2.0), (chosen, 1.0)), form=chosen)

    def shares(self, rule: Products, threads: int, source: str) -> ThreadShares | None:
        self.shared.append(threads)
        return replace(rule.threads, product=7e6, source=source)

    def _seconds(self, part: BenchmarkPart, together: int) -> Seconds:
        found = np.zeros(len(part.plan.programs_for(part.kind)[part.machine]))
        for position, work in works(part).items():
            found[position] = (1.0 + together) * work.reference_s
        return found

    def play(
        self,
        plans: Sequence[Plan],
        *,
        steps: int,
        shared_memory: bool,
        cold: bool = False,
        goes_on: Callable[[Sequence[StepTimes]], bool] = lambda found: True,
    ) -> list[StepTimes]:
        self.played += 1
        found: list[StepTimes] = []
        for plan in plans:
            found.append(self._typical_times(plan, MEMORY if shared_memory else TCP, cold=cold))
            if not goes_on(found):
                break
        return found

    def _typical_times(self, plan: Plan, link: Link, *, cold: bool) -> StepTimes:
        """A chain takes everything in turn; other networks take what communication threads do."""
        computed = [sum(i.op in COMPUTES for i in program.instructions) for program in plan.forward_programs]
        busy = tuple(1e-6 * n for n in computed)
        messages = plan.messages_for(StepKind(train=False))
        each = RUNTIME.instruction_s + RUNTIME.cold_s * cold
        step = RUNTIME.step_s + each * sum(computed) + sum(busy)
        communication = [0.0] * len(plan.cluster)
        for message in messages:
            send, wire, receive = link.times(message.n_bytes)
            communication[message.source] += send
            communication[message.destination] += receive
            step += send + receive + link.latency_s + wire
        return StepTimes(step, busy, tuple(communication))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "machine.json")


def test_what_the_runtime_adds_is_found() -> None:
    found = measure_runtime(Pretended())
    assert found.instruction_s == pytest.approx(RUNTIME.instruction_s)
    assert found.step_s == pytest.approx(RUNTIME.step_s)
    assert found.cold_s == pytest.approx(RUNTIME.cold_s)


@pytest.mark.parametrize(("shared_memory", "expected"), [(True, MEMORY), (False, TCP)])
def test_a_link_is_found(shared_memory: bool, expected: Link) -> None:
    measured = measure_link(Pretended(), RUNTIME, shared_memory=shared_memory)
    assert measured.start_s == pytest.approx(RUNTIME.step_s)
    link = measured.link
    for n_bytes in (*SIZES, 100, 300_000):
        for found, time in zip(link.times(n_bytes), expected.times(n_bytes), strict=True):
            assert found == pytest.approx(time, rel=2e-3, abs=2e-7), n_bytes
    assert link.latency_s == pytest.approx(expected.latency_s, rel=2e-3)


def test_larger_messages_are_not_measured_once_steps_take_long() -> None:
    """Ten messages of 1 MiB take less than the limit, and ten of 4 MiB more: larger ones are left out."""
    measured = measure_link(Pretended(), RUNTIME, shared_memory=False)
    assert measured.n_bytes == SIZES[:-2]
    assert len(measured.total_s) == len(measured.stream_s) == len(SIZES) - 2


def test_a_network_is_measured_whole_and_in_pieces_alone_and_side_by_side(store: Store) -> None:
    bench, reports = Pretended(), []
    found = calibrate(network(), batch=8, store=store, bench=bench, progress=lambda *t: reports.append(t))
    assert bench.timed_groups == ["1 of 1", "2 of 1"]  # it is so small that no piece of it is worth measuring
    assert bench.played == 6  # the runtime, warm and cold; two kinds of links, one way and both
    assert [what for what, done, _ in reports if not done] == [
        "the runtime",
        "messages by shared memory",
        "kernels alone",
        "kernels side by side",
    ]
    assert found.measured == 2 * len({w.signature for w in works(BenchmarkPart(whole(), 0)).values()})
    assert store.read() == found.record


def whole() -> Plan:
    return partition(network(), Cluster.local(1), batch=8)


def test_large_networks_are_measured_in_ever_smaller_pieces() -> None:
    net = Network("large")
    net.loss = SoftmaxCrossEntropy()(Dense(3000)(net.input("x", shape=2000)), net.target("y"))
    plans = list(plans_of_all_sizes(net.graph(), batch=32, precision="float32", threads=1))
    by_rows = [plan for plan in plans if not plan.ownership.is_input_split("dense")]
    by_inputs = [plan for plan in plans if plan.ownership.is_input_split("dense")]
    assert [len(plan.cluster) for plan in by_rows] == [1, 2, 4, 8, 16, 32]
    assert [len(plan.cluster) for plan in by_inputs] == [2, 4, 8, 16, 32]
    assert all(len(plan.ownership.of("dense")) == len(plan.cluster) for plan in plans)


def test_sums_over_inputs_are_measured(store: Store) -> None:
    """Every kernel of such a plan was measured, sums over some inputs and sums of sums among them."""
    net = Network("two")
    hidden = Dense(2000, activation="tanh", name="hidden")(net.input("x", shape=1000))
    net.loss = SoftmaxCrossEntropy()(Dense(500, name="scores")(hidden), net.target("y"))
    found = calibrate(net, batch=32, store=store, bench=Pretended())
    cuts = {"hidden": InputSplit(2, replicated=True), "scores": InputSplit(2)}
    plan = partition(net, found.cluster(2), batch=32, cuts=cuts)
    times = plan.cluster.machines[0].times
    assert times is not None
    origins = {work.signature: times.find(work)[1] for work in works(BenchmarkPart(plan, 0)).values()}
    assert set(origins.values()) == {"measured"}
    assert any(" alone" in signature for signature in origins) and any(" in 2 sums" in s for s in origins)


def test_nothing_is_measured_twice_whatever_things_are_called(store: Store) -> None:
    calibrate(network(), batch=8, store=store, bench=Pretended())
    bench = Pretended()
    names = {"x": "picture", "y": "digit", "hidden": "below", "scores": "above", "loss": "error"}
    other = calibrate(network("other", **names), batch=8, store=store, bench=bench)
    assert (bench.timed_groups, bench.played, other.measured) == ([], 0, 0)
    calibrate(network(), batch=9, store=store, bench=bench)
    assert bench.timed_groups == ["1 of 1", "2 of 1"]


def test_a_plan_is_measured_and_the_next_time_it_is_known(store: Store) -> None:
    plan = partition(network(), Cluster.local(2), batch=8, cuts={"dense": RowSplit(2, (5, 11))})
    bench = Pretended()
    for _ in range(2):
        found = calibrate(plan.graph, batch=8, plans=(plan,), store=store, bench=bench)
    assert bench.timed_groups == ["1 of 1", "1 of 2", "1 of 2", "2 of 1", "2 of 2"]
    calibrated = partition(network(), found.cluster(2), batch=8, cuts={"dense": RowSplit(2, (5, 11))})
    assert calibrated.costs.calibrated and "uncalibrated" not in str(calibrated)
    assert "(uncalibrated)" in str(plan)
    computed = [(i, p.machine) for p in calibrated.programs for i in p.instructions if i.op in COMPUTES]
    assert {machine for _, machine in computed} == {0, 1}
    for instruction, machine in computed:
        work = calibrated.costs.work(instruction, machine)
        expected = 3.0 * work.reference_s + RUNTIME.instruction_s  # side by side
        assert calibrated.costs.compute_s(instruction, machine) == pytest.approx(expected)


def test_the_cluster_is_this_machine(store: Store) -> None:
    found = calibrate(network(), batch=8, store=store, bench=Pretended())
    one, several = found.cluster(1), found.cluster(3)
    assert [machine.name for machine in several.machines] == ["here0", "here1", "here2"]
    assert several.hosts == ("here",) * 3
    assert [(m.cores, m.memory_bytes) for c in (one, several) for m in c.machines[:1]] == [
        (2, 1 << 30),
        (1, 1 << 29),
    ]
    assert several.memory.latency_s == pytest.approx(MEMORY.latency_s, rel=5e-3)
    assert several.link is not None and several.link.latency_s == pytest.approx(TCP.latency_s, rel=5e-3)
    (up,) = (
        i for i in whole().programs[0].instructions if i.op is Op.FORWARD and str(i.target.buffer) == "dense"
    )
    costs = [partition(network(), c, batch=8).costs.compute_s(up, 0) for c in (one, several)]
    assert (costs[1] - RUNTIME.instruction_s) / (costs[0] - RUNTIME.instruction_s) == pytest.approx(1.5)


def large() -> Network:
    net = Network("large")
    hidden = Dense(400, activation="tanh", name="hidden")(net.input("x", shape=300))
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("y"))
    return net


def test_large_products_are_measured_once_and_are_then_part_of_every_plan(store: Store) -> None:
    bench = Pretended()
    found = calibrate(large(), batch=32, store=store, bench=bench)
    whole = {
        (400, 300, 32, "NN"),
        (400, 32, 300, "NT"),
    }  # small ones, and what nothing comes down to, are not
    assert whole <= {(one.m, one.k, one.n, one.layout) for one in bench.multiplied}
    assert all(shape.operations >= LARGE for shape in bench.multiplied)
    assert len(set(bench.multiplied)) == len(bench.multiplied)
    for machines in (1, 2):
        plan = partition(large(), found.cluster(machines), batch=32)
        for shape in bench.multiplied:
            assert plan.products_of(machines - 1).choose(shape) == Choice("numpy", 1)
        assert f"products: {len(bench.multiplied)} from the calibration of {processor().name}, 20" in str(
            plan
        )
    assert set(bench.played_by) == {found.record.choices()}  # kernels are timed with what then computes them
    again = Pretended()
    calibrate(large(), batch=32, store=store, bench=again)
    assert (again.multiplied, again.timed_groups) == ([], [])


def patches() -> Network:
    net = Network("patches")
    places = LocallyConnected2D(4, 5, activation="tanh", name="places")(net.input("x", shape=(20, 20, 3)))
    after = LocallyConnected2D(2, 3, name="after")(places)
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(after), net.target("y"))
    return net


def test_large_tiled_loops_are_measured_once_and_are_then_part_of_every_plan(store: Store) -> None:
    bench = Pretended()
    found = calibrate(patches(), batch=32, store=store, bench=bench)
    assert sorted((loop.operation, loop.places) for loop in bench.tiled) == [
        ("forward", (16, 16, 4)),
        ("weight gradient", (16, 16, 4)),
    ]  # nothing comes down to the input, and the other layer is small
    assert set(bench.played_by) == {found.record.choices()}
    for machines in (1, 2):
        plan = partition(patches(), found.cluster(machines), batch=32)
        for loop in bench.tiled:
            assert plan.products_of(machines - 1).forms.choose(loop) == candidates()[1]
        words = " ".join(str(plan).split())
        assert f"tiles: 2 loops from the calibration of {processor().name}, 20" in words
        assert f"({candidates()[1]}: 2); others by the fixed rule (as wide as each host's vectors)" in words
    again = Pretended()
    calibrate(patches(), batch=32, store=store, bench=again)
    assert (again.tiled, again.timed_groups) == ([], [])


def test_a_busy_machine_measures_no_product_and_the_fixed_rule_holds(store: Store) -> None:
    busy = Pretended(refuses="others use this machine")
    found = calibrate(large(), batch=32, store=store, bench=busy)
    assert (found.refused, busy.multiplied) == ("others use this machine", [])
    assert found.record.choices() == products_for(processor())
    assert "products: fixed rule" in str(partition(large(), found.cluster(1), batch=32))
    quiet = Pretended()
    found = calibrate(large(), batch=32, store=store, bench=quiet)
    assert found.refused is None and quiet.multiplied
    assert quiet.timed_groups == busy.timed_groups  # kernels are timed again, with their new products


def test_what_several_threads_share_is_measured_once_and_is_then_part_of_every_plan(store: Store) -> None:
    fixed = calibrate(network(), batch=32, threads=2, store=store, bench=Pretended(), products=False)
    assert fixed.record.choices(2).threads == products_for(processor()).threads
    bench = Pretended()
    found = calibrate(network(), batch=32, threads=2, store=store, bench=bench)
    assert bench.shared == [2] and bench.timed_groups  # kernels are timed again, with these shares
    plan = partition(network(), found.cluster(1, threads=2), batch=32)
    assert plan.products_of(0).threads.product == 7e6
    assert f"threads: calibration of {processor().name}, 20" in " ".join(str(plan).split())
    assert found.cluster(1).machines[0].products == products_for(processor())  # of one thread
    again = Pretended()
    calibrate(network(), batch=32, threads=2, store=store, bench=again)
    assert (again.shared, again.timed_groups) == ([], [])


def test_a_profile_measures_no_products(store: Store) -> None:
    bench = Pretended(refuses="nobody should ask")
    found = calibrate(large(), batch=32, store=store, bench=bench, products=False)
    assert (found.refused, bench.multiplied) == (None, [])


def test_a_machine_of_one_core_has_nobody_beside_it(store: Store) -> None:
    bench = Pretended(cores=1)
    calibrate(network(), batch=8, store=store, bench=bench)
    assert bench.timed_groups == ["1 of 1"]


def test_what_was_never_measured_is_not_known(store: Store) -> None:
    assert known(bench=Pretended(), store=store) is None
    calibrate(batch=8, store=store, bench=Pretended())
    found = known(bench=Pretended(), store=store)
    assert found is not None and found.record.kernels == {}


def test_the_fields_of_the_file_keep_the_names_that_earlier_files_have(store: Store) -> None:
    calibrate(network(), batch=8, store=store, bench=Pretended())
    (record,) = json.loads(store.path.read_text())["machines"].values()
    own = {"threads", "tiles"}  # which earlier files do not have
    assert record.keys() - own == {"kernels", "runtime", "roads", "products", "measured_on", "processor"}
    assert record["kernels"].keys() == {"alone", "beside"} and record["roads"].keys() == {"memory", "tcp"}
    assert store.read().links["tcp"].total_s == tuple(record["roads"]["tcp"]["total_s"])


def test_a_file_of_another_version_is_reported_and_counts_as_empty(store: Store) -> None:
    store.path.write_text('{"version": 99, "machines": {}}')
    assert store.read() == Record()
    assert store.trouble() == (
        f"{store.path} cannot be used (its version is 99, and this Partita reads version {VERSION}); it "
        "counts as empty, and is written anew when needed"
    )
    calibrate(batch=8, store=store, bench=Pretended())
    assert store.trouble() is None and store.read().runtime is not None
    assert store.forget() and not store.forget()


def test_other_settings_have_records_of_their_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(batch=8, store=store, bench=Pretended())
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    assert store.read() == Record()
    calibrate(batch=8, store=store, bench=Pretended())
    monkeypatch.delenv("OMP_SCHEDULE")
    assert store.read().runtime is not None


@pytest.mark.parametrize("cut", [RowSplit(2), InputSplit(2), InputSplit(2, replicated=True)])
def test_a_part_is_timed_in_the_order_of_its_program(cut: InputSplit | RowSplit) -> None:
    ticks = count()
    plan = partition(network(), Cluster.local(2), batch=8, cuts={"dense": RowSplit(2), "dense_1": cut})
    benchmark = KernelBenchmark(BenchmarkPart(plan, 0), clock=lambda: float(next(ticks)))
    try:
        rounds = benchmark.rounds()
    finally:
        benchmark.close()
    instructions = plan.programs[0].instructions
    assert len(rounds) == 3  # two ticks an instruction: the time is over at once, but three rounds are due
    assert all(one == [1.0 if i.op in COMPUTES else 0.0 for i in instructions] for one in rounds)


def in_threads(hosts: int, shared_memory: bool) -> Launcher:
    return ThreadLauncher()


def test_hosts_time_kernels_and_play() -> None:
    bench, reports = Bench(in_threads), []
    plan = partition(network(), Cluster.local(2), batch=8)
    group = (BenchmarkPart(plan, 0), BenchmarkPart(plan, 1))
    (seconds,) = bench.time_kernels([group], threads=1, on_group=reports.append)
    assert reports == [0]
    for part, taken in zip(group, seconds, strict=True):
        timed = [i.op in COMPUTES for i in plan.programs[part.machine].instructions]
        assert [bool(s > 0) for s in taken] == timed
    chain = partition(plan.graph.without_losses(), Cluster.local(2), batch=8)
    for times in bench.play([chain, chain], steps=2, shared_memory=True):
        assert times.step_s > 0 and len(times.busy_s) == len(times.communication_s) == 2


def test_what_was_measured_is_shown(store: Store) -> None:
    found = calibrate(network(), batch=8, store=store, bench=Pretended())
    shown = calibration_text(found)
    assert max(map(len, calibration_text(found, width=60).splitlines())) <= 60
    for words in ("learn", "Dense", "4 us", "shared memory", "TCP, loopback", "607 MB/s", "at once"):
        assert words in shown


def test_the_command_forgets_and_reports_mistakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    app = Typer()
    app.command(cls=Command)(command)
    assert CliRunner().invoke(app, ["--forget"]).output == "nothing was remembered\n"
    store = Store()
    store.path.write_text('{"version": 1, "machines": {}}')
    missing = CliRunner().invoke(app, ["missing.py"])
    assert (
        missing.output.startswith(store.trouble() or "nothing") and "its version is 1, and" in missing.output
    )
    assert missing.exit_code == 1 and "there is no file missing.py" in missing.output


def test_kernels_shows_the_rule_and_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    app = Typer()
    app.command(cls=Command)(kernels)
    optimizer = f"products: {products_for(processor())}\ntiles: fixed rule (as wide as each host's vectors)\n"
    assert CliRunner().invoke(app, []).output == f"{signature()}\n{optimizer}"
    calibrate(large(), batch=32, threads=2, store=Store(), bench=Pretended(cores=4))
    shown = CliRunner().invoke(app, [], env={"COLUMNS": "200"}).output
    assert "from the calibration of" in shown and "400x300x32" in shown and "NumPy x1" in shown
    calibrate(patches(), batch=32, threads=2, store=Store(), bench=Pretended(cores=4))
    shown = CliRunner().invoke(app, [], env={"COLUMNS": "400"}).output
    assert f"tiles: 2 loops from the calibration of {processor().name}" in shown
    assert "5x5x3 to 16x16x4, own weights, x32 float32" in shown and f"{candidates()[1]}, ms" in shown
    assert CliRunner().invoke(app, ["--forget"]).output == "forgotten\n"
    assert CliRunner().invoke(app, []).output == f"{signature()}\n{optimizer}"


def test_a_calibration_holds_for_features_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor().name in signature() and "(features " in signature()
    before = signature()
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")  # which libraries set when they are imported
    assert signature() == before
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Zen")
    assert "OPENBLAS_CORETYPE=Zen" in signature()
