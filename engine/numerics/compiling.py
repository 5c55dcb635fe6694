"""Numba's compiler, with names and a cache that are right across processes.

Numba links machine code by the names of symbols, and distinguishes functions of one name by a number, counted
in each process. So code that several processes have cached can share a symbol, and a caller that is
linked with both gets the wrong one, silently. Here numbers begin at a random place in each process, and the
symbols of this project's functions contain a fingerprint of their content.

The same fingerprint is the key of the cache (`code_files`). Numba's own cache knows only the file of the
function itself: after an edit of a function that it calls, it loads stale machine code.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core import bytecode, compiler, compiler_lock, serialize, sigutils
from numba.core import config as untyped_config
from numba.core import imputils as untyped_imputils
from numba.core.caching import NullCache
from numba.core.registry import CPUDispatcher

from partita.engine.numerics import code_files
from partita.engine.numerics.fingerprint import Unidentified, fingerprint, with_fingerprint

FunctionIdentity: Any = bytecode.FunctionIdentity
CompileResult: Any = compiler.CompileResult
normalize_signature: Any = sigutils.normalize_signature
dumps: Any = serialize.dumps
global_compiler_lock: Any = compiler_lock.global_compiler_lock
config: Any = untyped_config
imputils: Any = untyped_imputils

_FORM: Final = 1
"""Version of the files."""
_CALLED: Final = "partita_called_"
"""Prefix of the symbols that callers do not contain, but call by their address."""

_called: Final[dict[str, tuple[str, Any]]] = {}
"""Fingerprint and argument types of each function that is called by address, by its symbol."""


def _number_from_anywhere() -> None:
    """Makes Numba number functions from a place that no other process has."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))


_number_from_anywhere()
os.register_at_fork(after_in_child=_number_from_anywhere)


class CompiledFunction(CPUDispatcher):
    """A function that is compiled at its first call for each combination of types, or loaded from the cache.

    Args:
        py_func: in plain Python.
        locals: types of variables, as for numba.njit.
        targetoptions: of numba.njit.
        called: whether compiled callers call it by its address. Otherwise Numba copies its code into every
            caller, and optimises it there anew: faster to call, slower to compile.
    """

    def __init__(
        self,
        py_func: Callable[..., Any],
        locals: Mapping[str, Any] | None = None,
        targetoptions: Mapping[str, Any] | None = None,
        *,
        called: bool = False,
    ) -> None:
        super().__init__(py_func, dict(locals or {}), {"nopython": True, **(targetoptions or {})})
        self._is_called, self._plain_name = called, py_func.__qualname__
        self._cache = _Kept(self)

    def compile(self, sig: Any) -> Any:
        """Compiles for argument types, or loads the result of another process, or waits for it."""
        with global_compiler_lock:
            arguments = tuple(normalize_signature(sig)[0])
            known: Any = self.overloads.get(arguments)
            if known is not None:
                return known.entry_point
            with self._alone(arguments):
                entry = super().compile(sig)
            if self._is_called:
                self._call_by_address(arguments)
            return entry

    @contextmanager
    def _alone(self, arguments: tuple[Any, ...]) -> Iterator[None]:
        path = self._cache.path(arguments)
        if path is None or path.exists():
            yield
            return
        with code_files.alone(path):
            yield

    def fingerprint(self) -> str | None:
        """Returns the function's digest, part of its symbols from then on; None without one."""
        try:
            digest = fingerprint(self)
        except Unidentified:
            return None
        self.py_func.__qualname__ = f"{self._plain_name}_{digest[:16]}"
        return digest

    def _call_by_address(self, arguments: tuple[Any, ...]) -> None:
        """Makes compiled callers refer to a symbol that is known by its address."""
        result: Any = self.overloads[arguments]
        context: Any = self.targetctx
        digest = self.fingerprint()
        if digest is None:
            return
        symbol = f"{_CALLED}{self.py_func.__name__}_{_digest(digest, str(arguments))}"
        address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
        binding.add_symbol(symbol, address)
        _called[symbol] = digest, arguments
        described = copy.copy(result.fndesc)
        described.mangled_name = symbol
        context.remove_user_function(result.entry_point)
        context._defns[result.entry_point].append(_call_of(described), described.argtypes)


def _call_of(described: Any) -> Callable[..., Any]:
    """Calls as Numba's `user_function`, without checking for an exception.

    Behind such an exit Numba would not find out that arrays stay alive, and would count their users anew.
    """

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = context.declare_function(builder.module, described)
        returns, takes = described.restype, described.argtypes
        _, value = context.call_conv.call_function(builder, function, returns, takes, arguments)
        return imputils.impl_ret_new_ref(context, builder, returns, value)

    vars(call)["signature"], vars(call)["libs"] = described.argtypes, ()
    return call


class _Kept(NullCache):
    """The cache of a function's compiled forms."""

    def __init__(self, function: CompiledFunction) -> None:
        self._function = function

    def path(self, arguments: Any) -> Path | None:
        """Returns the file for argument types; None where nothing can be kept."""
        digest, folder = self._function.fingerprint(), code_files.code_folder()
        if digest is None or folder is None:
            return None
        context: Any = self._function.targetctx
        processor = repr(context.codegen().magic_tuple())  # its name and features
        key = _digest(digest, str(tuple(arguments)), processor, *_surroundings())
        return code_files.path_of(folder, self._function._plain_name, key)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Loads what is kept for a signature; None if nothing is, or if the file is of no use."""
        target_context.refresh()
        arguments = normalize_signature(sig)[0]
        path = self.path(arguments)
        data = None if path is None else code_files.read(path)
        if data is None:
            return None
        try:
            needed, kept = pickle.loads(data)
            for digest, types in needed:
                with_fingerprint(digest).compile(types)
            return CompileResult._rebuild(target_context, *kept)
        except Exception:  # noqa: BLE001 - what a broken file makes Numba raise can be anything
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps what was compiled for a signature."""
        if data.lifted or data.library.has_dynamic_globals:  # addresses of this process
            return
        path = self.path(normalize_signature(sig)[0])
        if path is not None:
            names = [function.name for function in data.library._final_module.functions]
            needed = [_called[name] for name in names if name.startswith(_CALLED)]
            code_files.write(path, dumps((needed, data._reduce())))


def _digest(*texts: str) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(f"{len(text)}:{text}".encode())
    return whole.hexdigest()[:32]


@cache
def _surroundings() -> tuple[str, ...]:
    """Returns everything else that determines the code of a function."""
    vectorising = (config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.USING_SVML)
    settings = (config.OPT, *vectorising, config.BOUNDSCHECK)
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
    return (str(_FORM), *versions, repr(settings))
