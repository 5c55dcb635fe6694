"""Messages of any kind with drawn fields, and bytes with every kind of damage: what hostile members send.

The fuzz tests feed them to everything that reads, and a simulated `hostile` member sends them to machines.
This module must not know what a message means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, Final

import msgspec
from msgspec import inspect

from partita.engine.transport.wire import CHUNK_BYTES, INLINE_BYTES

_NUMBERS: Final = (
    0,
    1,
    2,
    3,
    5,
    64,
    100,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**64 - 1,
)
_FLOATS: Final = (0.0, -1.0, 0.5, 1e308, float("inf"), float("-inf"), float("nan"))
_TEXTS: Final = ("", "x", "h1", "part 0.0", "shard 0", "coordinator", "../../etc", "\x1b[2J", "ü" * 300)
_BYTES: Final = (b"", b"x", bytes(16), bytes(32), b"\xc1" * 5, bytes(INLINE_BYTES), bytes(INLINE_BYTES + 1))

_encoder: Final = msgspec.msgpack.Encoder()


def drawn(kinds: Sequence[type], random: Random) -> bytes:
    """Returns the bytes of a message of one of the kinds (MessagePack); its numbers may be out of bounds."""
    return _encoder.encode(_structs(random.choice(kinds))(random))


def mutated(data: bytes, random: Random) -> bytes:
    """Returns the bytes with a few kinds of damage, or as they are."""
    for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0:
                data = data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]
            case 3:
                data = data[:at] + data[at + random.randrange(1, 5) :]
            case 4:
                data = data[:at] + data[random.randrange(len(data) + 1) :] + data[at:]
            case _:
                data = data + data
    return data


@cache
def _structs(kind: type) -> Callable[[Random], Any]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    fields = {field.name: _values(field.type) for field in found.fields}
    return lambda random: kind(**{name: value(random) for name, value in fields.items()})


def _values(kind: inspect.Type) -> Callable[[Random], Any]:
    """Anything of a field's type, without regard to bounds."""
    match kind:
        case inspect.IntType():
            return lambda random: random.choice(_NUMBERS)
        case inspect.FloatType():
            return lambda random: random.choice(_FLOATS)
        case inspect.StrType():
            return lambda random: random.choice(_TEXTS)
        case inspect.BytesType():
            return lambda random: random.choice(_BYTES)
        case inspect.BoolType():
            return lambda random: random.random() < 0.5
        case inspect.NoneType():
            return lambda random: None
        case inspect.StructType():
            return _structs(kind.cls)
        case inspect.LiteralType():
            return lambda random: random.choice(kind.values)
    return _collections(kind)


def _collections(kind: inspect.Type) -> Callable[[Random], Any]:
    match kind:
        case inspect.DictType():
            key, value = _values(kind.key_type), _values(kind.value_type)
            return lambda random: {key(random): value(random) for _ in range(random.randrange(3))}
        case inspect.VarTupleType() | inspect.ListType() | inspect.FrozenSetType():
            item, made = _values(kind.item_type), _MADE[type(kind)]
            return lambda random: made(item(random) for _ in range(random.randrange(4)))
        case inspect.TupleType():
            items = [_values(item) for item in kind.item_types]
            return lambda random: tuple(item(random) for item in items)
        case inspect.UnionType():
            either = [_values(one) for one in kind.types]
            return lambda random: random.choice(either)(random)
    raise AssertionError(kind)


_MADE: Final[dict[type, Callable[..., Any]]] = {
    inspect.VarTupleType: tuple,
    inspect.ListType: list,
    inspect.FrozenSetType: frozenset,
}
