"""Output of commands: the width of the terminal, and one sentence for whatever goes wrong."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from partita.engine.cli.user_code_error import UserCodeError
from partita.engine.protocol.failure import HostError, RunFailed


def terminal_width() -> int | None:
    """Columns of the terminal, or the value of COLUMNS; None where standard output is no terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None


@contextmanager
def one_sentence_each() -> Iterator[None]:
    """Ends the command with one sentence and a non-zero exit where it fails. Tracebacks are the user's."""
    failure: BaseException
    try:
        yield
    except KeyboardInterrupt as stopped:
        # An `Interrupted` says what was saved; its class is not imported here, as a worker knows no run.
        at_once = KeyboardInterrupt("stopped at once; the last checkpoint, if there was one, is kept")
        code, failure = 130, stopped if stopped.args else at_once
    except (HostError, RunFailed, UserCodeError, ImportError, ValueError, OSError) as error:
        code, failure = 1, error
    else:
        return
    for note in getattr(failure, "__notes__", ()):
        print(note, file=sys.stderr)
    print(f"partita: {failure}", file=sys.stderr)
    raise typer.Exit(code)
