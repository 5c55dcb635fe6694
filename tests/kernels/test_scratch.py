"""Scratch: as many arrays as threads, each returned whatever happens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from partita.engine.kernels.tiles.scratch import Scratch


def test_each_thread_has_its_own_and_it_comes_back() -> None:
    scratch, barrier = Scratch(3, np.dtype(np.float32)), Barrier(3)
    scratch.reserve(10)

    def work(_: int) -> int:
        with scratch.take(7) as array:
            barrier.wait(10)
            assert array.shape == (7,)
            assert array.dtype == np.float32
            assert array.ctypes.data % 64 == 0
            return int(array.ctypes.data)

    with ThreadPoolExecutor(3) as pool:
        first, second = (set(pool.map(work, range(3))) for _ in range(2))
    assert len(first) == 3
    assert second == first


def test_comes_back_after_an_error() -> None:
    scratch = Scratch(1, np.dtype(np.float64))
    with pytest.raises(KeyError), scratch.take(0):
        raise KeyError
    with scratch.take(0) as array:
        assert array.size == 0


def test_grows_and_never_shrinks() -> None:
    scratch = Scratch(1, np.dtype(np.float64))
    for size in (5, 9, 2):
        scratch.reserve(size)
    with scratch.take(9) as array:
        assert array.size == 9
