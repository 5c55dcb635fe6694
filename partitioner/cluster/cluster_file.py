"""A cluster as a TOML file that people write and read.

    [[machine]]
    name = "worker"            # worker0, worker1, worker2
    count = 3
    threads = 8
    memory = "64 GiB"

    [link]                     # between any two hosts
    latency = "50 us"
    bandwidth = "10 Gbit/s"

Nothing is guessed silently: an unknown key is a mistake, and so is a machine without memory.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from partita.layers.checks import check_whole
from partita.partitioner.cluster.kernel_times import KernelTimes, read_times, write_times
from partita.partitioner.cluster.machine import SHARED_MEMORY, Between, Link, Machine
from partita.partitioner.cluster.products import Products
from partita.partitioner.cluster.products_file import read_products, write_products
from partita.partitioner.text import BYTES, BYTES_PER_S, FLOPS_PER_S, SECONDS, parse_quantity, quantity

UNLIMITED: Final = "unlimited"

_MACHINE: Final = {
    "cores": "cores",
    "threads": "threads",
    "device": "device",
    "host": "host",
    "kind": "kind",
    "speed": "speed",
}
"""Keys of a machine whose values stand as they are, and its attributes."""
_MACHINE_UNITS: Final = {
    "flops": ("flops_per_s", FLOPS_PER_S),
    "memory_bandwidth": ("bytes_per_s", BYTES_PER_S),
    "instruction": ("instruction_s", SECONDS),
    "step": ("step_s", SECONDS),
    "cold": ("cold_s", SECONDS),
}
_LINK_UNITS: Final = {
    "latency": ("latency_s", SECONDS),
    "bandwidth": ("bytes_per_s", BYTES_PER_S),
    "send": ("send_s", SECONDS),
    "receive": ("receive_s", SECONDS),
    "send_bandwidth": ("send_bytes_per_s", BYTES_PER_S),
    "receive_bandwidth": ("receive_bytes_per_s", BYTES_PER_S),
}
_TABLES: Final = ("machine", "link", "between", "shared_memory")
_MACHINE_KEYS: Final = ("name", "count", "memory", "times", "products", *_MACHINE, *_MACHINE_UNITS)
_LINK_KEYS: Final = (*_LINK_UNITS, "both_ways")


@dataclass(frozen=True)
class Parts:
    """What a file says: the arguments of a `Cluster`."""

    machines: tuple[Machine, ...]
    link: Link | None
    between: tuple[Between, ...]
    memory: Link


@dataclass(frozen=True)
class _Files:
    """Names of the files beside a cluster's.

    Args:
        times: by the identity of the table.
        products: by their choices.
    """

    times: Mapping[int, str]
    products: Mapping[Products, str]


def read_parts(path: Path) -> Parts:
    """Reads a file.

    Raises:
        ValueError: it has a mistake, said in one sentence that begins with the file.
        OSError: it cannot be read.
    """
    try:
        return _parts(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}; correct it") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_parts(parts: Parts, path: Path) -> None:
    """Writes a file that `read_parts` reads, and beside it one for each table of times or products.

    Raises:
        OSError: one cannot be written.
    """
    files = _Files(_written_times(parts.machines, path), _written_products(parts.machines, path))
    tables = [_table("[[machine]]", _of_machine(*each, files)) for each in _folded(parts.machines)]
    if parts.link is not None:
        tables.append(_table("[link]", _of_link(parts.link)))
    for found in parts.between:
        names = f"[{_string(found.one)}, {_string(found.other)}]"
        tables.append(_table("[[between]]", [("hosts", names), *_of_link(found.link)]))
    tables.append(_table("[shared_memory]", _of_link(parts.memory)))
    path.write_text("\n\n".join(tables) + "\n", encoding="utf-8")


def _parts(found: Mapping[str, Any], folder: Path) -> Parts:
    _check_keys(found, _TABLES, "the file")
    machines = _tables(found, "machine")
    if not machines:
        raise ValueError("there is no machine; write at least one table [[machine]]")
    times_in = cache(lambda name: read_times(folder / name))
    products_in = cache(lambda name: read_products(folder / name))

    return Parts(
        tuple(machine for table in machines for machine in _machines(table, times_in, products_in)),
        _link(_mapping(found["link"], "link"), "the link") if "link" in found else None,
        tuple(map(_between, _tables(found, "between"))),
        _link(_mapping(found["shared_memory"], "shared_memory"), "the shared memory")
        if "shared_memory" in found
        else SHARED_MEMORY,
    )


def _machines(
    table: Mapping[str, Any],
    times_in: Callable[[str], KernelTimes],
    products_in: Callable[[str], Products],
) -> Iterator[Machine]:
    """The machine of a table, or several of its kind."""
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f'a machine has the name {name!r}; write for example name = "worker"')
    what = f"machine '{name}'"
    _check_keys(table, _MACHINE_KEYS, what)
    if "memory" not in table:
        raise ValueError(f'{what} has no memory; write for example memory = "64 GiB", or "{UNLIMITED}"')
    settings = {_MACHINE[key]: value for key, value in table.items() if key in _MACHINE}
    settings |= _in_units(table, _MACHINE_UNITS, what)
    if "threads" not in table and "cores" in table:
        settings["threads"] = table["cores"]
    if table["memory"] != UNLIMITED:
        n_bytes = _quantity(table["memory"], BYTES, f"{what}: the memory is")
        settings["memory_bytes"] = round(n_bytes)
    read_in: dict[str, Callable[[str], object]] = {"times": times_in, "products": products_in}
    for key, read in read_in.items():
        if key in table:
            if not isinstance(table[key], str):
                raise ValueError(f"{what}: the {key} are {table[key]!r}; write the name of a file")
            settings[key] = read(table[key])
    machine = Machine(name, **settings)
    if "count" not in table:
        yield machine
        return
    for n in range(check_whole(table["count"], f"{what}: the count is")):
        yield replace(machine, name=f"{name}{n}")


def _between(table: Mapping[str, Any]) -> Between:
    hosts = table.get("hosts")
    if not isinstance(hosts, list) or len(hosts) != 2:
        raise ValueError(f'a link is between {hosts!r}; write for example hosts = ["a", "b"]')
    link = {key: value for key, value in table.items() if key != "hosts"}
    return Between(hosts[0], hosts[1], _link(link, f"the link between '{hosts[0]}' and '{hosts[1]}'"))


def _link(table: Mapping[str, Any], what: str) -> Link:
    _check_keys(table, _LINK_KEYS, what)
    for key in ("latency", "bandwidth"):
        if key not in table:
            example = 'latency = "50 us"' if key == "latency" else 'bandwidth = "10 Gbit/s"'
            raise ValueError(f"{what} has no {key}; write for example {example}")
    both_ways = {"both_ways": table["both_ways"]} if "both_ways" in table else {}
    return Link(**_in_units(table, _LINK_UNITS, what), **both_ways)


def _in_units(
    table: Mapping[str, Any], known: Mapping[str, tuple[str, Mapping[str, float]]], what: str
) -> dict[str, Any]:
    return {
        attribute: _quantity(table[key], units, f"{what}: the {key.replace('_', ' ')} is")
        for key, (attribute, units) in known.items()
        if key in table
    }


def _quantity(written: object, units: Mapping[str, float], what: str) -> float:
    try:
        return parse_quantity(written, units)
    except ValueError as error:
        raise ValueError(f"{what} {written!r}; {error}") from error


def _tables(found: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    tables = found.get(key, [])
    if not isinstance(tables, list):
        raise ValueError(f"[{key}] is one table; write [[{key}]], because there may be several")
    return [_mapping(table, key) for table in tables]


def _mapping(found: object, key: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{key} is {found!r}; write it as a table, [{key}]")
    return found


def _check_keys(table: Mapping[str, Any], known: Collection[str], what: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{what} has the unknown key '{key}'; known are {', '.join(known)}")


def _folded(machines: tuple[Machine, ...]) -> Iterator[tuple[Machine, int]]:
    """Machines that differ in their number alone, once with how many there are; others with 0."""
    n = 0
    while n < len(machines):
        first, base = machines[n], machines[n].name.removesuffix("0")
        count = 0
        while n + count < len(machines) and _is_next(machines[n + count], first, f"{base}{count}"):
            count += 1
        many = count > 1 and base not in ("", first.name)
        yield (replace(first, name=base), count) if many else (first, 0)
        n += count if many else 1


def _is_next(machine: Machine, first: Machine, name: str) -> bool:
    return machine == replace(first, name=name) and (
        machine.times is first.times and machine.products == first.products
    )


def _of_machine(machine: Machine, count: int, files: _Files) -> Iterator[tuple[str, str]]:
    default = Machine("default")
    yield "name", _string(machine.name)
    if count:
        yield "count", str(count)
    for key, attribute in _MACHINE.items():
        value = getattr(machine, attribute)
        if value != getattr(default, attribute) or key == "threads":
            yield key, _string(value) if isinstance(value, str) else repr(value)
    limit = machine.memory_bytes
    yield "memory", _string(UNLIMITED if limit is None else quantity(limit, BYTES))
    yield from _of_units(machine, _MACHINE_UNITS, default)
    if machine.times is not None:
        yield "times", _string(files.times[id(machine.times)])
    if machine.products is not None:
        yield "products", _string(files.products[machine.products])


def _of_link(link: Link) -> Iterator[tuple[str, str]]:
    yield from _of_units(link, _LINK_UNITS, None)
    if not link.both_ways:
        yield "both_ways", "false"


def _of_units(
    found: Machine | Link, known: Mapping[str, tuple[str, Mapping[str, float]]], default: Machine | None
) -> Iterator[tuple[str, str]]:
    for key, (attribute, units) in known.items():
        value = getattr(found, attribute)
        if default is None or value != getattr(default, attribute):
            yield key, _string(quantity(value, units))


def _written_times(machines: tuple[Machine, ...], path: Path) -> dict[int, str]:
    """Writes each table of times once; the names of the files by the identity of the table."""
    tables = {id(machine.times): machine.times for machine in machines if machine.times is not None}
    files = {}
    for number, (identity, times) in enumerate(tables.items()):
        files[identity] = f"{path.stem}.times{number or ''}.json"
        write_times(times, path.with_name(files[identity]))
    return files


def _written_products(machines: tuple[Machine, ...], path: Path) -> dict[Products, str]:
    """Writes the choices of products, each once; the names of the files."""
    files: dict[Products, str] = {}
    for products in dict.fromkeys(machine.products for machine in machines):
        if products is not None:
            files[products] = f"{path.stem}.products{len(files) or ''}.json"
            write_products(products, path.with_name(files[products]))
    return files


def _table(head: str, entries: Collection[tuple[str, str]] | Iterator[tuple[str, str]]) -> str:
    return "\n".join([head, *(f"{key} = {value}" for key, value in entries)])


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
