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
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, get_args

import msgspec

from partita.layers.checks import check_whole
from partita.partitioner.cluster.kernel_times import read_times, write_times
from partita.partitioner.cluster.machine import SHARED_MEMORY, Between, Link, Machine
from partita.partitioner.cluster.products_file import read_products, write_products
from partita.partitioner.text import BYTES, BYTES_PER_S, FLOPS_PER_S, SECONDS, parse_quantity, quantity

UNLIMITED: Final = "unlimited"


class _Quantity(float):
    """A number that the file gives with its unit."""

    units: ClassVar[Mapping[str, float]]

    def __str__(self) -> str:
        return UNLIMITED if self == math.inf else quantity(float(self), self.units)


class _Seconds(_Quantity):
    units = SECONDS


class _Bytes(_Quantity):
    units = BYTES


class _BytesPerS(_Quantity):
    units = BYTES_PER_S


class _FlopsPerS(_Quantity):
    units = FLOPS_PER_S


_QUANTITIES: Final = (_Seconds, _Bytes, _BytesPerS, _FlopsPerS)


class _Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Fields have the names of `Machine` and `Link`; None leaves out their key."""

    def settings(self, *others: str) -> dict[str, Any]:
        """The keys that the table has, without these others."""
        found = msgspec.structs.asdict(self)
        return {name: value for name, value in found.items() if value is not None and name not in others}


class _LinkTable(_Table, kw_only=True):
    latency_s: _Seconds = msgspec.field(name="latency")
    bytes_per_s: _BytesPerS = msgspec.field(name="bandwidth")
    send_s: _Seconds | None = msgspec.field(name="send", default=None)
    receive_s: _Seconds | None = msgspec.field(name="receive", default=None)
    send_bytes_per_s: _BytesPerS | None = msgspec.field(name="send_bandwidth", default=None)
    receive_bytes_per_s: _BytesPerS | None = msgspec.field(name="receive_bandwidth", default=None)
    both_ways: Any = None


class _BetweenTable(_LinkTable, kw_only=True):
    hosts: Any = None


class _MachineTable(_Table, kw_only=True):
    name: Any = None
    count: Any = None
    memory_bytes: _Bytes = msgspec.field(name="memory")
    cores: Any = None
    threads: Any = None
    device: Any = None
    host: Any = None
    kind: Any = None
    speed: Any = None
    flops_per_s: _FlopsPerS | None = msgspec.field(name="flops", default=None)
    bytes_per_s: _BytesPerS | None = msgspec.field(name="memory_bandwidth", default=None)
    instruction_s: _Seconds | None = msgspec.field(name="instruction", default=None)
    step_s: _Seconds | None = msgspec.field(name="step", default=None)
    cold_s: _Seconds | None = msgspec.field(name="cold", default=None)
    times: Any = None
    products: Any = None


_EXAMPLES: Final = {
    "memory": f'"64 GiB", or "{UNLIMITED}"',
    "latency": '"50 us"',
    "bandwidth": '"10 Gbit/s"',
}
_TABLES: Final = ("machine", "link", "between", "shared_memory")
T = TypeVar("T", bound=_Table)


def read_parts(path: Path) -> dict[str, Any]:
    """Reads the arguments of a `Cluster`.

    Raises:
        ValueError: it has a mistake, said in one sentence that begins with the file.
        OSError: it cannot be read.
    """
    try:
        return _arguments(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}; correct it") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_parts(
    path: Path, machines: tuple[Machine, ...], link: Link | None, between: tuple[Between, ...], memory: Link
) -> None:
    """Writes a file that `read_parts` reads, and beside it one for each table of times or products.

    Raises:
        OSError: one cannot be written.
    """
    files = _write_beside(machines, path)
    tables = [("[[machine]]", _machine_table(*each, files)) for each in _folded(machines)]
    if link is not None:
        tables.append(("[link]", _written(_LinkTable, link)))
    for found in between:
        tables.append(
            ("[[between]]", {"hosts": [found.one, found.other], **_written(_LinkTable, found.link)})
        )
    tables.append(("[shared_memory]", _written(_LinkTable, memory)))
    written = (
        "\n".join([head, *(f"{key} = {_toml(table[key])}" for key in table)]) for head, table in tables
    )
    path.write_text("\n\n".join(written) + "\n", encoding="utf-8")


def _arguments(file: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    for key in file.keys() - set(_TABLES):
        raise ValueError(f"the file has the unknown key '{key}'; known are {', '.join(_TABLES)}")
    machines = _several(file, "machine")
    if not machines:
        raise ValueError("there is no machine; write at least one table [[machine]]")
    read = {
        "times": cache(lambda name: read_times(folder / name)),
        "products": cache(lambda name: read_products(folder / name)),
    }
    return {
        "machines": tuple(machine for table in machines for machine in _machines(table, read)),
        "link": _link(file["link"], "link") if "link" in file else None,
        "between": tuple(map(_between, _several(file, "between"))),
        "memory": _link(file["shared_memory"], "shared_memory") if "shared_memory" in file else SHARED_MEMORY,
    }


def _several(file: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(file.get(key, []), list):
        raise ValueError(f"[{key}] is one table; write [[{key}]], because there may be several")
    return list(file.get(key, []))


def _read(kind: type[T], table: Any, key: str, what: str) -> T:
    """Reads a table of the file; errors name it as `what`."""
    if not isinstance(table, dict):
        raise ValueError(f"{key} is {table!r}; write it as a table, [{key}]")
    try:
        return msgspec.convert(table, kind, dec_hook=_parse)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at `$.")
        path = path.rstrip("`")
        name = rule.split("`")[-2] if "`" in rule else ""
        if rule.startswith("Object contains unknown field"):
            known = ", ".join(kind.__struct_encode_fields__)
            raise ValueError(f"{what} has the unknown key '{name}'; known are {known}") from error
        if rule.startswith("Object missing required field"):
            example = f"write for example {name} = {_EXAMPLES[name]}"
            raise ValueError(f"{what} has no {name}; {example}") from error
        raise ValueError(f"{what}: the {path.replace('_', ' ')} is {table[path]!r}; {rule}") from error


def _parse(kind: type[_Quantity], written: object) -> _Quantity:
    if kind is _Bytes and written == UNLIMITED:
        return kind(math.inf)
    return kind(parse_quantity(written, kind.units))


def _link(table: Any, key: str) -> Link:
    return Link(**_read(_LinkTable, table, key, f"the {key.replace('_', ' ')}").settings())


def _between(table: Any) -> Between:
    hosts = table.get("hosts") if isinstance(table, dict) else ()
    if not isinstance(hosts, list) or len(hosts) != 2:
        raise ValueError(f'a link is between {hosts!r}; write for example hosts = ["a", "b"]')
    found = _read(_BetweenTable, table, "between", f"the link between '{hosts[0]}' and '{hosts[1]}'")
    return Between(hosts[0], hosts[1], Link(**found.settings("hosts")))


def _machines(given: Any, read: Mapping[str, Any]) -> Iterator[Machine]:
    """The machine of a table, or several of its kind."""
    name = given.get("name") if isinstance(given, dict) else "?"
    if not isinstance(name, str) or not name:
        raise ValueError(f'a machine has the name {name!r}; write for example name = "worker"')
    table = _read(_MachineTable, given, "machine", f"machine '{name}'")
    settings = table.settings("count", "memory_bytes")
    if table.cores is not None:
        settings.setdefault("threads", table.cores)
    if table.memory_bytes < math.inf:
        settings["memory_bytes"] = round(table.memory_bytes)
    for what in settings.keys() & read.keys():
        if not isinstance(settings[what], str):
            raise ValueError(f"machine '{name}': the {what} are {settings[what]!r}; write the name of a file")
        settings[what] = read[what](settings[what])
    machine = Machine(**settings)
    if table.count is None:
        yield machine
        return
    for n in range(check_whole(table.count, f"machine '{name}': the count is")):
        yield replace(machine, name=f"{name}{n}")


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
    return machine == replace(first, name=name) and machine.times is first.times


def _written(kind: type[_Table], found: Machine | Link, default: Machine | None = None) -> dict[str, Any]:
    """The keys of a table, without those whose value is the default's."""
    table: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        value = getattr(found, field.name, None)
        if value is None or value is True or (default is not None and value == getattr(default, field.name)):
            continue
        unit = next((each for each in (field.type, *get_args(field.type)) if each in _QUANTITIES), None)
        table[field.encode_name] = value if unit is None else str(unit(value))
    return table


def _machine_table(machine: Machine, count: int, files: Mapping[object, str]) -> dict[str, Any]:
    limit = math.inf if machine.memory_bytes is None else machine.memory_bytes
    table = {"name": machine.name, "count": count} if count else {"name": machine.name}
    table |= {"memory": str(_Bytes(limit)), "threads": machine.threads}
    table |= _written(_MachineTable, machine, Machine("default"))
    beside = {"times": machine.times, "products": machine.products}
    return table | {what: files[value] for what, value in beside.items() if value is not None}


def _write_beside(machines: tuple[Machine, ...], path: Path) -> dict[object, str]:
    """Writes each table of times and of products once; returns the names of their files."""
    files: dict[object, str] = {}
    writers: dict[str, Callable[[Any, Path], None]] = {"times": write_times, "products": write_products}
    for what, write in writers.items():
        found = dict.fromkeys(getattr(machine, what) for machine in machines)
        for number, value in enumerate(value for value in found if value is not None):
            files[value] = f"{path.stem}.{what}{number or ''}.json"
            write(value, path.with_name(files[value]))
    return files


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
