"""A division of the data among clients, and the order in which each of them goes through its examples.

How many examples each client has follows from settings, the seed and the number of examples: every process
knows it. Which examples these are may depend on their labels: the process that has these sends it to others.
Source: McMahan and others, "Communication-efficient learning of deep networks from decentralized data", 2017,
section 3 (IID, and by label).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.layers.checks import check_fields, check_number, check_whole

Numbers = npt.NDArray[np.int64]

_CUT, _EXAMPLES, _PASS = 3, 4, 5
"""Uses of a seed: each has random numbers of its own."""


@dataclass(frozen=True)
class Clients:
    """A division of the data.

    Args:
        count: the number of clients.
        labels: shards of a client, of the examples sorted by label: 2 gives most clients examples of two
            labels. 0: any examples.
        spread: standard deviation of the logarithm of a client's number of examples; 0: all have equally
            many.

    Raises:
        ValueError: a setting is out of range.
    """

    count: int = 100
    labels: int = 0
    spread: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "count", of="Clients' ")
        check_whole(self.labels, "Clients' labels is", least=0)
        rule = "; give 0, or a number above"
        check_fields(self, check_number, "spread", of="Clients' ", zero=True, rule=rule)

    @property
    def pieces(self) -> int:
        """The number of shards of the data, which is the least number of examples."""
        return self.count * max(self.labels, 1)

    def sizes(self, examples: int, seed: int) -> Numbers:
        """Returns the number of examples of each client, `[client]`, each at least 1."""
        cut = _cut(self, examples, seed)
        return np.bincount(cut.owners, weights=np.diff(cut.places), minlength=self.count).astype(np.int64)

    def divided(self, examples: int, seed: int, labels: npt.NDArray[Any] | None = None) -> Division:
        """Divides the examples.

        Args:
            examples: the number of them.
            seed: of the run.
            labels: of the examples, `[example]`; needed where clients have shards by label.

        Raises:
            ValueError: there are fewer examples than shards.
        """
        cut, order = _cut(self, examples, seed), _random(seed, _EXAMPLES).permutation(examples)
        if self.labels:
            assert labels is not None, "shards by label need labels"
            order = order[np.argsort(labels[order], kind="stable")]
        by_client = np.argsort(cut.owners, kind="stable")
        numbers = np.concatenate([order[cut.places[n] : cut.places[n + 1]] for n in by_client])
        starts = np.concatenate([[0], np.cumsum(self.sizes(examples, seed))])
        return Division(numbers, starts, seed)


@dataclass(frozen=True)
class _Cut:
    """Shards of the data: the client of each, and the places between which they lie, one more."""

    owners: Numbers
    places: Numbers


@lru_cache(maxsize=8)
def _cut(clients: Clients, examples: int, seed: int) -> _Cut:
    """Cuts data into shards. Raises ValueError."""
    n = clients.pieces
    if n > examples:
        raise ValueError(
            f"{clients} needs {n} shards of the data, and it has {examples} examples; use fewer clients, or "
            "fewer labels of each"
        )
    random = _random(seed, _CUT)
    weights = np.exp(clients.spread * random.standard_normal(clients.count))
    owners = random.permutation(np.repeat(np.arange(clients.count), n // clients.count))
    shares = np.cumsum(weights[owners])
    ends = np.arange(1, n + 1) + np.floor(shares / shares[-1] * (examples - n)).astype(np.int64)
    return _Cut(owners, np.concatenate([[0], ends[:-1], [examples]]))


class Division:
    """The examples of each client, and the order of them in each pass. It can be pickled."""

    def __init__(self, numbers: Numbers, starts: Numbers, seed: int) -> None:
        """Takes over numbers of examples, `[example]`, client by client, each from its place in `starts`."""
        self._numbers: Final = numbers
        self._starts: Final = starts
        self._seed: Final = seed

    def of(self, client: int) -> Numbers:
        """Returns the examples of a client, as they lie."""
        return self._numbers[self._starts[client] : self._starts[client + 1]]

    def at(self, step: int, client: int, visit: int, start: int, stop: int) -> Numbers:
        """Returns the places `[start, stop)` of a client's order in one of its passes in a step."""
        own = self.of(client)
        return own[_order(self._seed, step, client, visit, len(own))[start:stop]]


@lru_cache(maxsize=32)
def _order(seed: int, step: int, client: int, visit: int, n: int) -> Numbers:
    """Returns the order of a client's examples in one of its passes, for all minibatches of that."""
    return _random(seed, _PASS, step, client, visit).permutation(n)


def _random(seed: int, *use: int) -> np.random.Generator:
    return np.random.default_rng([seed, *use])
