"""Chooses the products and threads that a calibration measures, and the kernels that are then timed again."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable

from msgspec import structs

from partita.engine.profile.bench import Bench
from partita.engine.profile.kernel_benchmark import BenchmarkPart
from partita.engine.profile.products import shapes_of
from partita.engine.profile.sizes import works
from partita.engine.profile.store import Record
from partita.partitioner.cluster.work import family_of


def with_products(
    record: Record, parts: Iterable[BenchmarkPart], bench: Bench, progress: Callable[[str, int, int], object]
) -> tuple[Record, str | None]:
    """Adds a choice for every large product of some parts to a record, if the machine is quiet.

    Kernels whose products have a choice now, and had none when they were timed, are removed from the record.

    Args:
        record: measurements so far.
        parts: the parts, with the kinds of their steps.
        bench: measures the products.
        progress: called with what is being measured, how many are done, and how many there are.

    Returns:
        The record; why some products were not measured, or None.
    """
    known = {one.shape for one in record.products}
    distinct = {(id(part.plan), part.machine): part for part in parts}
    shapes = {key: shapes_of(part) - known for key, part in distinct.items()}
    wanted = sorted(frozenset().union(*shapes.values()), key=lambda shape: (shape.operations, str(shape)))
    if not wanted:
        return record, None
    if (refused := bench.busy()) is not None:
        return record, refused
    rule, found = record.choices(), []
    for n, shape in enumerate(wanted):
        progress("products of matrices", n, len(wanted))
        if (measurement := bench.multiply(shape, rule.by_rule(shape))) is not None:
            found.append(measurement)
    new = {one.shape for one in found}
    stale = [works(part).values() for key, part in distinct.items() if shapes[key] & new]
    if found:
        record = structs.replace(
            record.without_kernels({work.signature for some in stale for work in some}),
            products=(*record.products, *found),
            measured_on=datetime.date.today().isoformat(),
        )
    return record, _disturbed(len(wanted) - len(found), len(wanted))


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
        f"{n} of {of} products of matrices took now more, now less: somebody else uses this machine; "
        "the fixed rule holds for these; calibrate again when it is quiet"
    )
