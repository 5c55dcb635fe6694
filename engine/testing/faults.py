"""Faults injected into a schedule: crashes, frozen or mute processes and split networks.

A fault takes its victim from the processes that live at that moment, in the order of their launch. A
coordinator crashes only where another one can go on with its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.names import COORDINATOR, backup_index, part_indices, shard_index
from partita.engine.testing.world import Process, World

KINDS: Final = (
    "crash",
    "crash shard",
    "crash shard and its successor",
    "crash part and a shard",
    "mute shard",
    "freeze",
    "freeze shard",
    "split",
    "one way",
    "pause the coordinator",
)
CRASH_THE_COORDINATOR: Final = "crash the coordinator"


def inject(world: World, kinds: Sequence[str] = KINDS) -> None:
    """Injects one fault of these kinds, drawn from the world's generator."""
    random = world.random
    kind = random.choice(kinds)
    victims = _victims(world, kind)
    if not victims:
        return
    victim = random.choice(victims)
    if kind.startswith("crash"):
        world.note(victim, "crashes", None)
        victim.crash()
        if kind.endswith("successor"):
            world.at(world.now + random.uniform(1.0, 4.0), None, _crash_newest, (world, victim.name))
        elif kind.endswith("a shard"):
            shards = [process.name for process in world.processes if shard_index(process.name) is not None]
            wait_s = random.choice((0.0, random.uniform(0.0, 4.0)))
            world.at(world.now + wait_s, None, _crash_newest, (world, random.choice(shards)))
    elif kind.startswith("mute"):
        world.note(victim, "falls mute", None)
        victim.mute = True
    elif kind.startswith("freeze"):
        freeze(victim, random.choice((random.uniform(0.3, 3.0), random.uniform(4.5, 8.0))))
    elif kind == "pause the coordinator":
        freeze(victim, random.uniform(0.5, 6.0))
    else:
        _split(world, both_ways=kind == "split")


def _victims(world: World, kind: str) -> list[Process]:
    if kind.endswith("the coordinator"):
        return world.living(COORDINATOR)
    hosts = [process for process in world.processes if process.alive and process.name != COORDINATOR]
    if "part" in kind:
        if not any(shard_index(process.name) is not None for process in world.processes):
            return []
        return [process for process in hosts if shard_index(process.name) is None]
    if "shard" in kind:
        return [process for process in hosts if shard_index(process.name) is not None]
    return hosts


def computer_of(name: str, computers: int) -> int:
    """The computer that a process runs on; the coordinator and the run's folder are on the first one."""
    shard, backup, part = shard_index(name), backup_index(name), part_indices(name)
    number = 0 if shard is None else shard + 1
    number = number if backup is None else backup + 2  # not where its shard is
    return (number if part is None else sum(part)) % computers


def lose_power(world: World, computers: int, *, first: bool) -> int:
    """Ends all hosts of a computer at once, and returns which it was.

    `first`: whether that may be, as the coordinator then ends, too.
    """
    computer = world.beside.randrange(0 if first else 1, max(computers, 2))
    for process in list(world.processes):
        if process.alive and computer_of(process.name, computers) == computer and process.name != COORDINATOR:
            world.note(process, "loses power", None)
            process.exit()
    return computer


def _crash_newest(target: tuple[World, str]) -> None:
    world, name = target
    alive = world.living(name)
    if alive:
        world.note(alive[-1], "crashes", "again")
        alive[-1].crash()


def freeze(victim: Process, seconds: float) -> None:
    """Stops a process for some seconds."""
    world = victim.world
    world.note(victim, "freezes for", f"{seconds:.2f} s")
    victim.freeze()
    world.at(world.now + seconds, None, victim.thaw, None)


def _split(world: World, *, both_ways: bool) -> None:
    """Cuts some hosts off from the others; only a part of those links in one schedule of two."""
    random = world.random
    names = list(dict.fromkeys(process.name for process in world.processes))
    island = [name for name in names if random.random() < 0.4] or [random.choice(names)]
    share = random.choice((1.0, 0.6))
    until = world.now + random.uniform(0.5, 7.0)
    for inside in island:
        for outside in names:
            if outside not in island and random.random() < share:
                world.network.cut(inside, outside, until=until)
                if both_ways:
                    world.network.cut(outside, inside, until=until)


def heal(world: World) -> None:
    """Ends the chaos: the network is fair, and every frozen process goes on."""
    world.network.heal()
    for process in world.processes:
        process.thaw()
