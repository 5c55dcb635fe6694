"""The third driver of the command: `AllReduce` with the settings that a seed draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from partita.engine.drivers.all_reduce import AllReduce
from partita.engine.parameters.compression import OneBit, PowerSGD, TopK
from partita.engine.parameters.optimizers import LARS, SGD
from partita.engine.protocol.exchange import Hierarchical, Ring, Server, Tree
from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program import play_programs


def play_all_reduce(
    seed: int, *, machines: Iterable[type] = (), hostile: bool = False, keep_all: bool = False
) -> Outcome:
    """Plays the schedule of a seed, in which any setting of the driver may come."""
    driver = compressing(draw(Random(-1 - seed)), Random(-8 - seed))
    return play_programs(driver, seed, machines=machines, hostile=hostile, keep_all=keep_all)


def compressing(driver: AllReduce, random: Random) -> AllReduce:
    """A driver that exchanges messages of some compressor, in some seeds, where it can."""
    if random.random() < 0.75 or driver.shard_optimizer or driver.backup_workers:
        return driver
    compress = random.choice((TopK(0.3), TopK(0.1, warm_up=4), OneBit(), PowerSGD(1)))
    return replace(driver, compress=compress, by=driver.by if compress == PowerSGD(1) else Ring())


def draw(random: Random) -> AllReduce:
    """The driver of a seed, whose generator is not that of the hosts: both would begin with one number."""
    replicas = random.choice((1, 2, 2, 3, 4))
    kind = random.choice(("plain", "plain", "sharded", "backup", "elastic", "elastic"))
    by = random.choice((Ring(), Tree(), Hierarchical(), Server()))
    least = random.randint(1, replicas)
    optimizer = random.choice((SGD(0.05), SGD(0.05), LARS(0.05)))
    if kind == "sharded":
        return AllReduce(replicas=replicas, shard_optimizer=True, optimizer=optimizer)
    if kind == "backup" and replicas > 1:
        return AllReduce(replicas=replicas, by=Server(), backup_workers=1, optimizer=optimizer)
    if kind == "elastic":
        return AllReduce(elastic=(least, replicas), by=by, optimizer=optimizer)
    return AllReduce(replicas=replicas, by=by, optimizer=optimizer)
