"""Turns any exception into a report that can be sent and read.

Hosts, sessions and coordinators call it. A user's error may have a text of megabytes, text that is not
Unicode, or a `__str__` that raises; the report is at most a screen long, is UTF-8, and names the file and the
line of the user's code.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import msgspec

from partita.engine.protocol.messages import Failed

MOST_REASON: Final = 2000
"""Largest number of characters of the sentence."""

MOST_LINES: Final = 40
MOST_COLUMNS: Final = 160
"""A screen: lines of a traceback, and characters of each of them."""

_MOST_SCREENS: Final = 4  # of another host: stacks of several threads
_FIRST_LINES: Final = 4  # kept where a traceback is cut: its beginning; its end matters most
_MOST_FRAMES: Final = 10_000  # that are looked at: a recursion error has about a thousand
_LIBRARIES: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen ", "<string>")


class RunFailed(RuntimeError):
    """A run that cannot go on: one sentence; the traceback of the host that failed is its note."""

    @classmethod
    def of(cls, reason: str, traceback: str = "") -> Self:
        """Returns the error with a traceback as its note; "" is none."""
        failure = cls(reason)
        if traceback:
            failure.add_note(traceback)
        return failure

    def with_hint(self, hint: str) -> Self:
        """Returns the same error with the next step."""
        failure = type(self)(f"{str(self).rstrip('.')}; {hint}" if hint else str(self))
        for note in getattr(self, "__notes__", ()):
            failure.add_note(note)
        return failure


class HostError(RuntimeError):
    """Failure of a host of a session, in one sentence. Its own traceback, if there is one, is the note.

    Attributes:
        host: name of the host; "" where the reason names it.
    """

    def __init__(self, host: str, reason: str, remote_traceback: str = "") -> None:
        super().__init__(f"{host}: {reason}" if host else reason)
        self.host = host
        if remote_traceback:
            self.add_note(f"On {host}:\n{remote_traceback}")


def report_of(error: BaseException, *, final: bool = False, expected: bool = False) -> Failed:
    """Returns the report of an error. Never raises because of the error.

    Args:
        error: the exception.
        final: a repetition would end in the same way.
        expected: the error's sentence is meant for the user, and a traceback would explain nothing.
    """
    kind = type(error).__name__
    text = _text_of(error)
    if expected:
        return Failed(sentence(text or kind), "", final=final)
    return Failed(sentence(f"{kind}: {text}" if text else kind), _screen(error), final=final)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - the user's own code, which may raise anything
        return f"(its text cannot be shown: __str__ raised {type(second).__name__})"


def bounded(report: Failed) -> Failed:
    """Returns another host's report, cut to the size that it should have had."""
    text = report.traceback
    most = _MOST_SCREENS * MOST_LINES * (MOST_COLUMNS + 1)
    text = _readable(text if len(text) <= most else f"{text[: most // 2]}\n  ...\n{text[-most // 2 :]}")
    return msgspec.structs.replace(report, reason=sentence(report.reason), traceback=text)


def sentence(text: str) -> str:
    """Returns a text that can be sent and shown: without control characters, and cut in its middle."""
    if len(text) <= MOST_REASON:
        return _readable(text)
    half = MOST_REASON // 2
    left_out = len(text) - 2 * half
    return f"{_readable(text[:half])} ... ({left_out} characters left out) ... {_readable(text[-half:])}"


def _screen(error: BaseException) -> str:
    """Returns the traceback; a long one is cut to its beginning, the user's own line, and its end."""
    lines = [line[:MOST_COLUMNS] for line in _formatted(error).rstrip("\n").split("\n")]
    if len(lines) <= MOST_LINES:
        return _readable("\n".join(lines)) + "\n"
    last = lines[-(MOST_LINES - _FIRST_LINES - 3) :]
    where = _place_of(error)
    left_out = len(lines) - _FIRST_LINES - len(last)
    middle = [f"  ... ({left_out} lines left out) ..."]
    if where is not None and not any(where in line for line in last):
        middle += [f"  {where}", "  ..."]
    return _readable("\n".join([*lines[:_FIRST_LINES], *middle, *last])) + "\n"


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an attribute of the user's error raised; where it happened is known
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"Traceback (most recent call last):\n{frames}{type(error).__name__}: {_text_of(error)}\n"


def _readable(text: str) -> str:
    """Returns UTF-8 without control characters."""
    sound = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if sound.isprintable():
        return sound
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in sound)


def _place_of(error: BaseException) -> str | None:
    """Returns file and line of the innermost frame that is neither ours nor a library's."""
    for found in _with_causes(error):
        own = [frame for frame in _frames(found.__traceback__) if _is_of_user(frame)]
        if own:
            code = own[-1].tb_frame.f_code
            return f'File "{code.co_filename}", line {own[-1].tb_lineno}, in {code.co_name}'
    return None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, those of a group, and their causes; each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
        waiting += [one for one in (found.__cause__, found.__context__) if one is not None]


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    for _ in range(_MOST_FRAMES):
        if trace is None:
            return
        yield trace
        trace = trace.tb_next


def _is_of_user(trace: TracebackType) -> bool:
    frame = trace.tb_frame
    module = str(frame.f_globals.get("__name__", ""))
    return not (module.startswith("partita.") or any(part in frame.f_code.co_filename for part in _LIBRARIES))
