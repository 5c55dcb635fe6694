"""The late binding of the pictures, the only one of the project.

`partita.engine.view` draws plans and profiles, and lies above the rooms whose objects have methods that draw
themselves. Imports run one way, so it is found by its name when a picture is asked for.
"""

from importlib import import_module
from types import ModuleType


def view() -> ModuleType:
    """Imports the room that draws; its public names are functions from an object to the text of a file."""
    return import_module("partita.engine.view")
