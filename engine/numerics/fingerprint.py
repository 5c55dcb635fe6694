"""A digest of everything in Python that determines the compiled form of a function.

The digest covers the function's bytecode and the content of everything that the function names: default
values, closures, globals, the functions and classes that are called and, in turn, everything that those name.
Objects of Python, NumPy, Numba or
llvmlite count by their name, because their versions count elsewhere. Names of files and numbers of lines do
not count, nor does the process: two checkouts with the same functions have the same digests. Names of modules
do, as the kept form of a function refers to them.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.extending import _Intrinsic as Intrinsic  # type: ignore[attr-defined]

_BY_NAME: Final = frozenset({*sys.stdlib_module_names, "numpy", "numba", "llvmlite"}) - {"__main__"}
"""Packages whose version is part of every key."""
_BY_REPR: Final = (NoneType, bool, int, float, complex, str, bytes, EllipsisType, range, slice, np.dtype)
_NOT_OF_THE_CLASS: Final = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__"}
    | {"__static_attributes__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__"}
    | {"__dataclass_fields__", "__dataclass_params__", "__slots__"}
)
_OF_NAMED_TUPLES: Final = frozenset(vars(collections.namedtuple("Empty", "")))
"""Attributes that every named tuple has besides its fields."""

Found: TypeAlias = tuple[bytes, int]
"""A digest, and the depth of the outermost unfinished definition that it refers to."""
_WHOLE: Final = sys.maxsize
"""The depth of a digest that refers to nothing unfinished."""

_known: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()
_compiled: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class Unidentified(Exception):
    """A function uses a value whose content cannot be compared across processes."""


def fingerprint(function: Any) -> str:
    """Returns the digest of a function, plain or compiled: 64 hexadecimal digits.

    Each function and class is read once in a process, at its first use; a later change of a global is not
    seen, as Numba sees none.

    Raises:
        Unidentified: the function uses a value that has no content to compare, such as an open file.
    """
    try:
        found = _of(function, {}, frozenset())[0].hex()
    except RecursionError as error:
        raise Unidentified("it uses values that contain themselves") from error
    return found


def with_fingerprint(digest: str) -> Any:
    """Returns the compiled function that has this digest, if this process has found it; else None."""
    return _compiled.get(digest)


def _of(value: Any, unfinished: dict[int, int], names: frozenset[str]) -> Found:
    """Finds the digest of a value.

    Args:
        value: any value that a function's code refers to.
        unfinished: the depth of each function and class, by its id, that is being read: code may recurse.
        names: names that the code uses; only these attributes of a module count.
    """
    if isinstance(value, _BY_REPR):
        return _mixed(type(value).__name__, repr(value))
    if isinstance(value, (FunctionType, type, Dispatcher, Intrinsic)):
        return _of_definition(value, unfinished)
    if isinstance(value, ModuleType):
        if _is_by_name(value.__name__):
            return _mixed("module", value.__name__)
        used = sorted(name for name in names if name in vars(value))
        parts = [(name, vars(value)[name]) for name in used if vars(value)[name] is not value]
        return _all("module", [value.__name__, *parts], unfinished, names)
    return _of_data(value, unfinished, names)


def _of_data(value: Any, unfinished: dict[int, int], names: frozenset[str]) -> Found:
    """Finds the digest of a value that is neither code nor a module."""
    kind = type(value)
    if isinstance(value, (tuple, list)):
        return _all("sequence", [kind, *value], unfinished, names)
    if isinstance(value, (dict, MappingProxyType)):
        return _all("mapping", [kind, *(part for pair in value.items() for part in pair)], unfinished, names)
    if isinstance(value, (set, frozenset)):
        parts = sorted(_of(part, unfinished, names) for part in value)
        return _joined("set", parts)
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return _mixed("array", str(value.dtype), str(value.shape), np.asarray(value).tobytes())
    if isinstance(value, (types.Type, ir.Type)):
        return _mixed("type", kind.__name__, str(value))
    if isinstance(value, (BuiltinFunctionType, np.ufunc)):
        return _mixed("built in", str(getattr(value, "__module__", "")), value.__name__)
    if isinstance(value, (property, staticmethod, classmethod, functools.cached_property)):
        names_of = ("fget", "fset", "fdel", "func", "__func__")
        return _all("property", [kind, *(getattr(value, name, None) for name in names_of)], unfinished, names)
    if isinstance(value, MethodType):
        return _all("method", [value.__func__, value.__self__], unfinished, names)
    if isinstance(value, functools.partial):
        return _all("partial", [value.func, value.args, value.keywords], unfinished, names)
    if isinstance(value, enum.Enum):
        return _all("enum", [kind, value.value], unfinished, names)
    if dataclasses.is_dataclass(value):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return _all("dataclass", [kind, *fields], unfinished, names)
    if _is_by_name(kind.__module__) and " at 0x" not in (text := repr(value)):
        return _mixed("value", kind.__module__, kind.__qualname__, text)
    raise Unidentified(f"a {kind.__module__}.{kind.__qualname__} has no content that processes could compare")


def _of_definition(value: Any, unfinished: dict[int, int]) -> Found:
    """Finds the digest of a function or class, once."""
    if not isinstance(value, (Dispatcher, Intrinsic)) and _is_by_name(value.__module__ or ""):
        return _mixed("definition", value.__module__, value.__qualname__)
    if value in _known:
        return _known[value], _WHOLE
    depth, key = len(unfinished), id(value)
    if key in unfinished:
        return _mixed("unfinished", str(depth - unfinished[key]))[0], unfinished[key]
    unfinished[key] = depth
    try:
        digest, outermost = _of_content(value, unfinished)
    finally:
        del unfinished[key]
    if outermost < depth:  # the digest is valid only inside the unfinished definitions
        return digest, outermost
    _known[value] = digest
    if isinstance(value, Dispatcher):
        _compiled[digest.hex()] = value
    return digest, _WHOLE


def _of_content(value: Any, unfinished: dict[int, int]) -> Found:
    if isinstance(value, Dispatcher):
        return _all("compiled", [value.py_func, value.targetoptions, value.locals], unfinished)
    if isinstance(value, Intrinsic):
        return _all("intrinsic", [value._defn, value._prefer_literal], unfinished)
    if isinstance(value, type):
        fields = getattr(value, "_fields", ()), getattr(value, "_field_defaults", ())
        given = {*_OF_NAMED_TUPLES, *fields[0]} if issubclass(value, tuple) else set()
        skipped = _NOT_OF_THE_CLASS | given
        own = {name: part for name, part in vars(value).items() if name not in skipped}
        slots = sorted(name for name, part in own.items() if type(part).__name__.endswith("_descriptor"))
        kept = [(name, part) for name, part in own.items() if name not in slots]
        content = [value.__module__, value.__qualname__, value.__bases__, fields, slots, *kept]
        return _all("class", content, unfinished)
    code, names = value.__code__, frozenset(_names(value.__code__))
    around = sorted(name for name in names if name in value.__globals__)
    parts: list[Any] = [
        value.__module__,
        _digest_of_code(code),
        value.__defaults__,
        value.__kwdefaults__,
        *around,
        *(value.__globals__[name] for name in around),
        *_cells(value),
        {name: part for name, part in vars(value).items() if not name.startswith("__")},
    ]
    return _all("function", parts, unfinished, names)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield "nothing in a cell"


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names of globals, and of attributes, which may be any."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _digest_of_code(code: CodeType) -> bytes:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [_of_constant(constant) for constant in code.co_consts]
    table = getattr(code, "co_exceptiontable", b"")
    return _mixed("code", code.co_code, repr(counts), repr(variables), table, *constants)[0]


def _of_constant(constant: Any) -> bytes:
    """Finds the digest of a constant in code; a frozenset's order differs from process to process."""
    if isinstance(constant, CodeType):
        return _digest_of_code(constant)
    if isinstance(constant, frozenset):
        return _mixed("frozenset", *sorted(map(_of_constant, constant)))[0]
    if isinstance(constant, tuple):
        return _mixed("tuple", *map(_of_constant, constant))[0]
    return _mixed(type(constant).__name__, repr(constant))[0]


def _all(
    tag: str, values: Iterable[Any], unfinished: dict[int, int], names: frozenset[str] = frozenset()
) -> Found:
    return _joined(tag, [_of(value, unfinished, names) for value in values])


def _joined(tag: str, found: list[Found]) -> Found:
    digest, _ = _mixed(tag, *(part for part, _ in found))
    return digest, min((outermost for _, outermost in found), default=_WHOLE)


def _mixed(*parts: str | bytes) -> Found:
    """Mixes some texts, which cannot run into each other, into a digest."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.digest(), _WHOLE


def _is_by_name(module: str) -> bool:
    return module.partition(".")[0] in _BY_NAME
