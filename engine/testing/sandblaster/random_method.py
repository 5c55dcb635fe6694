"""A method of random requests, which follow from its seed and from the scalars, as they must.

So recovery meets requests that no good method would make: vectors that nobody reads, evaluations whose
gradient is lost at once, odd segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from partita.engine.protocol.commands import (
    POINT,
    Combine,
    Dots,
    Evaluate,
    Iterated,
    Largest,
    Multiply,
    Operation,
    Outcome,
    Segment,
    Steps,
    Swap,
)

_NAMES: Final = ("a", "b", "c", "d")


class RandomMethod:
    """A number of random requests. A vector that grows is scaled by its own size, so numbers stay small."""

    def __init__(self, seed: int, *, requests: int, portions: int) -> None:
        self._seed = seed
        self._requests = requests
        self._portions = portions

    def steps(self) -> Steps:
        """Starts the method, which is always the same one."""
        random, known, evaluations = Random(self._seed), [POINT], 0
        largest = 0.0
        for n in range(self._requests):
            request: list[Operation] = []
            if "d" in known and random.random() < 0.5:
                request.append(Combine("d", ((1.0 / (1.0 + largest), "d"),)))
            to: tuple[str, ...] = (POINT, *_NAMES[:3])
            request += [self._calculation(random, known, to) for _ in range(random.randrange(3))]
            if random.random() < 0.6:
                request.append(self._evaluation(random, known))
                evaluations += 1
                to = _NAMES[:3]
            request += [self._calculation(random, known, to) for _ in range(random.randrange(3))]
            if random.random() < 0.5:
                request.append(Multiply("d", random.choice(known), random.choice(known)))
                known += ["d"] * ("d" not in known)
            request.append(Largest("d" if "d" in known else POINT))
            scalars = yield tuple(request)
            largest = scalars[-1]
            if random.random() < 0.5:
                yield Iterated(n, scalars[0], largest, 1.0, evaluations)
        return Outcome("stopped", "the requests are over")

    def _calculation(self, random: Random, known: list[str], to: Sequence[str]) -> Operation:
        if random.random() < 0.2:
            return Dots((random.choice(known),), tuple(random.sample(known, min(2, len(known)))))
        if random.random() < 0.2:
            swapped = (random.choice(to), random.choice(to))
            known += [name for name in dict.fromkeys(swapped) if name not in known]
            return Swap(*swapped)
        terms = tuple((random.uniform(-0.5, 0.5), random.choice(known)) for _ in range(random.randrange(3)))
        vector = random.choice(to if terms else _NAMES[:3])
        known += [vector] * (vector not in known)
        return Combine(vector, terms)

    def _evaluation(self, random: Random, known: list[str]) -> Evaluate:
        names = random.sample(_NAMES[:3], random.choice((1, 1, 2, 3)))
        known += [name for name in names if name not in known]
        most = max(1, self._portions // len(names))
        return Evaluate(
            tuple(
                Segment(name, random.randrange(2 * self._portions), random.randint(1, most)) for name in names
            )
        )
