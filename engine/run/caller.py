"""The call or command that started a run, so that a message can say what to write next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

_RESUME: Final = "--resume"
_OVERWRITE: Final = "--overwrite"


@dataclass(frozen=True)
class Caller:
    """The call or the command that started a run.

    Args:
        what: the call or the command itself.
        again: text that goes on with the run once it was stopped.
        resume, overwrite: the two arguments, as they are written there.
    """

    what: str
    again: str
    resume: str
    overwrite: str

    @classmethod
    def of_command(cls, arguments: Sequence[str]) -> Self:
        """Describes a command line that begins with the program's name."""
        goes_on = [one for one in arguments if one not in (_RESUME, _OVERWRITE)]
        return cls(
            what=f"`{shlex.join(arguments)}`",
            again=f"`{shlex.join([*goes_on, _RESUME])}`",
            resume=_RESUME,
            overwrite=_OVERWRITE,
        )


CALL: Final = Caller(
    what="train()",
    again="train() with the same arguments and resume=True",
    resume="resume=True",
    overwrite="overwrite=True",
)
"""A call of `train` in Python."""
