"""The example of increasing resolution compares times at equal accuracy, and its claims can fail."""

from __future__ import annotations

import pytest

from examples.reproduce.resolution import ACCURACIES, Found, Result, check, gains, reached_s


def line(*, seconds: float) -> tuple[Result, ...]:
    """A curve that comes to 0.8, 0.85, 0.9 and 0.95, so many seconds after each other."""
    return tuple(Result(seconds * (n + 1), 0.8 + 0.05 * n) for n in range(4))


def test_times_are_read_along_straight_lines() -> None:
    curve = line(seconds=2.0)
    assert reached_s(curve, 0.85) == pytest.approx(4.0)
    assert reached_s(curve, 0.88) == pytest.approx(5.2)
    assert reached_s(curve, 0.79) is None and reached_s(curve, 0.96) is None


def test_claims_hold_where_every_accuracy_is_reached_in_less_time(capsys: pytest.CaptureFixture[str]) -> None:
    faster = Found(line(seconds=2.0), line(seconds=3.0), Result(6.0, 0.7))
    assert gains([faster])[0.9] == pytest.approx((6.0, 9.0))
    check([faster] * 3)
    assert capsys.readouterr().out.count("1.50") == 3 * len(ACCURACIES)
    slower = Found(line(seconds=7.0), line(seconds=3.0), Result(6.0, 0.7))
    with pytest.raises(SystemExit, match="not faster"):
        check([faster, faster, slower])
    with pytest.raises(SystemExit, match="as accurate"):
        check([faster._replace(not_carried=Result(6.0, 0.95))] * 3)
    with pytest.raises(SystemExit, match="should come to"):
        check([faster._replace(at_once=faster.at_once[:2])] * 3)
