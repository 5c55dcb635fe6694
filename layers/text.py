"""Words and numbers in sentences and tables: with their nouns, as bytes, and names that resemble another."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Returns the question for a name that resembles a known one, with a space at the end; else nothing."""
    close = difflib.get_close_matches(given.lower(), known, n=1) if isinstance(given, str) else ()
    return f"did you mean {close[0]!r}? " if close else ""


def counted(count: int, one: str, several: str | None = None) -> str:
    """Returns a number with its noun: `1 machine`, `2,000 machines`.

    Args:
        count: the number.
        one: the noun in the singular.
        several: the plural, also for 0; `one` with an s if not given.
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def readable_bytes(n_bytes: float) -> str:
    """Writes a number of bytes: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def listed(sentences: Sequence[str], *, most: int = 20) -> str:
    """Joins what was found; of many, the first, and how many more there are."""
    more = f"; and {len(sentences) - most:,} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more
