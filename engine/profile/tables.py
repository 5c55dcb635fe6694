"""Measurements of a machine as tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from partita.engine.profile.calibration import Calibration
from partita.engine.profile.products import ProductMeasurement
from partita.engine.profile.store import Transport
from partita.engine.profile.tiles import TileMeasurement
from partita.layers.tables import columns
from partita.partitioner.cluster.kernel_times import Timed
from partita.partitioner.cluster.products import LIBRARIES, LIBRARY_NAMES, Choice
from partita.partitioner.cluster.work import REFERENCE_FLOPS_PER_S, family_of
from partita.partitioner.text import BYTES, BYTES_PER_S, FLOPS_PER_S, SECONDS, quantity

_NAMES: dict[Transport, str] = {"memory": "shared memory", "tcp": "TCP, loopback"}
_OPERATIONS: Final = {"NN": "forward", "TN": "input gradient", "NT": "gradient"}
"""Operations of a dense layer, by the memory layout of the factors of its product."""


def calibration_text(found: Calibration, *, width: int | None = None) -> str:
    """Returns tables of kernels, one row a family, of the runtime and of links, at most `width` wide."""
    blocks = [
        ["kernels, from the smallest to the largest measured:", *columns(_kernels(found), width=width)],
        ["what the runtime adds:", *columns(_runtime(found), width=width)],
        ["between hosts of this machine:", *columns(_links(found), width=width)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _kernels(found: Calibration) -> list[list[str]]:
    rows = [["kernel", "sizes", "alone", "side by side", "rate"]]
    alone, beside = (found.record.times(contention).table for contention in ("alone", "beside"))
    families: dict[str, list[str]] = {}
    for signature in {**alone, **beside}:
        families.setdefault(family_of(signature), []).append(signature)
    for family in sorted(families):
        sizes = sorted(families[family], key=lambda s: (alone.get(s) or beside[s]).reference_s)
        some = {
            name: [times[s] for s in sizes if s in times] for name, times in (("a", alone), ("b", beside))
        }
        rows.append([family, str(len(sizes)), _span(some["a"]), _span(some["b"]), _rate(some["a"])])
    return rows


def _span(timed: list[Timed]) -> str:
    ends = dict.fromkeys(_seconds(one.seconds) for one in timed[:: max(len(timed) - 1, 1)])
    return " to ".join(ends)


def _rate(timed: list[Timed]) -> str:
    """The rate of the largest kernel, as if all of its time on the reference machine were products."""
    if not timed or not timed[-1].seconds:
        return ""
    largest = timed[-1]
    return quantity(REFERENCE_FLOPS_PER_S * largest.reference_s / largest.seconds, FLOPS_PER_S, digits=3)


def _runtime(found: Calibration) -> list[list[str]]:
    runtime = found.record.runtime
    assert runtime is not None, "a calibration has measured the runtime"
    return [
        ["to", "time"],
        ["an instruction", _seconds(runtime.instruction_s)],
        ["a step", _seconds(runtime.step_s)],
        ["an instruction, out of cold caches, besides", _seconds(runtime.cold_s)],
    ]


def _links(found: Calibration) -> list[list[str]]:
    """A row for every second size that was measured of a link, and the largest."""
    rows = [["over", "message", "until it is there", "sender busy", "receiver busy", "rate", "both ways"]]
    for transport, measured in found.record.links.items():
        link, first = measured.link, True
        for row in reversed(link.table[::-2]):
            total = sum(row.times) + link.latency_s
            rows.append(
                [
                    _NAMES[transport] if first else "",
                    quantity(row.n_bytes, BYTES, digits=3),
                    *map(_seconds, (total, row.send_s, row.receive_s)),
                    quantity(row.n_bytes / total, BYTES_PER_S, digits=3) if total else "",
                    ("at once" if link.both_ways else "shared") if row is link.table[-1] else "",
                ]
            )
            first = False
    return rows


def _seconds(seconds: float) -> str:
    return quantity(seconds, SECONDS, digits=3)


def products_text(measurements: Sequence[ProductMeasurement], *, width: int | None = None) -> str:
    """Returns a row for each product, in the order of the measurements; on all threads, and on one."""
    several = any(one.shape.threads > 1 for one in measurements)
    heads = [f"{LIBRARY_NAMES[name]} ms" for name in LIBRARIES]
    on_one = [f"{head}, 1 thread" for head in heads] if several else []
    rows = [["operation", "shape", "precision", "threads", *heads, *on_one, "chosen"]]
    for one in measurements:
        of, seconds = one.shape, dict(one.seconds)
        counts = (of.threads, 1) if several else (of.threads,)
        rows.append(
            [
                _OPERATIONS.get(of.layout, of.layout),
                f"{of.m}x{of.k}x{of.n}",
                of.precision,
                str(of.threads),
                *(_milliseconds(seconds.get(Choice(name, n))) for n in counts for name in LIBRARIES),
                f"{LIBRARY_NAMES[one.choice.library]} x{one.choice.threads}",
            ]
        )
    return "\n".join(["products of matrices:", *columns(rows, left=(0, 1, 2), keys=2, width=width)])


def tiles_text(measurements: Sequence[TileMeasurement], *, width: int | None = None) -> str:
    """Returns a row for each operation of a layer on patches, in the order of the measurements."""
    forms = list(dict.fromkeys(form for one in measurements for form, _ in one.seconds))
    rows = [["operation", "layer", *(f"{form}, ms" for form in forms), "chosen"]]
    for one in measurements:
        seconds = dict(one.seconds)
        taken = (_milliseconds(seconds.get(form)) for form in forms)
        rows.append([one.loop.operation, str(one.loop), *taken, str(one.form)])
    return "\n".join(["tiles of layers on patches:", *columns(rows, left=(0, 1), keys=2, width=width)])


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"
