"""The source of a node's functions is found by several threads at once."""

from __future__ import annotations

import gc
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from partita.engine.kernels.nodes.source import written


class Yielding:
    """An object in a circle, which the collector finds; its end lets other threads run."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def often_collected() -> Iterator[None]:
    """Collects garbage every few objects, so that threads alternate while one of them makes a tree."""
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


def deep(function: Callable[..., Any], depth: int) -> bool:
    """Whether the function's source is found, from a stack that is so deep."""
    if depth:
        return deep(function, depth - 1)
    Yielding()
    return written(function) is not None


def test_threads_may_look_at_once(often_collected: None) -> None:
    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(deep, textwrap.dedent, depth) for depth in (0, 40, 90) * 20]
        assert all(one.result() for one in found)
