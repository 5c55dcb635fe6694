"""Which library computes a product: the fixed rules, the table of a calibration, what a plan says of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.partitioner import Choice, Cluster, Machine, Plan, Products, ProductShape, partition
from partita.partitioner.cluster.processor import Processor, described, processor
from partita.partitioner.cluster.products import LARGE, RULES, products_for
from partita.partitioner.cluster.threads import NEVER, ThreadShares
from tests.networks import large

ZEN4 = Processor("AMD EPYC", "AuthenticAMD", "25", "17 1", ("avx2", "avx512f", "fma"))
ZEN5 = Processor("AMD EPYC", "AuthenticAMD", "26", "2 1", ("avx2", "avx512f", "fma"))
XEON = Processor("Intel(R) Xeon(R) 6", "GenuineIntel", "6", "173 1", ("amx_tile", "avx2", "avx512f", "fma"))
LARGE_SHAPE = ProductShape(2560, 440, 128, "NN", "float32", 2)

shapes = st.builds(
    ProductShape,
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(1, 512),
    st.sampled_from(["NN", "TN", "NT"]),
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.integers(1, 8),
)


@given(shapes, st.sampled_from(RULES))
def test_a_fixed_rule_gives_every_product_its_library_and_no_thread_too_little_work(
    shape: ProductShape, rule: str
) -> None:
    found = Products("tiles" if rule == "tiles" else "torch").choose(shape)
    if shape.precision == "bfloat16":
        assert found.library == "torch"
    else:
        by_blas = rule == "tiles" and shape.layout == "NT" and shape.m * shape.n > 1 << 21
        assert found.library == (rule if shape.operations >= LARGE else "numpy") or by_blas
    assert 1 <= found.threads <= shape.threads
    assert found.threads == 1 or shape.operations / found.threads >= 48e6


def test_torch_computes_large_products_but_where_tiles_are_known_to_be_faster() -> None:
    assert products_for(XEON).choose(LARGE_SHAPE) == Choice("torch", 2)
    assert products_for(ZEN5).choose(LARGE_SHAPE) == Choice("tiles", 2)
    gradient = ProductShape(2560, 32, 2560, "NT", "float32", 1)
    assert products_for(ZEN5).choose(gradient) == Choice("numpy", 1)
    assert products_for(ZEN5).choose(dataclasses.replace(gradient, m=200)) == Choice("tiles", 1)
    of_input = ProductShape(2560, 2560, 32, "TN", "float32", 1)
    assert products_for(ZEN5).choose(of_input) == Choice("tiles", 1)
    assert products_for(ZEN4).choose(of_input) == Choice("flat tiles", 1)
    for other in ({"n": 16}, {"n": 65}, {"m": 1000}, {"layout": "NN"}, {"precision": "float64"}):
        assert products_for(ZEN4).choose(dataclasses.replace(of_input, **other)).library == "tiles", other
    without = dataclasses.replace(ZEN5, features=("avx2", "fma"))
    zen3 = dataclasses.replace(ZEN4, features=("avx2", "fma"))
    assert products_for(ZEN4).choose(LARGE_SHAPE) == Choice("tiles", 2)
    for unknown in (without, zen3, Processor("")):
        assert products_for(unknown).choose(LARGE_SHAPE) == Choice("torch", 2)


def test_what_a_calibration_measured_comes_before_the_rule_and_for_its_shape_alone() -> None:
    found = Products(measured=((LARGE_SHAPE, Choice("numpy", 1)),), source="a machine, 2026-11-22")
    assert found.choose(LARGE_SHAPE) == Choice("numpy", 1)
    for other in (dataclasses.replace(LARGE_SHAPE, threads=1), dataclasses.replace(LARGE_SHAPE, layout="TN")):
        assert found.choose(other) == Choice("torch", other.threads)


PROCESSOR = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 26
model		: 2
model name	: AMD EPYC
stepping	: 1
flags		: fma avx2 avx512f

processor	: 1
vendor_id	: SomebodyElse
"""


def test_a_processor_is_known_by_what_linux_reports_of_the_first() -> None:
    assert described(PROCESSOR) == ZEN5
    assert described("").vendor == ""
    assert processor().name


def lines(plan: Plan) -> list[str]:
    return [line for line in str(plan).splitlines() if line.startswith("products")]


def test_a_plan_says_how_much_work_each_of_several_threads_has() -> None:
    def said(plan: Plan) -> list[str]:
        return " ".join(str(plan).split()).split("threads: ")[1:]

    plan = partition(large(), Cluster.local(1, threads=2), batch=32)
    assert said(dataclasses.replace(plan, products=products_for(XEON))) == [
        "fixed rule (each has at least: product 48 MFLOP, in bfloat16 64 MFLOP, gradient 48 MFLOP, loop 2 "
        "MFLOP, layer 1 MFLOP, a pass 2.1 million numbers)"
    ]
    own = ThreadShares(product=5e6, numbers=NEVER, source="AMD EPYC, 2026-11-23")
    assert said(plan.multiplying_by(Products(threads=own))) == [
        "calibration of AMD EPYC, 2026-11-23 (each has at least: product 5 MFLOP, in bfloat16 64 MFLOP, "
        "gradient 48 MFLOP, loop 2 MFLOP, layer 1 MFLOP, a pass all)"
    ]
    assert said(partition(large(), Cluster.local(2), batch=32)) == []  # each machine has one


