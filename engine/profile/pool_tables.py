"""Measurements of a pool as tables of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from partita.engine.profile.pool_calibration import PoolCalibration
from partita.layers.tables import columns
from partita.layers.text import counted
from partita.partitioner.cluster.cluster import Cluster, Link
from partita.partitioner.text import BYTES, BYTES_PER_S, SECONDS, quantity

_SHOWN_BYTES: Final = (1 << 10, 1 << 16, 1 << 20)


def pool_text(found: PoolCalibration, cluster: Cluster, *, width: int | None = None) -> str:
    """Returns tables of the machines and of the links of a pool, at most `width` wide."""
    left = found.pairs.left_out
    not_measured = (
        f"\n{counted(left, 'link')} between other machines not measured: taken to be like the one in the "
        "middle of those that were; --most-pairs measures more"
        if left
        else ""
    )
    blocks = [
        ["machines:", *columns(_machines(found, cluster), width=width)],
        ["links:", *columns(_links(cluster), width=width)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + not_measured


def _machines(found: PoolCalibration, cluster: Cluster) -> list[list[str]]:
    rows = [["worker", "cores", "threads", "memory", "an instruction", "a step", "kernels", "measured at"]]
    for machine in cluster.machines:
        group = next(group for group in found.groups if found.hosts[machine.name] in group)
        known = 0 if machine.times is None else len(machine.times.table)
        rows.append(
            [
                machine.name,
                str(machine.cores or machine.threads),
                str(machine.threads),
                "" if machine.memory_bytes is None else quantity(machine.memory_bytes, BYTES, digits=3),
                quantity(machine.instruction_s, SECONDS, digits=3),
                quantity(machine.step_s, SECONDS, digits=3),
                str(known),
                group[0],
            ]
        )
    return rows


def _links(cluster: Cluster) -> list[list[str]]:
    heads = [f"{quantity(n, BYTES, digits=3)} in" for n in _SHOWN_BYTES]
    rows = [["between", *heads, "rate", "both ways"]]
    for name, link in _named(cluster):
        totals = (sum(link.times(n)) + link.latency_s for n in _SHOWN_BYTES)
        rows.append(
            [
                name,
                *(quantity(total, SECONDS, digits=3) for total in totals),
                quantity(link.bytes_per_s, BYTES_PER_S, digits=3),
                "at once" if link.both_ways else "shared",
            ]
        )
    return rows


def _named(cluster: Cluster) -> Iterator[tuple[str, Link]]:
    """Yields the links of a cluster under the names of their ends."""
    for found in cluster.between:
        yield f"{found.one} {'to' if found.one_way else 'and'} {found.other}", found.link
    if not cluster.between and cluster.link is not None and len(set(cluster.hosts)) > 1:
        yield "machines", cluster.link
    if len(set(cluster.hosts)) < len(cluster):
        yield "workers of one machine", cluster.memory
