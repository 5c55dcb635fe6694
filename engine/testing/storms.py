"""The settings that a seed draws for each driver, so that the command plays it as its users may set it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from partita.engine.drivers.admm import ADMM
from partita.engine.drivers.codistillation import Codistillation
from partita.engine.drivers.decoupled_diloco import DecoupledDiLoCo
from partita.engine.drivers.diloco import DiLoCo
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.dynamic_averaging import DynamicAveraging
from partita.engine.drivers.easgd import EASGD
from partita.engine.drivers.fed_avg import FedAvg
from partita.engine.drivers.local_sgd import LocalSGD, ParameterAveraging
from partita.engine.parameters.compression import Compressor, Int8, OneBit, TopK
from partita.engine.protocol.exchange import Algorithm, Hierarchical, Ring, Tree
from partita.engine.testing.downpour import play_downpour
from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program import play_programs


def play_drawn(
    kind: str,
    seed: int,
    *,
    machines: Iterable[type] = (),
    hostile: bool = False,
    keep_all: bool = False,
) -> Outcome:
    """Plays the schedule of a seed with the settings that it draws for a driver of `DRAWS`."""
    driver, agreed = DRAWS[kind](Random(-11 - seed))
    if driver.shards:
        return play_downpour(driver, seed, machines=machines, hostile=hostile, keep_all=keep_all)
    return play_programs(
        driver, seed, machines=machines, hostile=hostile, keep_all=keep_all, agreed=() if hostile else agreed
    )


Drawn = tuple[Driver, tuple[str, ...]]
"""A driver, and the vectors on which all replicas agree after a round."""


def _replicas(random: Random) -> int:
    return random.choice((1, 2, 2, 3, 4))


def _by(random: Random) -> Algorithm:
    return random.choice((Ring(), Ring(), Tree(), Hierarchical()))


def _every(random: Random) -> int:
    return random.choice((1, 2, 2, 3, 5))


def _elastic(random: Random, replicas: int) -> tuple[int, int] | None:
    return (random.randint(1, replicas), replicas) if random.random() < 0.3 else None


def _exchanged(random: Random) -> tuple[Algorithm, Compressor | None]:
    """An algorithm, or messages of a compressor, which only a ring collects."""
    compress = random.choice((None, None, None, TopK(0.3), OneBit(), Int8()))
    return _by(random) if compress is None else Ring(), compress


def _local(random: Random) -> Drawn:
    replicas = _replicas(random)
    (by, compress), elastic = _exchanged(random), _elastic(random, replicas)
    driver = LocalSGD(replicas=replicas, every=_every(random), by=by, elastic=elastic, compress=compress)
    return driver, ("parameters",)


def _averaging(random: Random) -> Drawn:
    replicas = _replicas(random)
    every = random.choice((None, None, 2, 5))
    driver = ParameterAveraging(
        replicas=replicas, every=every, by=_by(random), elastic=_elastic(random, replicas)
    )
    return driver, ("parameters",)


def _diloco(random: Random) -> Drawn:
    replicas, (by, compress) = _replicas(random), _exchanged(random)
    driver = DiLoCo(
        replicas=replicas,
        every=_every(random),
        by=by,
        elastic=_elastic(random, replicas),
        compress=compress,
        nesterov=random.random() < 0.5,
    )
    return driver, ("parameters", "anchor")


def _dynamic(random: Random) -> Drawn:
    replicas = _replicas(random)
    driver = DynamicAveraging(
        replicas=replicas,
        every=_every(random),
        delta=random.choice((0.01, 0.05, 0.5)),
        by=_by(random),
        elastic=_elastic(random, replicas),
    )
    return driver, ("reference",)


def _admm(random: Random) -> Drawn:
    driver = ADMM(
        replicas=_replicas(random),
        every=_every(random),
        rho=random.choice((0.25, 0.5, 1.0)),
        l2=random.choice((0.0, 0.1)),
        by=_by(random),
    )
    return driver, ("parameters", "consensus")


def _codistillation(random: Random) -> Drawn:
    groups, each = random.choice((2, 2, 3)), random.choice((1, 1, 2))
    driver = Codistillation(
        replicas=groups * each,
        groups=groups,
        every=random.choice((1, 2, 3, None)),
        burn_in=random.choice((0, 2, 4)),
        weight=random.choice((0.5, 1.0)),
        by=_by(random),
    )
    return driver, tuple(f"group_{n}" for n in range(groups))


def _fed_avg(random: Random) -> Drawn:
    clients = random.randint(1, 6)
    driver = FedAvg(
        replicas=_replicas(random),
        clients=clients,
        fraction=random.choice((0.4, 0.75, 1.0)),
        local_epochs=random.choice((1, 1, 2)),
        spread=random.choice((0.0, 0.5)),
        server_momentum=random.choice((0.0, 0.5)),
        proximal=random.choice((0.0, 0.25)),
        dropout=random.choice((0.0, 0.3)),
        compress=random.choice((None, None, OneBit(feedback=False))),
    )
    return driver, ()


def _easgd(random: Random) -> Drawn:
    driver = EASGD(
        replicas=_replicas(random),
        shards=random.choice((1, 1, 2, 3)),
        every=_every(random),
    )
    return driver, ()


def _decoupled(random: Random) -> Drawn:
    replicas = _replicas(random)
    driver = DecoupledDiLoCo(
        replicas=replicas,
        shards=random.choice((1, 1, 2, 3)),
        fragments=random.choice((None, 1, 2, 5, 24)),
        every=_every(random),
        quorum=random.randint(1, replicas),
        grace=random.choice((0.0, 0.5, 1.0)),
        patience=random.choice((0.5, 2.0)),
        run_ahead=random.choice((None, None, 1, 3)),
        elastic=_elastic(random, replicas),
    )
    return driver, ()


DRAWS: Final[dict[str, Callable[[Random], Drawn]]] = {
    "local_sgd": _local,
    "parameter_averaging": _averaging,
    "diloco": _diloco,
    "dynamic_averaging": _dynamic,
    "admm": _admm,
    "codistillation": _codistillation,
    "fed_avg": _fed_avg,
    "easgd": _easgd,
    "decoupled_diloco": _decoupled,
}
"""Functions that draw the settings of each driver."""
