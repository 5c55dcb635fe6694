"""The table of a link as rows of texts, for cluster files: size, and times of sender, link and receiver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from partita.partitioner.cluster.link import MessageTimes
from partita.partitioner.text import BYTES, SECONDS, parse_quantity, quantity

_EXAMPLE = '["64 KiB", "20 us", "52 us", "30 us"]'


def read_messages(rows: Any, what: str) -> tuple[MessageTimes, ...]:
    """Reads the rows of a table.

    Args:
        rows: the value of the key, of any type.
        what: names the link in errors.

    Raises:
        ValueError: a row has not four quantities; the message is one sentence.
    """
    if not isinstance(rows, list):
        raise ValueError(f"{what}: the messages are {rows!r}; write a list of rows like {_EXAMPLE}")
    return tuple(_row(row, what) for row in rows)


def written_messages(table: Iterable[MessageTimes]) -> list[list[str]]:
    """Writes rows that `read_messages` reads."""
    return [[_size(row.n_bytes), *(quantity(seconds, SECONDS) for seconds in row.times)] for row in table]


def _size(n_bytes: int) -> str:
    """Words a size in the largest unit of which it is a whole number: "256 B", "64 KiB"."""
    for unit in ("GiB", "MiB", "KiB"):
        if n_bytes % int(BYTES[unit]) == 0:
            return f"{n_bytes // int(BYTES[unit])} {unit}"
    return f"{n_bytes} B"


def _row(row: Any, what: str) -> MessageTimes:
    example = f"write the size and the times of sender, link and receiver, as in {_EXAMPLE}"
    if not isinstance(row, list) or len(row) != 4:
        raise ValueError(f"{what}: a message is {row!r}; {example}")
    try:
        n_bytes = parse_quantity(row[0], BYTES)
        send, link, receive = (parse_quantity(text, SECONDS) for text in row[1:])
    except ValueError as error:
        raise ValueError(f"{what}: a message is {row!r}; {error}, as in {_EXAMPLE}") from error
    return MessageTimes(round(n_bytes), send, link, receive)
