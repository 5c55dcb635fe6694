"""A network and its numbers as files, for processes that must not import Partita.

A folder holds `recipe.json`, the layers in order, and arrays: the parameters, the inputs and the targets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FILE: Final = "recipe.json"


@dataclass(frozen=True)
class LayerRecipe:
    """Holds what a network is declared from: one layer.

    Args:
        kind: as Partita calls it.
        source: shape of its input.
        shape: of its grid.
        activation: "linear" for none.
        parameters: their names.
        settings: what else its kind has.
    """

    kind: str
    source: tuple[int, ...]
    shape: tuple[int, ...]
    activation: str
    parameters: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """A chain of layers under one loss.

    Args:
        network: its name in `_networks`.
        batch: examples.
        rate: of SGD.
        layers: from the input on.
        loss: its kind.
        inputs, target: names of their arrays.
    """

    network: str
    batch: int
    rate: float
    layers: tuple[LayerRecipe, ...]
    loss: str
    inputs: str
    target: str

    def write(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        """Into an empty folder."""
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Reads a recipe from a folder, without its arrays."""
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        layers = tuple(LayerRecipe(**layer) for layer in found.pop("layers"))
        return cls(**found, layers=layers)


def read_array(folder: Path, name: str) -> Array:
    """Reads one of a folder's arrays."""
    found: Array = np.load(folder / f"{name}.npy")
    return found


def read_arrays(folder: Path) -> dict[str, Array]:
    """Reads all arrays of a folder, by name."""
    return {path.stem: read_array(folder, path.stem) for path in folder.glob("*.npy")}
