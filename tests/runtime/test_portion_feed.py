"""The examples of a portion; those fetched ahead or kept are the ones that would be taken now."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from partita.engine.data.times import FeedTimes
from partita.engine.protocol.commands import Portions
from partita.engine.runtime import portion_feed
from partita.engine.runtime.feed import Examples
from partita.engine.runtime.portion_feed import PortionFeed, PortionOrder
from partita.layers import Box
from tests.draws import examples


@given(examples=st.integers(1, 60), size=st.integers(1, 20), seed=st.integers(0, 9), shuffled=st.booleans())
def test_an_epoch_has_every_example_once(examples: int, size: int, seed: int, shuffled: bool) -> None:
    order = PortionOrder(Portions(examples, size), seed=seed, shuffled=shuffled)
    again = PortionOrder(Portions(examples, size), seed=seed, shuffled=shuffled)
    per_epoch, data = order.portions.per_epoch, np.arange(examples)
    for epoch in (3, 0):
        seen: list[int] = []
        for portion in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            whole, real = data[order.chosen(portion, 0, size)], order.real(portion)
            assert len(whole) == size and set(whole) == set(whole[:real]), "filled up by its own"
            np.testing.assert_array_equal(data[again.chosen(portion, 0, size)], whole)
            halves = (data[order.chosen(portion, n, m - n)] for n, m in ((0, size // 2), (size // 2, size)))
            np.testing.assert_array_equal(np.concatenate(list(halves)), whole)
            np.testing.assert_array_equal(data[order.chosen(order.same(portion), 0, size)], whole)
            seen += list(whole[:real])
        assert sorted(seen) == list(range(examples))
        assert shuffled or seen == sorted(seen)


def test_each_epoch_is_shuffled_anew() -> None:
    order = PortionOrder(Portions(40, 10), seed=2, shuffled=True)
    first, second = (np.concatenate([order.chosen(e * 4 + n, 0, 10) for n in range(4)]) for e in (0, 1))
    assert sorted(first) == sorted(second) and not np.array_equal(first, second)
    assert order.same(5) == 5
    assert PortionOrder(Portions(40, 10), seed=2, shuffled=False).same(5) == 1


@settings(max_examples=examples(40), deadline=None)
@given(
    played=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12) | st.none()), min_size=1, max_size=25),
    kept=st.sampled_from([0, 1 << 20]),
    worth=st.sampled_from([0, 1 << 20]),
    shuffled=st.booleans(),
)
def test_what_is_fed_does_not_depend_on_what_came_before(
    played: list[tuple[int, int | None]], kept: int, worth: int, shuffled: bool
) -> None:
    """Portions in any order, each with any guess at the next; with room for three or for all."""
    rng = np.random.default_rng(0)
    data = {"picture": rng.normal(size=(23, 3, 2)), "label": rng.integers(0, 9, 23)}
    order = PortionOrder(Portions(23, 4), seed=1, shuffled=shuffled)
    examples = Examples(data)
    asked = [
        ("picture", Box.of_rows(0, 2), (2, 2, 2), 0),
        ("picture", Box.of_rows(0, 2), (2, 2, 2), 2),
        ("label", Box.of_rows(0, 1), (1, 4), 0),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portion_feed, "WORTH_A_THREAD", worth)
        feed = PortionFeed(Examples(data), order, kept_bytes=kept)
        try:
            for portion, following in played:
                feed.choose(portion)
                if following is not None:
                    feed.ahead(following)
                assert feed.count == order.real(portion)
                for name, box, shape, first in asked:
                    found, expected = (np.full(shape, -1, data[name].dtype) for _ in range(2))
                    feed.fill(name, box, found, first=first)
                    examples.put(name, box, expected, order.chosen(portion, first, shape[-1]))
                    np.testing.assert_array_equal(found, expected)
            assert len(feed._portions) <= (6 if kept else 3), "memory is bounded"
        finally:
            feed.close()


def test_an_array_that_cannot_be_read_says_so_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portion_feed, "WORTH_A_THREAD", 0)
    data = {"picture": np.ones((8, 1))}
    feed = PortionFeed(Examples(data), PortionOrder(Portions(8, 2), seed=0, shuffled=False))
    out = np.zeros((1, 2))
    feed.choose(0)
    feed.fill("picture", Box.of_rows(0, 1), out)

    def torn(*arguments: object, **settings: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Examples, "put", torn)
    feed.ahead(1)
    feed.choose(1)
    with pytest.raises(OSError, match="the disk is gone"):
        feed.fill("picture", Box.of_rows(0, 1), out)
    feed.close()


class SlowlyRead(Examples):
    """Examples whose reader counts a second of waiting for each call, unless computing does not wait."""

    waited_s = 0.0

    @override
    def put(self, *given: Any, ahead: bool = False, **more: Any) -> None:
        super().put(*given, **more)
        self.waited_s += not ahead

    @property
    @override
    def times(self) -> FeedTimes:
        return FeedTimes(self.waited_s, 0.0, 0, 1)


def test_waits_of_the_thread_that_fetches_ahead_are_not_those_of_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portion_feed, "WORTH_A_THREAD", 0)
    examples, out = SlowlyRead({"picture": np.ones((8, 1))}), np.zeros((1, 2))
    feed = PortionFeed(examples, PortionOrder(Portions(8, 2), seed=0, shuffled=False))
    for portion in range(2):
        feed.choose(portion)
        feed.fill("picture", Box.of_rows(0, 1), out)
        feed.ahead(1)
        feed._thread.submit(int).result()  # what was to be fetched is there
    feed.close()
    assert feed.times is not None
    assert feed.times.waited_s == examples.waited_s == 1.0


def test_waits_for_the_thread_that_fetches_ahead_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portion_feed, "WORTH_A_THREAD", 0)
    examples, out, go_on = SlowlyRead({"picture": np.ones((8, 1))}), np.zeros((1, 2)), threading.Event()
    feed = PortionFeed(examples, PortionOrder(Portions(8, 2), seed=0, shuffled=False))
    feed.choose(0)
    feed.fill("picture", Box.of_rows(0, 1), out)
    feed._thread.submit(go_on.wait)
    feed.ahead(1)
    feed.choose(1)
    times = iter([10.0, 13.0])

    def read_clock() -> float:
        go_on.set()
        return next(times)

    monkeypatch.setattr(portion_feed, "time", SimpleNamespace(perf_counter=read_clock))
    feed.fill("picture", Box.of_rows(0, 1), out)
    feed.close()
    assert feed.times is not None
    assert (examples.waited_s, feed.times.waited_s) == (1.0, 4.0)
