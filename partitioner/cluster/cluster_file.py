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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from partita.layers.checks import check_whole
from partita.partitioner.cluster.link import SHARED_MEMORY, Between, Link
from partita.partitioner.cluster.link_table import read_messages, written_messages
from partita.partitioner.cluster.machine import Machine
from partita.partitioner.cluster.measured_files import read_products, read_times, write_products, write_times
from partita.partitioner.text import BYTES, BYTES_PER_S, FLOPS_PER_S, SECONDS, parse_quantity, quantity

UNLIMITED: Final = "unlimited"

_Keys: TypeAlias = Mapping[str, tuple[str, Mapping[str, float] | None]]
"""Keys of a table: the field of `Machine` or `Link` that each gives, and the units of a quantity."""
_LINK: Final[_Keys] = {
    "latency": ("latency_s", SECONDS),
    "bandwidth": ("bytes_per_s", BYTES_PER_S),
    "send": ("send_s", SECONDS),
    "receive": ("receive_s", SECONDS),
    "send_bandwidth": ("send_bytes_per_s", BYTES_PER_S),
    "receive_bandwidth": ("receive_bytes_per_s", BYTES_PER_S),
    "both_ways": ("both_ways", None),
    "messages": ("table", None),
}
_BETWEEN: Final[_Keys] = {**_LINK, "hosts": ("hosts", None), "one_way": ("one_way", None)}
_BY_TABLE: Final = ("bandwidth", "send", "receive", "send_bandwidth", "receive_bandwidth")
"""Keys of a link that follow from its messages, if it has a table of these."""
_MACHINE: Final[_Keys] = {
    "name": ("name", None),
    "count": ("count", None),
    "memory": ("memory_bytes", BYTES),
    **{name: (name, None) for name in ("cores", "threads", "device", "host", "kind", "worker", "speed")},
    "flops": ("flops_per_s", FLOPS_PER_S),
    "memory_bandwidth": ("bytes_per_s", BYTES_PER_S),
    "instruction": ("instruction_s", SECONDS),
    "step": ("step_s", SECONDS),
    "cold": ("cold_s", SECONDS),
    "times": ("times", None),
    "products": ("products", None),
}
_REQUIRED: Final = {
    "memory": f'"64 GiB", or "{UNLIMITED}"',
    "latency": '"50 us"',
    "bandwidth": '"10 Gbit/s"',
}
"""Keys that their tables must have, with an example."""
_TABLES: Final = ("machine", "link", "between", "shared_memory")


def read_parts(path: Path) -> dict[str, Any]:
    """Reads the arguments of a `Cluster`; the ValueError of a mistake does not name the file."""
    file = tomllib.loads(path.read_text(encoding="utf-8"))
    for key in file.keys() - set(_TABLES):
        raise ValueError(f"the file has the unknown key '{key}'; known are {', '.join(_TABLES)}")
    machines = _several(file, "machine")
    if not machines:
        raise ValueError("there is no machine; write at least one table [[machine]]")
    read = {
        "times": cache(lambda name: read_times(path.parent / name)),
        "products": cache(lambda name: read_products(path.parent / name)),
    }
    return {
        "machines": tuple(machine for table in machines for machine in _machines(table, read)),
        "link": _link(file["link"], "link") if "link" in file else None,
        "between": tuple(map(_between, _several(file, "between"))),
        "memory": _link(file["shared_memory"], "shared_memory") if "shared_memory" in file else SHARED_MEMORY,
    }


def write_parts(
    path: Path, machines: tuple[Machine, ...], link: Link | None, between: tuple[Between, ...], memory: Link
) -> None:
    """Writes a file that `read_parts` reads, and beside it one for each table of times or products."""
    files = _write_beside(machines, path)
    tables = [("[[machine]]", _machine_table(*each, files)) for each in _folded(machines)]
    if link is not None:
        tables.append(("[link]", _link_table(link)))
    for found in between:
        one_way = {"one_way": True} if found.one_way else {}
        ends = {"hosts": [found.one, found.other], **one_way}
        tables.append(("[[between]]", ends | _link_table(found.link)))
    tables.append(("[shared_memory]", _link_table(memory)))
    written = (
        "\n".join([head, *(f"{key} = {_toml(table[key])}" for key in table)]) for head, table in tables
    )
    path.write_text("\n\n".join(written) + "\n", encoding="utf-8")


