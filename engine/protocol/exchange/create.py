"""The machine of an exchange, by its algorithm."""

from __future__ import annotations

from partita.engine.protocol.exchange.algorithm import Algorithm, Phase
from partita.engine.protocol.exchange.backup import BackupExchange
from partita.engine.protocol.exchange.exchange import Exchange
from partita.engine.protocol.exchange.group import Group, Numbers
from partita.engine.protocol.exchange.server import Server


def create_exchange(
    algorithm: Algorithm,
    group: Group,
    numbers: Numbers,
    *,
    first: int = 0,
    mean: bool = False,
    phase: Phase = "all-reduce",
    retry_s: float = 1.0,
) -> Exchange:
    """Returns an exchange that is not under way.

    Args:
        algorithm: `Ring()`, `Tree()`, `Hierarchical()`, `Server()` or `Fastest(...)`.
        group: the members; the same on all hosts but for `me`.
        numbers: what is exchanged; the same on all hosts.
        first: number of the first use in this view; the same on all hosts.
        mean: divide the sum by the number of contributions, once, at the root of each piece.
        phase: what a use does.
        retry_s: seconds without a piece after which missing ones are asked for.

    Raises:
        ValueError: backup workers in a reduce-scatter or an all-gather.
    """
    algorithm = algorithm.among(group.machines)
    if algorithm.backup_workers and phase != "all-reduce":
        raise ValueError(
            f"{algorithm} in a {phase}: backup workers need a whole all-reduce; set backup_workers=0"
        )
    if isinstance(algorithm, Server) and algorithm.backup_workers and len(group.members) > 1:
        return BackupExchange(algorithm, group, numbers, first=first, mean=mean, retry_s=retry_s)
    return Exchange(algorithm, group, numbers, first=first, mean=mean, phase=phase, retry_s=retry_s)
