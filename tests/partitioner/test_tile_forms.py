"""The forms of tiles in a plan: what is chosen, what the plan prints of it, and the files that hold it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from partita.layers import Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import (
    Cluster,
    Machine,
    Plan,
    Products,
    TiledLoop,
    TileForm,
    TileForms,
    partition,
)
from partita.partitioner.cluster.tile_forms import Tails

LOOP = TiledLoop("forward", False, (5, 5), (1, 1), (0, 0), (20, 20, 3), (16, 16, 4), 32, "float32")
WIDE, FLAT, NARROW = TileForm(64, 8, 3), TileForm(64, 4, 4), TileForm(32, 6, 2, "halved")
MEASURED = TileForms(
    ((LOOP, FLAT), (replace(LOOP, operation="weight gradient"), NARROW)), "AMD EPYC, 2026-11-23"
)


def plan_of(cluster: Cluster, *, places: int = 5, batch: int = 32) -> Plan:
    net = Network("patches")
    found = LocallyConnected2D(4, places, name="places")(net.input("x", shape=(20, 20, 3)))
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(found), net.target("y"))
    return partition(net, cluster, batch=batch)


def lines(plan: Plan) -> list[str]:
    return [line for line in str(plan).splitlines() if line.startswith("tiles")]


def test_what_was_measured_comes_before_the_form_by_hand_and_that_before_the_hosts_rule() -> None:
    other = replace(LOOP, batch=8)
    assert [forms.choose(LOOP) for forms in (TileForms(), TileForms(fixed=WIDE), MEASURED)] == [
        None,
        WIDE,
        FLAT,
    ]
    assert MEASURED.choose(other) is None
    assert replace(MEASURED, fixed=WIDE).choose(other) == WIDE


@pytest.mark.parametrize(
    ("size", "rows", "tails", "message"),
    [
        (48, 8, "masked", "vectors of 48 bytes with tails 'masked'; vectors have 16, 32, 64 bytes"),
        (64, 8, "cut", "tails 'cut'; .* tails are masked, masked or whole, halved"),
        (64, 0, "masked", "a tile of 0 x 3 vectors has no sums; write at least 1 x 1"),
    ],
)
def test_a_form_that_does_not_exist_is_refused(size: int, rows: int, tails: Tails, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TileForm(size, rows, 3, tails)


def test_a_plan_says_in_one_line_in_which_forms_its_layers_on_patches_are_multiplied() -> None:
    plan = plan_of(Cluster.local(1))
    assert lines(plan) == ["tiles: fixed rule (as wide as each host's vectors)"]
    by_hand = plan.multiplying_by(Products(forms=TileForms(fixed=WIDE)))
    assert lines(by_hand) == ["tiles: fixed rule (8 x 3 vectors of 64 bytes, masked)"]
    assert lines(plan.multiplying_by(Products(forms=MEASURED))) == [
        "tiles: 2 loops from the calibration of AMD EPYC, 2026-11-23 (4 x 4 vectors of 64 bytes, masked: 1; "
        "6 x 2 vectors of 32 bytes, halved: 1); others by the fixed rule (as wide as each host's vectors)"
    ]
    assert lines(plan_of(Cluster.local(1), places=2, batch=4)) == []  # too small to matter


def test_a_cluster_is_written_and_read_with_its_forms(tmp_path: Path) -> None:
    found = [Products(forms=forms) for forms in (MEASURED, TileForms(fixed=NARROW))]
    machines = (*(Machine(f"a{n}", products=one) for n, one in enumerate(found)), Machine("b"))
    again = Cluster.read(Cluster(machines, link=Cluster.local(1).memory).write(tmp_path / "cluster.toml"))
    assert [machine.products for machine in again.machines] == [*found, None]


def test_choices_and_plans_of_before_there_were_forms_are_read(tmp_path: Path) -> None:
    path = Cluster((Machine("a", products=Products("tiles")),)).write(tmp_path / "cluster.toml")
    (tmp_path / "cluster.products.json").write_bytes(
        b'{"version": 1, "rule": "tiles", "origin": "", "source": "", "measured": [], "flat": 64}'
    )
    assert Cluster.read(path).machines[0].products == Products("tiles", flat=64)
    earlier = Products("tiles", flat=64)
    del earlier.__dict__["forms"]  # as a plan has it that an earlier version pickled
    assert pickle.loads(pickle.dumps(earlier)).forms == TileForms()


def test_a_form_that_is_not_known_is_refused_in_a_file(tmp_path: Path) -> None:
    machine = Machine("a", products=Products(forms=TileForms(fixed=WIDE)))
    path = Cluster((machine,)).write(tmp_path / "cluster.toml")
    kept = tmp_path / "cluster.products.json"
    kept.write_text(kept.read_text().replace('"masked"', '"cut"', 1))
    with pytest.raises(ValueError, match=r"holds no choices of products .*'cut'"):
        Cluster.read(path)


def test_a_plan_keeps_its_forms_when_it_is_sent() -> None:
    plan = plan_of(Cluster.local(2)).multiplying_by(Products(forms=MEASURED))
    assert [pickle.loads(pickle.dumps(plan)).products_of(m).forms for m in range(2)] == [MEASURED] * 2
