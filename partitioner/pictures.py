"""The late binding of tables and pictures, the only one of the project.

`partita.partitioner.table` prints plans, and `partita.engine.view` draws plans and profiles. Both lie above
the classes whose objects print and draw themselves. Imports run one way, so these modules are found by name
when a table or a picture is asked for. This also keeps matplotlib and jinja2 out of every process that draws
nothing.
"""

from importlib import import_module
from types import ModuleType


def table() -> ModuleType:
    """Imports the module that prints a plan."""
    return import_module("partita.partitioner.table")


def view(module: str) -> ModuleType:
    """Imports a module of the room that draws.

    Raises:
        ImportError: a library that it needs is not installed.
    """
    try:
        return import_module(f"partita.engine.view.{module}")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}, and charts, timelines and pages need it; run: pip install 'partita[view]'"
        ) from error