def _several(file: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(file.get(key, []), list):
        raise ValueError(f"[{key}] is one table; write [[{key}]], because there may be several")
    return list(file.get(key, []))


def _read(table: Any, key: str, what: str, keys: _Keys) -> dict[str, Any]:
    """Reads a table of the file; returns its values by their fields. Errors name it as `what`."""
    if not isinstance(table, dict):
        raise ValueError(f"{key} is {table!r}; write it as a table, [{key}]")
    for name in table:
        if name not in keys:
            raise ValueError(f"{what} has the unknown key '{name}'; known are {', '.join(keys)}")
    for name, example in _REQUIRED.items():
        if name in keys and name not in table:
            raise ValueError(f"{what} has no {name}; write for example {name} = {example}")
    return {keys[name][0]: _value(written, keys[name][1], name, what) for name, written in table.items()}


def _value(written: Any, units: Mapping[str, float] | None, name: str, what: str) -> Any:
    if units is None:
        return written
    if units is BYTES and written == UNLIMITED:
        return None
    try:
        number = parse_quantity(written, units)
    except ValueError as error:
        raise ValueError(f"{what}: the {name.replace('_', ' ')} is {written!r}; {error}") from error
    return round(number) if units is BYTES else number


def _link(table: Any, key: str) -> Link:
    return Link(**_link_settings(table, key, f"the {key.replace('_', ' ')}", _LINK))


def _link_settings(table: Any, key: str, what: str, keys: _Keys) -> dict[str, Any]:
    """Reads the arguments of a link, with a table of messages or by its bandwidth."""
    if not isinstance(table, dict) or "messages" not in table:
        return _read(table, key, what, keys)
    for name in _BY_TABLE:
        if name in table:
            raise ValueError(f"{what} has messages and {name}, which follows from them; leave one out")
    settings = _read(table, key, what, {name: keys[name] for name in keys if name != "bandwidth"})
    return settings | {"table": read_messages(settings["table"], what)}


def _between(table: Any) -> Between:
    hosts = table.get("hosts") if isinstance(table, dict) else ()
    if not isinstance(hosts, list) or len(hosts) != 2:
        raise ValueError(f'a link is between {hosts!r}; write for example hosts = ["a", "b"]')
    what = f"the link between '{hosts[0]}' and '{hosts[1]}'"
    settings = _link_settings(table, "between", what, _BETWEEN)
    one, other = settings.pop("hosts")
    one_way = settings.pop("one_way", False)
    return Between(one, other, Link(**settings), one_way)


def _machines(given: Any, read: Mapping[str, Any]) -> Iterator[Machine]:
    """The machine of a table, or several of its kind."""
    name = given.get("name") if isinstance(given, dict) else "?"
    if not isinstance(name, str) or not name:
        raise ValueError(f'a machine has the name {name!r}; write for example name = "worker"')
    settings = _read(given, "machine", f"machine '{name}'", _MACHINE)
    count = settings.pop("count", None)
    if "cores" in settings:
        settings.setdefault("threads", settings["cores"])
    for what in settings.keys() & read.keys():
        if not isinstance(settings[what], str):
            raise ValueError(f"machine '{name}': the {what} are {settings[what]!r}; write the name of a file")
        settings[what] = read[what](settings[what])
    machine = Machine(**settings)
    if count is None:
        yield machine
        return
    for n in range(check_whole(count, f"machine '{name}': the count is")):
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
    measured = machine.times is first.times and machine.products is first.products
    return measured and machine == replace(first, name=name)


def _written(found: Machine | Link, keys: _Keys, default: Machine | None = None) -> dict[str, Any]:
    """The keys of a table, without those whose value is the default's."""
    table: dict[str, Any] = {}
    for name, (field, units) in keys.items():
        value = getattr(found, field, None)
        if value is None or value is True or (default is not None and value == getattr(default, field)):
            continue
        table[name] = value if units is None else quantity(value, units)
    return table


def _link_table(link: Link) -> dict[str, Any]:
    written = _written(link, {name: _LINK[name] for name in _LINK if name != "messages"})
    if not link.table:
        return written
    found = {name: value for name, value in written.items() if name not in _BY_TABLE}
    return found | {"messages": written_messages(link.table)}


def _machine_table(machine: Machine, count: int, files: Mapping[object, str]) -> dict[str, Any]:
    table = {"name": machine.name, "count": count} if count else {"name": machine.name}
    table |= {"memory": UNLIMITED, "threads": machine.threads}
    table |= _written(machine, _MACHINE, Machine("default"))
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
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "\n".join(["[", *(f"    {_toml(row)}," for row in value), "]"])
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
