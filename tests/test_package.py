"""The installed package: three rooms under `partita` and nothing else, typed, imports running one way."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("engine", "layers", "partitioner")
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def modules_of_the_rooms() -> list[Path]:
    return sorted(
        path.relative_to(ROOT)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "__pycache__" not in path.parts
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built without a network from a copy of what it is made of, by way of the sdist."""
    copy = tmp_path_factory.mktemp("checkout")
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=280)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = (copy / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def inside(wheel: Path) -> list[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


def test_the_wheel_holds_the_rooms_and_nothing_else(inside: list[PurePosixPath]) -> None:
    tops = {path.parts[0] for path in inside}
    info = {top for top in tops if top.endswith(".dist-info")}
    assert len(info) == 1
    assert tops - info == {"partita"}
    assert {path.parts[1] for path in inside if path.parts[0] == "partita"} == set(ROOMS)


def test_the_wheel_forgets_no_module_and_adds_none(inside: list[PurePosixPath]) -> None:
    packed = {path for path in inside if path.suffix == ".py"}
    assert packed == {PurePosixPath("partita", *path.parts) for path in modules_of_the_rooms()}


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_typed(inside: list[PurePosixPath], room: str) -> None:
    assert PurePosixPath("partita", room, "py.typed") in inside


def test_the_wheel_names_its_licence_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entries,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        commands = configparser.ConfigParser()
        commands.read_string(archive.read(entries).decode())
        (metadata,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        fields = archive.read(metadata).decode().splitlines()
    assert dict(commands["console_scripts"]) == {"partita": "partita.engine.cli:main"}
    assert "License-Expression: Apache-2.0" in fields


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in modules_of_the_rooms()}
    folders |= {parent for folder in folders for parent in folder.parents if parent != Path()}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder / "__init__.py").is_file()] == []


def test_no_room_lies_below_another_name() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "partita").exists()


def test_every_direct_dependency_is_pinned_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned_extras = (
        "browser",
        "data",
        "dev",
        "docs",
        "examples",
        "models",
        "page",
        "ray",
        "tensorboard",
        "view",
    )
    installed = [name for extra in pinned_extras for name in extras[extra]]
    direct = {_name(requirement) for requirement in project["dependencies"] + installed}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [_name(line) for line in lines if line and not line.startswith("#")]
    assert sorted(pinned) == sorted(direct)
    assert "torch==2.13.0" in lines


def test_the_rooms_import_from_anywhere_and_in_a_child(tmp_path: Path) -> None:
    script = "import partita.layers, partita.partitioner, partita.engine as engine; print(engine.__file__)"
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert child.returncode == 0, child.stderr
    assert Path(child.stdout.strip()).parts[-2:] == ("engine", "__init__.py")


def test_imports_run_one_way() -> None:
    """The contracts of import-linter, as `make check` runs them."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _name(requirement: str) -> str:
    return requirement.split(">")[0].split("=")[0].strip().lower()
