"""The placement group of a run: that of the task or actor in which it is, or one of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ray.util import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.placement_group import PlacementGroup

from partita.engine.launch.ray.bundles import Bundle, Strategy, can_hold, explained
from partita.engine.launch.ray.connection import imported, nodes
from partita.engine.launch.ray.settings import Ray
from partita.engine.protocol.failure import RunFailed

REFUSED_S: Final = 3.0
"""Seconds after which what no node has is refused: a node may just be joining."""

_LOOK_S: Final = 0.25


@dataclass(frozen=True)
class Reservation:
    """Bundles that a run may use.

    Args:
        group: the placement group.
        bundles: amounts for each worker.
        indices: bundle of the group for each worker; -1 is any.
    """

    group: PlacementGroup
    bundles: tuple[Bundle, ...]
    indices: tuple[int, ...]


@contextmanager
def reserved(settings: Ray, bundles: Sequence[Bundle], log: Callable[[str], object]) -> Iterator[Reservation]:
    """Reserves a bundle for each worker while the context lasts.

    Raises:
        RunFailed: the cluster does not have what the bundles need, or not in time.
    """
    current = get_current_placement_group()
    if current is not None:
        log("uses the placement group of this task or actor")
        yield _inside(current, bundles, settings)
        return
    group = placement_group([dict(bundle) for bundle in bundles], strategy=settings.strategy)
    try:
        _wait(group, bundles, settings, log)
        yield Reservation(group, tuple(bundles), tuple(range(len(bundles))))
    finally:
        remove_placement_group(group)


def _wait(
    group: PlacementGroup, bundles: Sequence[Bundle], settings: Ray, log: Callable[[str], object]
) -> None:
    began = time.monotonic()
    shown = False
    while not group.wait(_LOOK_S):
        waited_s, has = time.monotonic() - began, nodes()
        strategy: Strategy = settings.strategy
        possible = can_hold(list(has.values()), bundles, strategy) and not _is_infeasible(group)
        text = explained(has, bundles)
        if waited_s >= REFUSED_S and not (possible or settings.grows):
            raise RunFailed(f"Ray cannot place this run by {strategy}: it {text}")
        if waited_s >= settings.wait_s:
            raise RunFailed(
                f"the run has no place in the Ray cluster after {settings.wait_s:g} s of waiting, as others "
                f"use it: it {text}"
            )
        if waited_s >= REFUSED_S and not shown:
            shown = True
            log(f"waits for a place in the Ray cluster: {text}")


def _is_infeasible(group: PlacementGroup) -> bool:
    stats: Any = placement_group_table(group).get("stats", {})
    return bool(stats.get("scheduling_state") == "INFEASIBLE")


def _inside(group: PlacementGroup, bundles: Sequence[Bundle], settings: Ray) -> Reservation:
    """Uses a group that there is: what none of its bundles reserves is not asked for."""
    names = {name for one in group.bundle_specs for name in one}
    wanted = [{name: amount for name, amount in one.items() if name in names} for one in bundles]
    until = time.monotonic() + REFUSED_S
    while not can_hold(list((free := _free(group)).values()), wanted, "PACK"):
        if time.monotonic() >= until:
            raise RunFailed(
                "the placement group of this task or actor cannot hold this run: it "
                f"{explained(free, wanted)}"
            )
        time.sleep(_LOOK_S)
    return Reservation(group, tuple(wanted), (-1,) * len(wanted))


def _free(group: PlacementGroup) -> dict[str, Bundle]:
    """Returns what each bundle of a group has left: Ray counts that under names of its own."""
    left = imported().available_resources()
    return {
        f"bundle {number}": {
            name: left.get(f"{name}_group_{number}_{group.id.hex()}", 0.0) for name in bundle
        }
        for number, bundle in enumerate(group.bundle_specs)
    }
