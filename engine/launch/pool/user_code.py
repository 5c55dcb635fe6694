"""The user's own modules travel with their functions: a worker need not have the files."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import cloudpickle
from cloudpickle.cloudpickle import list_registry_pickle_by_value


@contextmanager
def carried_by_value() -> Iterator[None]:
    """Lets cloudpickle write the functions of the user's modules by value, while a run lasts.

    A module is the user's if it was imported from a file outside of Python's own and the installed packages'
    folders, and is not Partita's. What an installed package defines is imported where it is used.
    """
    registered = list_registry_pickle_by_value()
    found = [module for name, module in list(sys.modules.items()) if _is_users(name, module)]
    own = [module for module in found if module.__name__ not in registered]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(name: str, module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str) or name.split(".")[0] in _NOT_USERS:
        return False
    if sys.modules.get(module.__name__) is not module:
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)


_NOT_USERS = frozenset({"partita", "__main__", "__mp_main__", *sys.stdlib_module_names})
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple({Path(sysconfig.get_path(kind)).resolve() for kind in _FOLDERS})
