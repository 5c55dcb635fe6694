"""Chooses the products and threads that a calibration measures, and the kernels that are then timed again."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import structs

from partita.engine.profile.asked import asked_of
from partita.engine.profile.bench import Bench
from partita.engine.profile.kernel_benchmark import BenchmarkPart
from partita.engine.profile.sizes import works
from partita.engine.profile.store import Record
from partita.partitioner.cluster.products import ProductShape
from partita.partitioner.cluster.tile_forms import TiledLoop
from partita.partitioner.cluster.work import family_of

W = TypeVar("W", ProductShape, TiledLoop)
M = TypeVar("M")


def with_products(
    record: Record, parts: Iterable[BenchmarkPart], bench: Bench, progress: Callable[[str, int, int], object]
) -> tuple[Record, str | None]:
    """Adds a choice for every large product and tiled loop of some parts, if the machine is quiet.

    Kernels that are computed otherwise now than when they were timed are removed from the record.

    Args:
        record: measurements so far.
        parts: the parts, with the kinds of their steps.
        bench: measures the products.
        progress: called with what is being measured, how many are done, and how many there are.

    Returns:
        The record; why some products were not measured, or None.
    """
    known = {one.shape for one in record.products}, {one.loop for one in record.tiles}
    distinct = {(id(part.plan), part.machine): part for part in parts}
    asked = {key: asked_of(part) for key, part in distinct.items()}
    shapes = _wanted((one.products for one in asked.values()), known[0])
    loops = _wanted((one.loops for one in asked.values()), known[1])
    if not shapes and not loops:
        return record, None
    if (refused := bench.busy()) is not None:
        return record, refused
    rule = record.choices()
    products = _measured(
        "products of matrices", shapes, lambda shape: bench.multiply(shape, rule.by_rule(shape)), progress
    )
    tiles = _measured("tiles of layers on patches", loops, bench.tiles, progress)
    changed = {one.shape for one in products}, {one.loop for one in tiles if one.is_new}
    stale = [
        works(part).values()
        for key, part in distinct.items()
        if asked[key].products & changed[0] or asked[key].loops & changed[1]
    ]
    if products or tiles:
        record = structs.replace(
            record.without_kernels({work.signature for some in stale for work in some}),
            products=(*record.products, *products),
            tiles=(*record.tiles, *tiles),
            measured_on=datetime.date.today().isoformat(),
        )
    n = len(shapes) + len(loops)
    return record, _disturbed(n - len(products) - len(tiles), n)


def _wanted(asked: Iterable[frozenset[W]], known: set[W]) -> list[W]:
    """Returns what was asked for and is not known, from the smallest to the largest."""
    return sorted(frozenset().union(*asked) - known, key=lambda one: (one.operations, str(one)))


def _measured(
    what: str, wanted: list[W], measure: Callable[[W], M | None], progress: Callable[[str, int, int], object]
) -> list[M]:
    """Measures one after another; leaves out what could not be."""
    found = []
    for n, one in enumerate(wanted):
        progress(what, n, len(wanted))
        if (measurement := measure(one)) is not None:
            found.append(measurement)
    return found


def with_shares(
    record: Record, threads: int, bench: Bench, progress: Callable[[str, int, int], object]
) -> tuple[Record, str | None]:
    """Adds the least work of each of several threads to a record, if unknown and the machine is quiet.

    All kernels on so many threads are removed from the record, because they are timed with these shares.

    Returns:
        The record; why nothing was measured, or None.
    """
    if threads == 1 or threads in record.threads:
        return record, None
    if (refused := bench.busy()) is not None:
        return record, refused
    progress("what threads share", 0, 1)
    dated = structs.replace(record, measured_on=datetime.date.today().isoformat())
    found = bench.shares(record.choices(), threads, dated.source)
    if found is None:
        return record, _disturbed(1, 1)
    signatures = {signature for table in record.kernels.values() for signature in table}
    stale = {signature for signature in signatures if family_of(signature).endswith(f" x{threads}")}
    return structs.replace(dated.without_kernels(stale), threads={**record.threads, threads: found}), None


def _disturbed(n: int, of: int) -> str | None:
    if not n:
        return None
    return (
        f"{n} of {of} products and tiles took now more, now less: somebody else uses this machine; "
        "the fixed rule holds for these; calibrate again when it is quiet"
    )
