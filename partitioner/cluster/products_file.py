"""Files of choices of products, which a cluster file names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from partita.partitioner.cluster.products import Choice, Products, ProductShape, Rule

VERSION: Final = 1


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the file."""

    version: int
    rule: Rule
    origin: str
    source: str
    measured: tuple[tuple[ProductShape, Choice], ...]


def write_products(products: Products, path: Path) -> None:
    """Writes choices as JSON.

    Raises:
        OSError: the file cannot be written.
    """
    content = _Content(
        version=VERSION,
        rule=products.rule,
        origin=products.origin,
        source=products.source,
        measured=products.measured,
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def read_products(path: Path) -> Products:
    """Reads what `write_products` wrote.

    Raises:
        ValueError: the file is of another kind or version.
        OSError: it cannot be read.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Content)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} holds no choices of products ({error}); calibrate again") from error
    if found.version != VERSION:
        raise ValueError(
            f"{path} holds choices of products in version {found.version}, and this Partita reads version "
            f"{VERSION}; calibrate again"
        )
    return Products(found.rule, found.origin, found.measured, found.source)
