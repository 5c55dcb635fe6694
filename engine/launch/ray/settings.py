"""`Ray`: a Ray cluster as the place of a run's hosts, as an argument of `train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, get_args

from partita.engine.launch.ray.bundles import Bundle, Strategy
from partita.layers.checks import check_choice, check_fields, check_seconds, check_whole

WAIT_S: Final = 60.0
"""Default of the seconds that a run waits for nodes that others use."""


@dataclass(frozen=True)
class Ray:
    """A Ray cluster, in which hosts run at one worker in each bundle of a placement group.

    In a task or an actor that is in a placement group, that group is used; otherwise one is made for each
    run and removed after it. Where the process has not called `ray.init`, it is connected as Ray does: to
    `address`, to RAY_ADDRESS, or to the cluster on this machine; without any, Ray is started on this machine
    and ends with the run.

    Args:
        strategy: how Ray distributes bundles over nodes: "PACK" (on few nodes), "SPREAD" (on many),
            "STRICT_PACK" (on one node), "STRICT_SPREAD" (each on a node of its own).
        bundles: amounts that each worker reserves, in Ray's words and units, `{"CPU": 2, "memory": 1 << 30}`.
            If not given, one for the parts of each replica that the plan has on one host.
        spare: number of workers besides, each like the first, that take the hosts of one that is gone.
        address: of the cluster, as `ray.init` takes it.
        grows: whether the cluster adds nodes by itself: then the run also waits for what the nodes that there
            are do not have.
        wait_s: seconds to wait for what others use.

    Raises:
        ValueError: an argument is out of range.
    """

    _: KW_ONLY
    strategy: Strategy = "PACK"
    bundles: Sequence[Bundle] | None = None
    spare: int = 0
    address: str | None = None
    grows: bool = False
    wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        check_choice(self.strategy, "Ray's strategy is", get_args(Strategy))
        check_fields(self, check_whole, "spare", of="Ray's ", least=0)
        check_fields(self, check_seconds, "wait_s", of="Ray's ")
        if self.bundles is not None:
            object.__setattr__(self, "bundles", tuple(_checked(one) for one in self.bundles))
            if not self.bundles:
                raise ValueError("Ray's bundles are empty; give one for each worker, or leave them out")


def _checked(bundle: object) -> Bundle:
    if isinstance(bundle, Mapping) and any(bundle.values()):
        amounts = {str(name): amount for name, amount in bundle.items() if amount}
        if all(isinstance(amount, int | float) and 0 < amount < float("inf") for amount in amounts.values()):
            return {name: float(amount) for name, amount in amounts.items()}
    raise ValueError(
        f"{bundle!r} is no bundle; give amounts in Ray's words, such as {{'CPU': 2, 'memory': 1 << 30}}"
    )
