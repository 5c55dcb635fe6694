"""Settings of layers in JSON: a name for each class and function, so that a file holds no code.

Built-in kinds go by their names; a class or a function of the user by its module and name, and whoever reads
the file passes it in. Nothing is imported or unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Final

import numpy as np

from partita.layers.connectivity import Connectivity
from partita.layers.edges import Edges
from partita.layers.initial import InitialValues
from partita.layers.layer import Layer, Placeholder
from partita.layers.node import NodeKind, ParameterKind
from partita.layers.regularisers import L1L2
from partita.layers.text import did_you_mean
from partita.layers.ties import ParameterOf

LARGEST_ARRAY: Final = 100_000
"""Numbers of an array of initial values up to which it is written."""
DTYPES: Final = ("float16", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
"""Dtypes of such arrays."""


class Writer:
    """Turns settings into what JSON has. Remembers which class or function each name stands for.

    Args:
        first: the name of the first call of each layer, by its `id`.
    """

    def __init__(self, first: Mapping[int, str]) -> None:
        self._first = first
        self._named: dict[str, object] = {}

    def settings(self, made: Any, where: str) -> dict[str, Any]:
        """The arguments of a dataclass."""
        if not dataclasses.is_dataclass(made):
            raise ValueError(f"{where} is of a class that is no dataclass, so its settings are not known")
        fields = [field.name for field in dataclasses.fields(made) if field.init]
        return {field: self.value(getattr(made, field), f"{field} of {where}") for field in fields}

    def value(self, value: Any, where: str) -> Any:
        """A setting; `where` names it in errors."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            number = float(value)
            return number if math.isfinite(number) else {"number": repr(number)}
        if isinstance(value, tuple | list):
            return [self.value(one, where) for one in value]
        if isinstance(value, InitialValues):
            return self._initial(value, where)
        if isinstance(value, ParameterOf):
            return {"parameter": value.name, "of": self._first[id(value.layer)]}
        if isinstance(value, Edges):
            return {
                "kind": "Edges",
                "pairs": [list(pair) for pair in value.pairs],
                "nodes": list(value.nodes),
            }
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {"kind": self.name_of(type(value), where), **self.settings(value, where)}
        if inspect.isfunction(value):
            return {"function": self.name_of(value, where)}
        raise ValueError(
            f"{where} is {value!r}, which JSON cannot hold; write a name, a number, a frozen dataclass or a "
            "function with a name"
        )

    def name_of(self, named: Any, where: str) -> str:
        """The name of a class or a function: of a built-in one without its module."""
        short = str(named.__name__)
        if _built_in().get(short) is named:
            return short
        name = f"{named.__module__}.{named.__qualname__}"
        if named.__name__ == "<lambda>" or self._named.setdefault(name, named) is not named:
            raise ValueError(
                f"{where} is {name}, and a file names functions; define it with a name of its own"
            )
        return name

    def _initial(self, initial: InitialValues, where: str) -> dict[str, Any]:
        if initial.given is None:
            raise ValueError(f"the values of {where} are not here: a pickled network has none")
        if initial.shape is None:
            found: dict[str, Any] = self.value(initial.given, where)
            return found
        if initial.given.size > LARGEST_ARRAY:
            raise ValueError(
                f"{where} is an array of {initial.given.size:,} numbers; a file holds at most "
                f"{LARGEST_ARRAY:,}. Save the parameters, and declare it with a name or a number"
            )
        values, dtype = initial.given.ravel().tolist(), str(initial.given.dtype)
        return {"array": values, "shape": list(initial.shape), "dtype": dtype}


class Reader:
    """Turns what JSON has into settings.

    Args:
        custom: the user's classes and functions, by their names.
        layers: the layers that were made so far, by the names of their first calls.
    """

    def __init__(self, custom: Mapping[str, Any], layers: Mapping[str, Layer]) -> None:
        self._custom, self._layers = custom, layers

    def made(self, kind: object, settings: Mapping[str, Any]) -> Any:
        """A layer, or a setting that is a dataclass."""
        known = self._found(kind)
        if not isinstance(known, type):
            raise ValueError(f"{kind!r} stands for {known!r}, which is no class")
        return known(**{name: self.value(value) for name, value in settings.items()})

    def value(self, value: Any) -> Any:
        """Reads lists as tuples, and objects as what they name."""
        if isinstance(value, list):
            return tuple(self.value(one) for one in value)
        if not isinstance(value, dict):
            return value
        if value.keys() == {"number"} and value["number"] in ("inf", "-inf", "nan"):
            return float(value["number"])
        if value.keys() == {"function"}:
            found = self._found(value["function"])
            return found.upward if isinstance(found, NodeKind) else found
        if value.keys() == {"parameter", "of"}:
            return self.layer(value["of"]).parameter(value["parameter"])
        if value.keys() == {"array", "shape", "dtype"}:
            return _array(value)
        if "kind" in value:
            return self.made(value["kind"], {name: one for name, one in value.items() if name != "kind"})
        raise ValueError(f"{value!r} is no setting")

    def layer(self, name: object) -> Layer:
        """Returns a layer that was made before, by the name of its first call."""
        if not isinstance(name, str) or name not in self._layers:
            raise ValueError(f"it uses layer {name!r}, which does not stand before it")
        return self._layers[name]

    def _found(self, name: object) -> Any:
        """The class or function of a name: built in, or from `custom`."""
        if not isinstance(name, str):
            raise ValueError(f"its kind is {name!r}; write the name of a layer, for example 'Dense'")
        if "." not in name:
            if name in _built_in():
                return _built_in()[name]
            meant = did_you_mean(name, _built_in())
            raise ValueError(
                f"there is no layer {name!r}; {meant}A class or a function of your own is named with its "
                "module"
            )
        last = name.rpartition(".")[2]
        for key in (name, last):
            if key in self._custom:
                return self._custom[key]
        raise ValueError(f"it needs {name}, and a file holds no code; pass it: custom={{{last!r}: {last}}}")


def _made_here() -> Iterator[type]:
    """The layers and wirings of this package that can be made, and their settings."""
    waiting: list[type[Any]] = [Layer, Connectivity]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith(__package__ + ".") and not inspect.isabstract(kind):
                yield kind
    yield from (L1L2, ParameterKind)


@functools.cache
def _built_in() -> dict[str, type]:
    """All classes that a file names without a module."""
    return {kind.__name__: kind for kind in _made_here() if kind is not Placeholder}


def _array(value: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The array, as it was written."""
    dtype = value["dtype"]
    if dtype not in DTYPES:
        raise ValueError(f"an array of initial values has the dtype {dtype!r}; write for example 'float32'")
    return np.array(value["array"], dtype).reshape(value["shape"])
