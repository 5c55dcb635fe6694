"""Counted random bits as tensors: compiled loops on the host, the same bits by torch on any other device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from partita.engine.numerics.philox import KEY_STEPS, LANES, MULTIPLIERS, ROUNDS, counted_bits

_WORD: Final = 0xFFFFFFFF


def random_bits(
    key: tuple[int, int],
    visit: int,
    examples: npt.NDArray[np.int64],
    nodes: Sequence[tuple[int, int]],
    device: torch.device,
) -> torch.Tensor:
    """Returns 32 bits for each node and example, int32 `[node, example]`; see `numerics.philox`.

    Args:
        key: of the seed and the layer.
        visit: how often the examples were seen before.
        examples: their numbers in the data.
        nodes: ranges `[start, stop)` of numbers of nodes.
        device: of the tensor.
    """
    if device.type != "cpu":
        rows = [_on_device(key, visit, examples, start, stop, device) for start, stop in nodes]
        return torch.cat(rows)
    out = np.empty((sum(stop - start for start, stop in nodes), len(examples)), np.uint32)
    begin = 0
    for start, stop in nodes:
        counted_bits(key, visit, examples, start, out[begin : begin + stop - start])
        begin += stop - start
    return torch.from_numpy(out.view(np.int32))


def _on_device(
    key: tuple[int, int],
    visit: int,
    examples: npt.NDArray[np.int64],
    start: int,
    stop: int,
    device: torch.device,
) -> torch.Tensor:
    """The bits of a range of nodes. Products of 64 bits wrap, so that their bits are those without a sign."""
    numbers = torch.arange(start // LANES, -(-stop // LANES), device=device)[:, None]
    examples_there = torch.from_numpy(examples.astype(np.int64)).to(device)[None]
    c0 = numbers.expand(-1, len(examples))
    c1 = (examples_there & _WORD).expand_as(c0)
    c2, c3 = torch.full_like(c0, visit & _WORD), (examples_there >> 32 & _WORD).expand_as(c0)
    k0, k1 = key
    for _ in range(ROUNDS):
        one, two = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = (two >> 32 & _WORD) ^ c1 ^ k0, (one >> 32 & _WORD) ^ c3 ^ k1
        c1, c3 = two & _WORD, one & _WORD
        k0, k1 = k0 + KEY_STEPS[0] & _WORD, k1 + KEY_STEPS[1] & _WORD
    words = torch.stack((c0, c1, c2, c3), 1).reshape(-1, len(examples))
    signed = (words ^ 1 << 31) - (1 << 31)
    first = start - start // LANES * LANES
    return signed[first : first + stop - start].to(torch.int32)
