"""The report of an error: it can always be sent, and always be read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import decode, encode
from partita.engine.protocol.failure import MOST_LINES, MOST_REASON, report_of
from partita.engine.protocol.messages import Failed


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class Loud(Exception):
    def __str__(self) -> str:
        return "x" * (1 << 20) + "the end"


class Posing(Exception):
    @property
    def __notes__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no notes")


def recursion() -> NoReturn:
    recursion()
    raise AssertionError


def deep_in_a_library() -> NoReturn:
    """A hundred frames of somebody else above the one of the user."""
    code = "def f(n):\n    if n: f(n - 1)\n    raise KeyError('inside')\n"
    namespace: dict[str, Any] = {"__name__": "library"}
    exec(compile(code, "/usr/lib/python3/site-packages/library.py", "exec"), namespace)
    namespace["f"](100)
    raise AssertionError


def raised(error: BaseException) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error

    return act


def caused() -> NoReturn:
    try:
        raise Mute
    except Mute as error:
        raise ValueError("second") from error


def report(act: Callable[[], object]) -> Failed:
    try:
        act()
    except BaseException as error:  # noqa: BLE001
        return report_of(error)
    raise AssertionError("nothing was raised")


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "a text of 1 MiB": (raised(Loud()), "Loud: xxx"),
    "a lone surrogate": (raised(ValueError("odd \udc80 text")), r"ValueError: odd \udc80 text"),
    "a __str__ that raises": (raised(Mute()), "Mute: (its text cannot be shown: __str__ raised SystemExit)"),
    "notes that raise": (raised(Posing("posing")), "Posing: posing"),
    "SystemExit": (lambda: sys.exit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (raised(KeyboardInterrupt()), "KeyboardInterrupt"),
    "a group": (raised(BaseExceptionGroup("two", [Loud(), SystemExit(1)])), "BaseExceptionGroup: two"),
    "recursion": (recursion, "RecursionError: maximum recursion depth exceeded"),
    "a cause without text": (caused, "ValueError: second"),
    "deep in a library": (deep_in_a_library, "KeyError: 'inside'"),
    "what a terminal would obey": (raised(ValueError("\x1b[31mred\r")), r"ValueError: \x1b[31mred\r"),
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_raised_is_a_report_of_one_screen_with_the_users_line(case: str) -> None:
    act, starts = CASES[case]
    found = report(act)
    assert found.reason.startswith(starts)
    assert len(found.reason) < MOST_REASON + 100
    assert len(found.traceback.splitlines()) <= MOST_LINES
    assert len(found.traceback) < 8000
    assert f'File "{__file__}", line ' in found.traceback
    assert decode(encode(found)) == found


def test_the_end_of_a_long_text_is_kept() -> None:
    found = report(raised(Loud()))
    assert found.reason.endswith("the end") and "characters left out" in found.reason


def test_an_expected_error_has_no_traceback() -> None:
    assert report_of(ValueError("do this"), final=True, expected=True) == Failed("do this", "", final=True)
    assert report_of(ValueError(), expected=True) == Failed("ValueError", "")


@given(st.text(st.characters(), max_size=3000), st.text(max_size=50))
def test_any_text_can_be_sent(text: str, note: str) -> None:
    error = RuntimeError(text)
    error.add_note(note)
    found = report_of(error)
    assert decode(encode(found)) == found
    assert all(c.isprintable() or c in "\n\t" for c in found.reason + found.traceback)
