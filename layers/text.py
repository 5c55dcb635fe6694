"""Numbers and their nouns in sentences."""

from __future__ import annotations


def counted(count: int, one: str, several: str | None = None) -> str:
    """Returns a number with its noun: `1 machine`, `2,000 machines`.

    Args:
        count: the number.
        one: the noun in the singular.
        several: the plural, also for 0; `one` with an s if not given.
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"
