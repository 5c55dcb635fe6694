"""Numbers and their nouns in sentences."""

from __future__ import annotations


def counted(count: int, one: str, several: str | None = None) -> str:
    """A number of things in words: `1 machine`, `2,000 machines`.

    Args:
        count: how many.
        one: the word for one of them.
        several: the word for more, or for none; `one` with an s if not given.
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"
