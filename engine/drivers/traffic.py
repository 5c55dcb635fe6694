"""Analytic counters: the messages and bytes that a program of replicas sends, without numbers or hosts.

A driver's program is played for one part, and the formula of its algorithm is taken for each exchange. That
is what is sent where nothing is repeated, beside the reports of exchanges (`Reduced`), without payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Numbers, bytes_sent, messages_sent
from partita.engine.protocol.program_effects import PREDICTIONS
from partita.engine.protocol.program_kinds import ExchangeAction, phase_of
from partita.engine.protocol.program_messages import counts_members
from partita.engine.protocol.replica_messages import View
from partita.engine.protocol.views import JoinedBatches, Member

Products: TypeAlias = Callable[[a.Dots], tuple[tuple[float, ...], ...]]
"""Returns the result of inner products, on which a program may branch."""

_DOT_BYTES: Final = 8


@dataclass(frozen=True)
class Traffic:
    """Messages with numbers that one part sends to other replicas, and the bytes of the numbers.

    Args:
        messages: how many.
        n_bytes: of their payloads.
    """

    messages: int = 0
    n_bytes: int = 0


def traffic(
    driver: Any,
    *,
    examples: int,
    batch: int,
    epochs: int,
    sizes: Sequence[int],
    item_bytes: int = 4,
    replica: int = 0,
    machine: int = 0,
    scores: Sequence[int] = (),
    products: Products | None = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> Traffic:
    """Returns what a part sends to other replicas in a run without failures.

    Args:
        driver: without shards.
        examples: of the data.
        batch: of a replica.
        epochs: of the run.
        sizes: numbers of each machine's parameters.
        item_bytes: of a number.
        replica: of the part.
        machine: of the part.
        scores: numbers that each machine has of a minibatch's scores, where predictions are exchanged.
        products: results of `Dots`; None: ones.
        shapes: of the part's tensors, which decide the size of a compressor's messages.

    Raises:
        TypeError: the program exchanges messages of a compressor, and there are no `shapes`.
    """
    view = View(1, (*range(driver.replicas),), 1, 0, 0, epochs * examples)
    me = Member(replica, machine, view, JoinedBatches(examples, batch))
    found, program, result = Traffic(), driver.replica(me), None
    predictions = driver.taught_minibatches * scores[machine] if scores else 0
    while True:
        try:
            action = next(program) if result is None else program.send(result)
        except StopIteration:
            return found
        result = None
        match action:
            case a.AllReduce(vector=vector) | a.ReduceScatter(vector=vector) | a.AllGather(vector=vector):
                members = (*range(me.replicas),) if action.among is None else action.among
                if me.rank in members:
                    size = predictions if vector == PREDICTIONS else sizes[machine]
                    numbers = Numbers(size, item_bytes)
                    found = _added(found, action, members.index(me.rank), len(members), numbers)
            case a.Dots(pairs=pairs):
                numbers = Numbers(me.replicas * len(sizes) * len(pairs), _DOT_BYTES)
                members = (*range(me.replicas),) if action.among is None else action.among
                rank, parts = members.index(me.rank) * len(sizes) + machine, len(members) * len(sizes)
                found = _added(found, action, rank, parts, numbers)
                ones = ((1.0,) * len(pairs),) * me.replicas
                result = ones if products is None else products(action)
            case a.ExchangeMessages(compress=compress):
                if shapes is None:
                    raise TypeError(
                        f"{action} exchanges messages whose size follows from the shapes of the part's "
                        "tensors; give shapes"
                    )
                items = compress.items(shapes, item_bytes, step=action.step, turn=action.turn)
                numbers = Numbers(items * (me.replicas if counts_members(action) else 1), item_bytes)
                found = _added(found, action, me.rank, me.replicas, numbers)


@dataclass(frozen=True)
class _Steps:
    """A part of a driver with shards, which has so many steps."""

    n: int

    def steps(self) -> Iterable[int]:
        """The steps, from 0 on."""
        return range(self.n)


def shard_traffic(
    driver: Any, *, steps: int, sizes: Sequence[tuple[int, int]], item_bytes: int = 4
) -> Traffic:
    """Returns what a part sends to shards, and what they send it, where no push finds another one under way.

    Args:
        driver: with shards, whose program has `Pull` and `Push` alone among exchanges.
        steps: of the part.
        sizes: for each of the part's links: its fragment, and its numbers, see `Layout.shards_of`.
        item_bytes: of a number.
    """
    fetches, pushes = [0] * len(sizes), [0] * len(sizes)
    held, begun = [False] * len(sizes), False  # whether something has accumulated
    for action in (*driver.replica(_Steps(steps)), a.Push()):
        match action:
            case a.Compute():
                held, begun = [True] * len(sizes), True
            case a.Pull(fragment=of) | a.Push(fragment=of):
                chosen = [n for n, (fragment, _) in enumerate(sizes) if of in (None, fragment)]
                for n in chosen:
                    if isinstance(action, a.Push):
                        pushes[n] += held[n]
                        held[n] = False
                    else:
                        fetches[n] += begun or not fetches[n]
    each = [one + other for one, other in zip(fetches, pushes, strict=True)]
    return Traffic(sum(each), sum(n * size for n, (_, size) in zip(each, sizes, strict=True)) * item_bytes)


def _added(found: Traffic, action: ExchangeAction, rank: int, members: int, numbers: Numbers) -> Traffic:
    if members == 1:
        return found
    labels, phase = [f"host {n}" for n in range(members)], phase_of(action)
    return Traffic(
        found.messages + messages_sent(action.by, rank, labels, numbers, phase=phase),
        found.n_bytes + bytes_sent(action.by, rank, labels, numbers, phase=phase),
    )
