"""Payloads as numbers: where they lie if they can, block by block if not, and never changed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.transport import Payload


def pieces(data: bytes, cuts: list[int], shift: int) -> list[memoryview]:
    """Read-only views of consecutive ranges, each in memory of its own that begins `shift` bytes off."""
    edges = [0, *sorted(cuts), len(data)]
    return [memoryview(b"?" * shift + data[start:stop])[shift:] for start, stop in pairwise(edges)]


@given(
    st.integers(0, 400_000),
    st.sampled_from([np.float32, np.float64]),
    st.lists(st.floats(0, 1), max_size=3),
    st.integers(0, 9),
)
def test_numbers_are_those_that_were_sent_however_the_frames_lie(
    n: int, dtype: type, cuts: list[float], shift: int
) -> None:
    sent = np.arange(n).astype(dtype)
    data = sent.tobytes()
    payload = Payload(pieces(data, [int(cut * len(data)) for cut in cuts], shift))
    found = [piece.copy() for piece in payload.numbers(dtype)]
    assert all(piece.dtype == dtype and piece.flags.aligned for piece in found)
    assert b"".join(piece.tobytes() for piece in found) == data


def test_aligned_numbers_are_not_copied_and_keep_their_memory() -> None:
    sent = np.arange(8000, dtype=np.float32)
    (found,) = Payload([sent.data.cast("B").toreadonly()]).numbers(np.float32)
    assert np.shares_memory(found, sent)
    assert found.flags.writeable, "as the compiled loops take it"


def test_numbers_must_be_whole_and_there() -> None:
    payload = Payload([memoryview(bytes(7))])
    with pytest.raises(ValueError, match="no whole numbers of float32"):
        next(payload.numbers(np.float32))
    payload.release()
    with pytest.raises(ValueError, match="was released"):
        next(payload.numbers(np.float32))
