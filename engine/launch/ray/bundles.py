"""Bundles: what the hosts of a run need in Ray's words, and whether the nodes of a cluster have them. Pure.

A bundle is a set of amounts that one node has to have: `{"CPU": 2, "memory": 1 << 30}`. Amounts are in the
units of Ray: cores, devices, bytes, and whatever the custom resources of a cluster count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import ceil
from typing import Final, Literal, TypeAlias

from partita.engine.protocol.pool.messages import Need
from partita.engine.protocol.pool.resources import Resources

Bundle: TypeAlias = Mapping[str, float]
"""Amounts by the name of a resource."""

Strategy: TypeAlias = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
"""Ray's ways to distribute bundles over nodes."""

_FIELDS: Final = {"CPU": "cpu", "GPU": "gpu", "memory": "memory"}
_TRIES: Final = 5_000  # of the search for a placement, after which there may be one
_ROUNDING: Final = 1e-6  # Ray counts in steps of 1e-4
_MOST_NAMED: Final = 8


def bundles_of(needs: Sequence[Need]) -> tuple[dict[str, float], ...]:
    """Returns a bundle for each group of parts that the plan has on one host, in order.

    Hosts that are spread (shards) get their share of the bundles in turn.
    """
    groups: dict[str, Resources] = {}
    for need in needs:
        if not need.spread:
            name = need.group or need.host
            groups[name] = groups.get(name, Resources()) + need.resources
    totals = list(groups.values()) or [Resources()]
    for number, need in zip(cycle(range(len(totals))), (n for n in needs if n.spread), strict=False):
        totals[number] = totals[number] + need.resources
    return tuple(
        {name: float(amount) for name, field in _FIELDS.items() if (amount := getattr(total, field))}
        or {"CPU": 1.0}
        for total in totals
    )


def offered(bundle: Bundle, machine: Resources) -> Resources:
    """Returns what the worker of a bundle offers to the hosts of a run.

    Memory is reserved by Ray and not counted again: a shard whose node is gone may begin again at once in a
    bundle of other hosts. A fraction of a device or core is one that others use too.
    """
    return Resources(
        cpu=ceil(bundle.get("CPU", 0.0)), gpu=ceil(bundle.get("GPU", 0.0)), memory=machine.memory
    )


def can_hold(nodes: Sequence[Bundle], bundles: Sequence[Bundle], strategy: Strategy) -> bool:
    """Returns whether nodes with these amounts could hold all bundles; True also where that is hard to find
    out.
    """
    largest_first = sorted(bundles, key=lambda one: sorted(one.items()), reverse=True)
    if strategy == "STRICT_PACK":
        total = {name: sum(one.get(name, 0.0) for one in bundles) for one in bundles for name in one}
        return any(_covers(node, total) for node in nodes)
    return _Search(nodes, apart=strategy == "STRICT_SPREAD").holds(largest_first)


class _Search:
    """Gives bundles to nodes, one after another, and takes the last back where the next has no place."""

    def __init__(self, nodes: Sequence[Bundle], *, apart: bool) -> None:
        self._left: list[dict[str, float] | None] = [dict(node) for node in nodes]  # None: takes no more
        self._apart = apart
        self._tries = 0

    def holds(self, bundles: Sequence[Bundle]) -> bool:
        """Returns whether the nodes hold these bundles beside those that they have been given."""
        self._tries += 1
        if not bundles or self._tries > _TRIES:
            return True
        tried: list[dict[str, float]] = []
        for number, left in enumerate(self._left):
            if left is None or left in tried or not _covers(left, bundles[0]):
                continue  # nodes with the same amounts left are the same
            tried.append(left)
            after = {name: amount - bundles[0].get(name, 0.0) for name, amount in left.items()}
            self._left[number] = None if self._apart else after
            if self.holds(bundles[1:]):
                return True
            self._left[number] = left
        return False


def explained(nodes: Mapping[str, Bundle], bundles: Sequence[Bundle]) -> str:
    """Words what bundles need, and what each node has of that."""
    counted = Counter(_worded(bundle) for bundle in bundles)
    needs = ", ".join(f"{number} x ({text})" for text, number in counted.items())
    names = sorted({name for bundle in bundles for name in bundle})
    has = [
        f"{node} has {_worded({name: amounts.get(name, 0.0) for name in names})}"
        for node, amounts in sorted(nodes.items())
    ]
    more = f"; and {len(has) - _MOST_NAMED} more" if len(has) > _MOST_NAMED else ""
    return f"needs {needs}; {'; '.join(has[:_MOST_NAMED]) or 'there is no node'}{more}"


def _covers(node: Bundle, bundle: Bundle) -> bool:
    return all(node.get(name, 0.0) + _ROUNDING >= amount for name, amount in bundle.items() if amount)


def _worded(bundle: Bundle) -> str:
    return ", ".join(f"{name} {_amount(name, value)}" for name, value in sorted(bundle.items())) or "nothing"


def _amount(name: str, value: float) -> str:
    if name != "memory":
        return f"{value:g}"
    text = str(Resources(memory=int(value)))
    return text.removeprefix("memory ") if value >= 1.0 else "0"
