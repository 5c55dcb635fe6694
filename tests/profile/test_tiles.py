"""Measuring the forms of tiles: which wins, when none is measured, and that loops are the layer's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from partita.engine.kernels.tiles.forms import OWN, Tile, candidates, tile_of
from partita.engine.profile import tiles
from partita.engine.profile.asked import asked_of
from partita.engine.profile.kernel_benchmark import BenchmarkPart, KernelBenchmark
from partita.engine.profile.tiled_loops import loops_of
from partita.engine.profile.tiles import measure_tiles
from partita.layers import Conv2D, Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, Products, RowSplit, TiledLoop, TileForm, TileForms, partition
from partita.partitioner.cluster.products import LARGE
from partita.partitioner.cluster.tile_forms import TILED_OPERATIONS, TiledOperation
from tests.kernels.cases import case, play

LOOP = TiledLoop("forward", False, (5, 5), (1, 1), (2, 2), (9, 8, 3), (9, 8, 4), 21, "float32")


@pytest.fixture
def two_forms(monkeypatch: pytest.MonkeyPatch) -> tuple[TileForm, TileForm]:
    """The rule's form and one of the same vectors: for others the loops are compiled once more."""
    found = candidates()[0], candidates()[1]
    monkeypatch.setattr(tiles, "candidates", lambda: found)
    return found


@pytest.mark.parametrize("operation", TILED_OPERATIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_every_operation_is_measured_in_every_form(
    operation: TiledOperation,
    shared: bool,
    two_forms: tuple[TileForm, TileForm],
) -> None:
    ticks = count()
    loop = replace(LOOP, operation=operation, shared=shared)
    found = measure_tiles(loop, clock=lambda: float(next(ticks)))
    assert found is not None and [form for form, _ in found.seconds] == list(two_forms)
    assert found.form == OWN and not found.is_new  # all took as long


class Watch:
    """A clock that advances while a loop runs, by what its form takes."""

    def __init__(self, taken: Callable[[TileForm, int], float]) -> None:
        self.now, self._taken, self._calls = 0.0, taken, 0

    def __call__(self) -> float:
        return self.now

    def play(self, form: TileForm) -> None:
        self.now += self._taken(form, self._calls // 2)
        self._calls += 1


@pytest.mark.parametrize(("fast", "spread", "wins"), [(0.9, 1.0, True), (0.97, 1.0, False), (0.5, 2.0, None)])
def test_a_form_must_win_every_round_by_a_margin(
    fast: float,
    spread: float,
    wins: bool | None,
    two_forms: tuple[TileForm, TileForm],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, other = two_forms
    watch = Watch(lambda form, call: (1.0 if form == usual else fast) * (spread if call % 2 else 1.0))

    class Pretended:
        def prepare(self, tile: Tile) -> tuple[Callable[[], None], np.ndarray]:
            form = next(form for form in two_forms if tile_of(form) == tile)
            return lambda: watch.play(form), np.zeros(1)

    monkeypatch.setattr(tiles, "loops_of", lambda loop: Pretended())
    found = measure_tiles(LOOP, clock=watch)
    assert (found and found.form) == (None if wins is None else other if wins else usual)
    assert found is None or found.is_new == wins


def test_forms_that_do_not_agree_are_reported(
    two_forms: tuple[TileForm, TileForm], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def prepare(self, tile: Tile) -> tuple[Callable[[], None], np.ndarray]:
            return lambda: None, np.full(3, float(tile.rows))

    monkeypatch.setattr(tiles, "loops_of", lambda loop: Wrong())
    with pytest.raises(ArithmeticError, match="do not agree on the forward of 5x5x3 to 9x8x4, own weights"):
        measure_tiles(LOOP)


@pytest.mark.parametrize("layer", [LocallyConnected2D(4, 5, padding="same"), Conv2D(4, 5, padding="same")])
def test_the_loops_that_are_measured_compute_what_the_layer_does(layer: LocallyConnected2D | Conv2D) -> None:
    """With the numbers of the benchmark, the layer's kernel gives the same bits."""
    shared = isinstance(layer, Conv2D)
    loops = {name: loops_of(replace(LOOP, operation=name, shared=shared)) for name in TILED_OPERATIONS}
    found = {}
    for name, one in loops.items():
        call, out = one.prepare(tile_of(None))
        call()
        found[name] = out
    given = case(layer, (9, 8, 3), batch=21, dtype=np.float32)

    def drawn(like: np.ndarray) -> np.ndarray:
        few = np.random.default_rng(0).standard_normal(4093).astype(np.float32)
        return np.resize(few, like.shape)

    given = replace(
        given,
        inputs=(drawn(given.inputs[0]),),
        parameters=tuple(map(drawn, given.parameters)),
        error=drawn(given.error),
    )
    expected = play(given)
    assert found["forward"].tobytes() == expected.state.tobytes()
    assert found["input gradient"].tobytes() == expected.errors[0].tobytes()
    assert found["weight gradient"].tobytes() == expected.gradients[0].tobytes()


def plan_of(machines: int) -> Plan:
    net = Network("patches")
    first = LocallyConnected2D(6, 5, activation="tanh", name="first")(net.input("x", shape=(20, 20, 3)))
    second = Conv2D(8, 3, name="second")(first)
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(second), net.target("y"))
    cuts = {name: RowSplit(machines) for name in ("first", "second")}
    return partition(net, Cluster.local(machines), batch=32, cuts=cuts)


class Watched(TileForms):
    """Remembers what kernels ask for."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "asked", set())

    asked: set[TiledLoop]

    def choose(self, loop: TiledLoop) -> TileForm | None:
        self.asked.add(loop)
        return super().choose(loop)


@pytest.mark.parametrize("machines", [1, 2])
def test_a_calibration_asks_for_exactly_the_loops_that_a_part_runs(machines: int) -> None:
    plan = plan_of(machines)
    for machine in range(machines):
        watched = Watched()
        watching = plan.multiplying_by(Products(forms=watched))
        KernelBenchmark(BenchmarkPart(watching, machine)).close()
        found = asked_of(BenchmarkPart(plan, machine)).loops
        assert found == {loop for loop in watched.asked if loop.operations >= LARGE}
        assert {(loop.operation, loop.shared) for loop in found} == {
            ("forward", False),
            ("weight gradient", False),
            *((operation, True) for operation in TILED_OPERATIONS),
        }
