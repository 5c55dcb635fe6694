"""The late binding of the pictures, the only one of the project.

`partita.engine.view` draws plans and profiles, and lies above the rooms whose objects have methods that draw
themselves. Imports run one way, so its modules are found by their names when a picture is asked for. This
also keeps matplotlib and jinja2 out of every process that draws nothing.
"""

from importlib import import_module
from types import ModuleType


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
