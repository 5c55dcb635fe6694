"""What goes wrong ends a command with one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from partita.engine.cli.loading import UserCodeError
from partita.engine.drivers.interrupt import Interrupted
from partita.engine.drivers.step import HostError
from partita.engine.drivers.supervisor import RunFailed


@contextmanager
def one_sentence_each() -> Iterator[None]:
    """What goes wrong ends the command with one sentence and a non-zero exit. Tracebacks are the user's."""
    failure: BaseException
    try:
        yield
    except Interrupted as stopped:
        code, failure = 130, stopped
    except KeyboardInterrupt:
        code, failure = (
            130,
            KeyboardInterrupt("stopped at once; the last checkpoint, if there was one, is kept"),
        )
    except (HostError, RunFailed, UserCodeError, ValueError, OSError) as error:
        code, failure = 1, error
    else:
        return
    for note in getattr(failure, "__notes__", ()):
        print(note, file=sys.stderr)
    print(f"partita: {failure}", file=sys.stderr)
    raise typer.Exit(code)
