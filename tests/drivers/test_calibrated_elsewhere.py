"""A run by a plan that was calibrated on another processor begins with a line that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.engine import Downpour, train
from partita.engine.run.calibrated import other_processor
from partita.partitioner import Cluster, Plan, partition
from partita.partitioner.cluster.processor import processor
from partita.partitioner.cluster.threads import ThreadShares
from tests.drivers.conftest import on_threads  # noqa: F401 - a fixture
from tests.faults import toy


def plan_from(source: str, *, of_threads: bool = False) -> Plan:
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    products = plan.products_of(0)
    if of_threads:
        return plan.multiplying_by(replace(products, threads=ThreadShares(source=source)))
    return plan.multiplying_by(replace(products, source=source))


def test_the_line_names_both_processors(
    on_threads: object,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    for show, count in (("lines", 1), ("nothing", 0)):
        plan = plan_from("Other CPU, 8 cores, 2026-11-01")
        train(plan, toy.data(16), driver=Downpour(), epochs=1, show=show)  # type: ignore[arg-type]
        found = capsys.readouterr().out
        line = f"calibrated on Other CPU, 8 cores, 2026-11-01, and this machine is {processor().name}: "
        assert found.count(line) == count, found


def test_nothing_is_said_of_the_same_processor_or_without_a_calibration() -> None:
    assert not other_processor(partition(toy.network(), Cluster.local(machines=2), batch=8))
    assert not other_processor(plan_from(f"{processor().name}, 2026-11-01"))
    assert not other_processor(plan_from(f"{processor().name}, 2026-11-01", of_threads=True))
    assert "Other, 2026-11-01" in other_processor(plan_from("Other, 2026-11-01", of_threads=True))
