"""The short examples: each is one file that needs nothing but installed packages, and does what it says."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from partita.layers import Network
from partita.partitioner import Cluster, partition

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
NAMES = [path.stem for path in EXAMPLES]
INSTALLED = {*sys.stdlib_module_names, "matplotlib", "numpy", "partita", "sklearn", "torch"}

LAST = {
    "belief_net": "",
    "characters": "it writes: ",
    "digits": "held-out accuracy: 0.9",
    "from_pytorch": "accuracy of the module: 0.9",
    "own_driver": "loss 0.",
    "own_hosts": "loss 0.",
    "own_layer": "loss 0.",
    "pictures": "held-out accuracy: 0.9",
}
"""How the last line begins that an example prints on standard output."""


def test_each_example_is_known_here() -> None:
    assert set(LAST) == set(NAMES)


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_an_example_imports_what_is_installed_and_fits_two_screens(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    imported = set()
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.Import):
            imported |= {name.name.partition(".")[0] for name in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            imported.add(str(statement.module).partition(".")[0])
    assert imported <= INSTALLED
    assert len(text.splitlines()) < 150


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("belief_net", "from_pytorch")])
def test_the_data_of_an_example_fit_its_network(name: str) -> None:
    example = importlib.import_module(f"examples.{name}")
    net = example.network()
    assert isinstance(net, Network)
    data = example.data()
    arrays = data[0] if isinstance(data, tuple) else data
    graph = partition(net, Cluster.local(), batch=8).graph
    sizes = {grid.name: prod(grid.shape) for grid in (*graph.inputs, *graph.targets)}
    assert {name: prod(array.shape[1:]) for name, array in arrays.items()} == sizes


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_an_example_runs_alone(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path))
    command = [sys.executable, "-I", str(copy)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(LAST[path.stem]), done.stdout
