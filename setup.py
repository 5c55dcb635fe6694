"""Lays the rooms at the top of the checkout out as the import package `partita`.

The folders `engine/`, `partitioner/` and `layers/` are imported as `partita.engine`, `partita.partitioner`
and `partita.layers`; everything else about the distribution is in `pyproject.toml`. Packages are found, never
listed, so a new subfolder cannot be forgotten. `partita` itself has no `__init__.py`: it is a namespace.
"""

from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOMS = ("layers", "partitioner", "engine")
HERE = Path(__file__).resolve().parent


def packages_of(room: str) -> list[str]:
    """The room and every folder below it that holds Python files, under their import names."""
    folders = [room, *(f"{room}.{name}" for name in find_namespace_packages(str(HERE / room)))]
    return [f"partita.{name}" for name in folders if any((HERE / name.replace(".", "/")).glob("*.py"))]


setup(
    packages=[package for room in ROOMS for package in packages_of(room)],
    package_dir={f"partita.{room}": room for room in ROOMS},
    package_data={f"partita.{room}": ["py.typed"] for room in ROOMS}
    | {"partita.engine.view": ["charts.mplstyle", "templates/*"], "partita.engine.page": ["templates/*"]},
)
