"""An audit of machine code: which functions are behind the symbols that processes have compiled and kept.

Numba joins code by symbol alone. So no two functions may have one, whoever compiled them: ours, or those of
Numba itself, which are compiled into ours.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import pickle
import re
from collections import defaultdict
from pathlib import Path
from types import FunctionType
from typing import Any

from llvmlite import binding
from numba.core import bytecode, itanium_mangler

from partita.engine.numerics import code_files

Identity: Any = bytecode.FunctionIdentity


def record(log: Path) -> None:
    """Lets this process, and its forks, write down each function that they compile, with its symbol."""
    original = Identity.from_function.__func__

    def from_function(cls: Any, function: Any) -> Any:
        found = original(cls, function)
        line = json.dumps(
            [stem_of(f"{found.modname}.{found.func_qualname}", found.unique_id), content_of(function)]
        )
        with log.open("a") as lines:
            lines.write(f"{line}\n")
        return found

    Identity.from_function = classmethod(from_function)


def stem_of(name: str, number: int) -> str:
    """First part of a function's symbols, which argument types follow."""
    mangled: Any = itanium_mangler.mangle_identifier
    return f"_Z{mangled(name, uid=number)}".removesuffix("E")


def content_of(function: Any) -> str:
    """A digest that is independent of ours: the function's code, and what it closes over."""
    function = getattr(function, "py_func", function)
    whole = hashlib.sha256(marshal.dumps(function.__code__.replace(co_filename="")))
    for cell in function.__closure__ or ():
        value = getattr(cell.cell_contents, "py_func", cell.cell_contents)
        is_function = isinstance(value, FunctionType) and value is not function
        whole.update(
            (content_of(value) if is_function else re.sub(" at 0x[0-9a-f]+", "", repr(value))).encode()
        )
    return whole.hexdigest()


def recorded(log: Path) -> dict[str, set[str]]:
    """The contents behind each stem, over all processes."""
    found = defaultdict(set)
    for line in log.read_text().splitlines():
        stem, content = json.loads(line)
        found[stem].add(content)
    return found


def kept(folder: Path) -> set[str]:
    """Every symbol of a function of Python in the files of a cache."""
    found = set()
    for path in folder.glob("*.nbc"):
        data = code_files.read(path)
        assert data is not None, path
        _, (library, *_) = pickle.loads(data)
        module = binding.parse_bitcode(library[2][1])
        found |= {function.name for function in module.functions if not function.is_declaration}
    return {
        name for name in found if name.startswith("_ZN") and not name.startswith(("_ZN7cpython", "_ZN5cfunc"))
    }


def audit(folder: Path, log: Path) -> None:
    """Fails on a symbol of two functions, and on one of which nobody has written down the function."""
    stems = recorded(log)
    shared = {stem: contents for stem, contents in stems.items() if len(contents) > 1}
    assert not shared, f"two functions have one symbol: {sorted(shared)}"
    symbols = kept(folder)
    unknown = {name for name in symbols if not any(name.startswith(stem) for stem in stems)}
    assert symbols and not unknown, f"nobody has compiled {sorted(unknown)}"
