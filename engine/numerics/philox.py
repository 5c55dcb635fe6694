"""Counted random numbers: bits that are a function of a key and a counter, so that nothing is drawn or saved.

The key is that of a seed and a layer, the counter names a visit of an example and a node. Every machine
computes the bits of its own nodes and examples, and they are equal whatever the cut, the micro-batches and
the order.

One block of Philox gives the bits of four nodes with consecutive numbers.

Source: Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011, Philox4x32 with
    10
rounds.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from partita.engine.numerics.compiled import compiled

MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10
LANES: Final = 4
"""Nodes whose bits one block gives."""

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FIRST, _SECOND = map(np.uint64, MULTIPLIERS)
_FIRST_STEP, _SECOND_STEP = map(np.uint64, KEY_STEPS)


@lru_cache(maxsize=1024)
def key_of(seed: int, layer: str) -> tuple[int, int]:
    """The key of a layer's random numbers, two words of 32 bits, from a digest of its name and the seed."""
    digest = hashlib.blake2b(f"{seed} {layer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def counted_bits(
    key: tuple[int, int],
    visit: int,
    examples: npt.NDArray[np.int64],
    first_node: int,
    out: npt.NDArray[np.uint32],
) -> None:
    """Writes the bits of consecutive nodes for some examples.

    Args:
        key: see `key_of`.
        visit: number of times that the examples were seen before, below 2**32.
        examples: their numbers in the data, `[example]`, below 2**64.
        first_node: number of the first node in its layer, below 2**34.
        out: `[node, example]`.
    """
    _fill(key, np.uint64(visit & 0xFFFFFFFF), examples.astype(np.uint64), first_node, out)


@compiled
def blocks(key: Any, number: Any, visit: Any, examples: Any, lower: Any, upper: Any) -> None:
    """Computes a block for each example; its four words are written as two pairs of 64 bits, low word first.

    The rounds are written out, and the words stored in pairs: else the loop gets no vectors.

    Args:
        key: two words.
        number: word 0 of the counter.
        visit: word 2.
        examples: words 1 and 3, the low word first, uint64 `[example]`.
        lower: receives words 0 and 1, uint64 `[example]`.
        upper: receives words 2 and 3.
    """
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for e in range(len(examples)):
        c0, c1, c2, c3 = np.uint64(number), examples[e] & _LOW, np.uint64(visit), examples[e] >> _HALF
        c0, c1, c2, c3 = _left(c2, c1, k0, 0), _low(c2, _SECOND), _right(c0, c3, k1, 0), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 1), _low(c2, _SECOND), _right(c0, c3, k1, 1), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 2), _low(c2, _SECOND), _right(c0, c3, k1, 2), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 3), _low(c2, _SECOND), _right(c0, c3, k1, 3), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 4), _low(c2, _SECOND), _right(c0, c3, k1, 4), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 5), _low(c2, _SECOND), _right(c0, c3, k1, 5), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 6), _low(c2, _SECOND), _right(c0, c3, k1, 6), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 7), _low(c2, _SECOND), _right(c0, c3, k1, 7), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 8), _low(c2, _SECOND), _right(c0, c3, k1, 8), _low(c0, _FIRST)
        c0, c1, c2, c3 = _left(c2, c1, k0, 9), _low(c2, _SECOND), _right(c0, c3, k1, 9), _low(c0, _FIRST)
        lower[e], upper[e] = c0 | c1 << _HALF, c2 | c3 << _HALF


@register_jitable
def _low(word: Any, multiplier: Any) -> Any:
    return ((word & _LOW) * multiplier) & _LOW


@register_jitable
def _left(word: Any, other: Any, key: Any, step: int) -> Any:
    return (((word & _LOW) * _SECOND) >> _HALF) ^ other ^ ((key + np.uint64(step) * _FIRST_STEP) & _LOW)


@register_jitable
def _right(word: Any, other: Any, key: Any, step: int) -> Any:
    return (((word & _LOW) * _FIRST) >> _HALF) ^ other ^ ((key + np.uint64(step) * _SECOND_STEP) & _LOW)


@compiled
def _fill(key: Any, visit: Any, examples: Any, first_node: int, out: Any) -> None:
    lower, upper = np.empty(len(examples), np.uint64), np.empty(len(examples), np.uint64)
    for number in range(first_node // LANES, (first_node + len(out) + LANES - 1) // LANES):
        blocks(key, number, visit, examples, lower, upper)
        for lane in range(LANES):
            node = number * LANES + lane - first_node
            if 0 <= node < len(out):
                _unpack(upper if lane >= LANES // 2 else lower, np.uint64(32 * (lane % 2)), out[node])


@register_jitable
def _unpack(pairs: Any, shift: Any, out: Any) -> None:
    for e in range(len(out)):
        out[e] = np.uint32((pairs[e] >> shift) & _LOW)