def test_a_plan_says_in_one_line_what_computes_its_products() -> None:
    plan = partition(large(), Cluster.local(2), batch=32)
    general = dataclasses.replace(plan, products=products_for(XEON))
    assert lines(general) == ["products: fixed rule (torch from 2 MFLOP, NumPy below)"]
    known = dataclasses.replace(plan, products=products_for(ZEN5))
    assert lines(known) == [
        "products: fixed rule of AMD's Zen 5 (tiles from 2 MFLOP; NumPy below and for gradients above 16 MiB)"
    ]
    measured = Products(measured=((LARGE_SHAPE, Choice("numpy", 1)),), source="AMD EPYC, 2026-11-22")
    assert lines(plan.multiplying_by(measured)) == [
        "products: 1 from the calibration of AMD EPYC, 2026-11-22; others by the fixed rule"
    ]
    assert lines(partition(large(nodes=20), Cluster.local(2), batch=32)) == []  # all are NumPy's
    assert lines(partition(large(), Cluster.local(1), batch=32, precision="bfloat16")) == [
        "products: torch (bfloat16)"
    ]


def test_the_rule_of_a_plan_is_that_of_the_processor_on_which_it_is_made() -> None:
    assert partition(large(), Cluster.local(1), batch=32).products == products_for(processor())


def test_machines_with_choices_of_their_own_are_distinguished() -> None:
    own = Products("tiles", "c")
    cluster = Cluster((Machine("a"), Machine("b", products=own)), link=Cluster.local(1).memory)
    plan = dataclasses.replace(
        partition(large(), cluster, batch=64, strategy="balanced"), products=Products()
    )
    assert [plan.products_of(m) for m in range(2)] == [Products(), own]
    assert lines(plan) == [
        "products of a: fixed rule (torch from 2 MFLOP, NumPy below)",
        "products of b: fixed rule of c (tiles from 2 MFLOP; NumPy below and for gradients above 16 MiB)",
    ]
    with pytest.raises(ValueError, match="the products are 'torch'; give what a calibration measured"):
        Machine("a", products="torch")  # type: ignore[arg-type]


def test_a_cluster_is_written_and_read_with_its_choices(tmp_path: Path) -> None:
    measured = ((LARGE_SHAPE, Choice("numpy", 1)),)
    shares = ThreadShares(product=5e6, numbers=NEVER, source="AMD EPYC, 2026-11-23")
    found = Products("tiles", "AMD", measured, "AMD EPYC, 2026-11-22", shares, flat=48)
    machines = (*(Machine(f"a{n}", products=found) for n in range(3)), Machine("b"))
    cluster = Cluster(machines, link=Cluster.local(1).memory)
    again = Cluster.read(cluster.write(tmp_path / "cluster.toml"))
    assert [machine.products for machine in again.machines] == [found] * 3 + [None]
    assert {path.name for path in tmp_path.iterdir()} == {"cluster.toml", "cluster.products.json"}
    assert "count = 3" in (tmp_path / "cluster.toml").read_text()


def test_a_file_of_choices_without_threads_is_read_with_the_fixed_rule(tmp_path: Path) -> None:
    """As versions before this one wrote it."""
    path = Cluster((Machine("a", products=Products("tiles")),)).write(tmp_path / "cluster.toml")
    (tmp_path / "cluster.products.json").write_bytes(
        b'{"version": 1, "rule": "tiles", "origin": "", "source": "", "measured": []}'
    )
    assert Cluster.read(path).machines[0].products == Products("tiles")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"broken", "holds no choices of products"),
        (b'{"version": 1}', "holds no choices of products"),
        (b'{"version": 2, "rule": "torch", "origin": "", "source": "", "measured": []}', "in version 2"),
        (b'{"version": 1, "rule": "magic", "origin": "", "source": "", "measured": []}', "holds no choices"),
    ],
)
def test_a_file_that_holds_no_choices_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    cluster = Cluster((Machine("a", products=Products("tiles")),))
    path = cluster.write(tmp_path / "cluster.toml")
    (tmp_path / "cluster.products.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Cluster.read(path)


CHOICES = """
from partita.partitioner import Cluster, partition
from partita.partitioner.cluster.products import ProductShape
from tests.networks import large
products = partition(large(), Cluster.local(1), batch=32).products_of(0)
print([products.choose(ProductShape(m, k, n, layout, precision, threads))
       for m in (1, 100, 3000) for k in (10, 500, 2560) for n in (1, 32, 128) for layout in ("NN", "TN", "NT")
       for precision in ("float32", "float64", "bfloat16") for threads in (1, 2, 5)])
"""


def test_processes_choose_the_same_whatever_the_cache_folder_holds(tmp_path: Path) -> None:
    """An empty folder, one with a calibration's leftovers, and none that can be used."""
    (tmp_path / "one" / "partita").mkdir(parents=True, mode=0o700)
    (tmp_path / "one" / "partita" / "machine.json").write_text('{"version": 3, "machines": {"any": {}}}')
    (tmp_path / "one" / "partita" / "kernels.json").write_text('{"version": 2, "measurements": []}')
    (tmp_path / "file").write_text("no folder")
    found = [
        subprocess.run(
            [sys.executable, "-c", CHOICES],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / cache)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for cache in ("empty", "one", "file")
    ]
    assert len(set(found)) == 1 and "Choice(" in found[0]
