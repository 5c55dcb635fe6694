"""`choose_thresholds`: thresholds of exits for a wanted accuracy or share, found on held-out examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.launch.on import On
from partita.engine.run.data import Data
from partita.engine.run.evaluate import check_run, predict
from partita.engine.run.exits import ends_at
from partita.engine.run.phases import Show
from partita.engine.run.run import Run
from partita.engine.run.session import Hosts
from partita.layers.checks import check_number
from partita.layers.exits import exits_of, normalised_entropy

MOST: Final = 2000
"""Combinations of thresholds that are tried; with more exits, fewer of each exit."""


def choose_thresholds(
    run: Run,
    inputs: Data,
    labels: Array | Sequence[int],
    *,
    accuracy: float | None = None,
    shares: Mapping[str, float] | None = None,
    hosts: Hosts | On | str = "threads",
    timeout_s: float = 300.0,
    show: Show = "auto",
) -> dict[str, float]:
    """Finds thresholds of all exits but the last, for `predict_with_exits`.

    Args:
        run: a trained network with exits.
        inputs: held-out examples, as in `predict`.
        labels: their classes, `[example]`.
        accuracy: the least accuracy that is wanted; of the thresholds that reach it, those are returned with
            which examples end earliest on average.
        shares: or for each exit the share of all examples that is to end there.
        hosts: see `evaluate`.
        timeout_s: see `evaluate`.
        show: see `evaluate`.

    Raises:
        ValueError: not one of `accuracy` and `shares` is given, a share is wrong, the network has no two
            exits, or no thresholds reach the accuracy.
        HostError: a host failed, or took too long.
    """
    check_run(run, "choose_thresholds")
    if (accuracy is None) == (shares is None):
        raise ValueError("give choose_thresholds either accuracy=0.95 or shares={'EXIT': 0.6}")
    graph = run.plan.graph
    exits = tuple(exits_of(graph))
    if len(exits) < 2:
        raise ValueError(
            f"network '{graph.name}' has {len(exits)} exits, and thresholds decide between several; declare "
            "two or more with net.exit(...)"
        )
    found = predict(run, inputs, hosts=hosts, timeout_s=timeout_s, show=show)
    scores = found if isinstance(found, dict) else {graph.scores[0]: found}
    at = [scores[graph[name].sources[0]] for name in exits]
    entropies = [normalised_entropy(one) for one in at]
    if shares is not None:
        return _for_shares(exits, entropies, shares)
    right = [one.argmax(axis=1) == np.asarray(labels).reshape(-1) for one in at]
    wanted = check_number(accuracy, "the accuracy is")
    return dict(zip(exits[:-1], _for_accuracy(entropies, right, wanted), strict=True))


def _for_shares(
    exits: Sequence[str], entropies: Sequence[Array], shares: Mapping[str, float]
) -> dict[str, float]:
    if set(shares) != set(exits[:-1]) or sum(shares.values()) > 1 or min(shares.values()) < 0:
        raise ValueError(
            f"the shares are {dict(shares)}; give one of 0 or more for each of {', '.join(exits[:-1])}, "
            "together at most 1"
        )
    found, left = {}, np.ones(len(entropies[0]), bool)
    for name, entropy in zip(exits, entropies, strict=False):
        if name in shares:
            count = round(shares[name] * len(entropy))
            found[name] = _between(np.sort(entropy[left]), count)
            left &= ~ends_at(entropy, found[name])
    return found


def _between(ascending: Array, count: int) -> float:
    """A threshold below which `count` of these entropies lie, halfway to the next."""
    if count == 0 or not len(ascending):
        return 0.0
    if count >= len(ascending):
        return 1.0
    return float((ascending[count - 1] + ascending[count]) / 2)


def _for_accuracy(entropies: Sequence[Array], right: Sequence[Array], wanted: float) -> tuple[float, ...]:
    each = max(2, int(MOST ** (1 / (len(entropies) - 1))))
    candidates = []
    for entropy in entropies[:-1]:
        ascending = np.sort(entropy)
        counts = np.linspace(0, len(ascending), min(each, len(ascending) + 1)).round().astype(int)
        candidates.append([_between(ascending, int(count)) for count in counts])
    tried = [(thresholds, *_figures(thresholds, entropies, right)) for thresholds in product(*candidates)]
    best = max(accuracy for _, accuracy, _ in tried)
    reached = [one for one in tried if one[1] >= wanted]
    if not reached:
        raise ValueError(
            f"no thresholds reach an accuracy of {wanted:g} on these examples; the best have {best:.4f}: ask "
            "for less, or train longer"
        )
    return min(reached, key=lambda one: one[2])[0]


def _figures(
    thresholds: Sequence[float], entropies: Sequence[Array], right: Sequence[Array]
) -> tuple[float, float]:
    """The accuracy, and the mean number of the exit."""
    left, correct, passed = np.ones(len(right[0]), bool), 0, 0
    for entropy, here, threshold in zip(entropies, right, (*thresholds, 1.0), strict=True):
        ends = left & ends_at(entropy, threshold)
        correct += int((ends & here).sum())
        left &= ~ends
        passed += int(left.sum())
    return correct / len(left), passed / len(left)
