"""Counted bits: the published ones, in pieces to the bit, and the same from torch on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.kernels import counted
from partita.engine.numerics.philox import blocks, counted_bits, key_of

PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Counter, key and words, from the known answers that come with the authors' Random123."""


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_equals_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    number, low, visit, high = counter
    lower, upper = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    blocks(key, number, visit, np.array([low | high << 32], np.uint64), lower, upper)
    found = [int(pair[0]) >> shift & 0xFFFFFFFF for pair in (lower, upper) for shift in (0, 32)]
    assert tuple(found) == words


def bits(start: int, stop: int, examples: np.ndarray, *, visit: int = 3, seed: int = 1) -> np.ndarray:
    out = np.zeros((stop - start, len(examples)), np.uint32)
    counted_bits(key_of(seed, "layer"), visit, examples, start, out)
    return out


@given(st.integers(0, 9), st.integers(0, 20), st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9))
def test_pieces_have_the_bits_of_the_whole_and_torch_too(start: int, n: int, numbers: list[int]) -> None:
    examples, stop = np.array(numbers, np.int64), start + n
    whole = bits(0, 32, examples)
    np.testing.assert_array_equal(bits(start, stop, examples), whole[start:stop])
    np.testing.assert_array_equal(bits(start, stop, examples[::-1])[:, ::-1], whole[start:stop])
    by_torch = counted._on_device(key_of(1, "layer"), 3, examples, start, stop, torch.device("cpu"))
    np.testing.assert_array_equal(by_torch.numpy().view(np.uint32), whole[start:stop])


def test_every_part_of_the_counter_counts() -> None:
    """Another seed, layer, visit, example or node: bits that agree in half of the places, as chance does."""
    examples = np.arange(64)
    one = bits(0, 64, examples)
    others = [bits(0, 64, examples, visit=4), bits(0, 64, examples, seed=2), bits(64, 128, examples)]
    others += [bits(0, 64, examples + 64), np.roll(one, 1, 0)]
    for other in others:
        share = np.unpackbits((one ^ other).view(np.uint8)).mean()
        assert abs(share - 0.5) < 0.01  # 5 standard deviations of 131,072 bits are 0.007
    assert key_of(1, "layer") != key_of(1, "layers")
