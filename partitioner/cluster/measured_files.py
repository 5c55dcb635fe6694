"""JSON files of a calibration, which a cluster file names: times of kernels, and choices of products."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from partita.partitioner.cluster.kernel_times import KernelTimes, Timed
from partita.partitioner.cluster.products import Choice, Products, ProductShape, Rule
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TileForms

TIMES_VERSION: Final = 2
PRODUCTS_VERSION: Final = 1


class _Versioned(msgspec.Struct, kw_only=True):
    """The version alone, which decides whether the other fields can be read."""

    version: Any = None


class _Times(_Versioned, kw_only=True):
    seconds: dict[str, Any]
    """For each signature, measured seconds and those on the reference machine."""


class _Products(_Versioned, kw_only=True, forbid_unknown_fields=True):
    rule: Rule
    origin: str
    source: str
    measured: tuple[tuple[ProductShape, Choice], ...]
    threads: ThreadShares = ThreadShares()
    flat: int = 0
    forms: TileForms = TileForms()


T = TypeVar("T", bound=_Versioned)


def write_times(times: KernelTimes, path: Path) -> None:
    """Writes a table of times."""
    table = {signature: [timed.seconds, timed.reference_s] for signature, timed in times.table.items()}
    _write(_Times(version=TIMES_VERSION, seconds=table), path)


def read_times(path: Path) -> KernelTimes:
    """Reads what `write_times` wrote; raises ValueError if the file is of another kind or version."""
    table = _read(path, _Times, "times of kernels", TIMES_VERSION).seconds
    for signature, pair in table.items():
        numbers = pair if isinstance(pair, list) and len(pair) == 2 else ()
        if not numbers or not all(isinstance(x, float | int) and 0 <= x < math.inf for x in numbers):
            raise ValueError(_rejection(path, "times of kernels", f"'{signature}' takes {pair!r} seconds"))
    return KernelTimes({signature: Timed(*map(float, pair)) for signature, pair in table.items()})


def write_products(products: Products, path: Path) -> None:
    """Writes choices of products."""
    content = {field.name: getattr(products, field.name) for field in fields(products)}
    _write(_Products(version=PRODUCTS_VERSION, **content), path)


def read_products(path: Path) -> Products:
    """Reads what `write_products` wrote; raises ValueError if the file is of another kind or version."""
    found = _read(path, _Products, "choices of products", PRODUCTS_VERSION)
    return Products(**{field.name: getattr(found, field.name) for field in fields(Products)})


def _write(content: _Versioned, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def _read(path: Path, kind: type[T], contents: str, version: int) -> T:
    try:
        data = path.read_bytes()
        found = msgspec.json.decode(data, type=_Versioned).version
        if found == version:
            return msgspec.json.decode(data, type=kind)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ValueError(_rejection(path, contents, str(error))) from error
    raise ValueError(
        f"{path} holds {contents} in version {found}, and this Partita reads version {version}; "
        "calibrate again"
    )


def _rejection(path: Path, contents: str, why: str) -> str:
    return f"{path} holds no {contents} ({why}); calibrate again"
