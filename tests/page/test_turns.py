"""Browsers have turns: few have one at each look, many share what one server sends in a second."""

from __future__ import annotations

import pytest

from partita.engine.page.turns import SHOW_EVERY_S, Turn

LOOKS = 60


def sent(browsers: int, *, waited_for: dict[int, set[str]] | None = None, over: int = LOOKS) -> list[int]:
    """The looks at which one browser is sent news."""
    turn, found = Turn(), []
    for look in range(LOOKS):
        now_s, waits = 100.0 + look * SHOW_EVERY_S, (waited_for or {}).get(look, set())
        if turn.is_now(now_s, browsers=browsers, waited_for=waits, is_over=look >= over):
            found.append(look)
    return found


@pytest.mark.parametrize(("browsers", "every"), [(1, 1), (4, 1), (8, 2), (20, 5), (60, 15)])
def test_each_browser_has_its_turn_after_as_many_seconds_as_it_takes_to_serve_all(
    browsers: int, every: int
) -> None:
    assert sent(browsers) == list(range(0, LOOKS, every))


def test_other_hosts_that_are_waited_for_are_shown_at_once_and_when_they_are_not_any_more() -> None:
    waited_for = {look: {"part 0.1"} for look in range(7, 10)}
    assert sent(20, waited_for=waited_for)[:5] == [0, 5, 7, 10, 15]
    assert sent(20, waited_for={**waited_for, 8: {"part 1.1"}})[:6] == [0, 5, 7, 8, 9, 10]


def test_the_end_of_a_run_is_shown_at_each_look() -> None:
    assert sent(60, over=50) == [0, 15, 30, 45, *range(50, LOOKS)]
