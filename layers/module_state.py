"""The state dict of the module of PyTorch that a network was made of: names, shapes and types.

A graph keeps it, so that whoever has a plan or a run can write its parameters under the module's names.
Tensors are not known here: `engine/pytorch/state_dict.py` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from partita.layers.box import Shape


@dataclass(frozen=True)
class StateEntry:
    """A parameter or a buffer of a module.

    Args:
        name: in the module's state dict.
        shape: in the module.
        dtype: in the module, by PyTorch's name: "float32", "bfloat16", "int64".
        same_as: the first name of the same tensor, where it has several; else its own.
        parameter: full name of the network's parameter; "" where the network has none.
        order: the module's dimensions in the order of the network's array.
        constant: the numbers of an entry without a parameter, `[*shape]`; those of bfloat16 as uint16.
        versions: of the modules in which the entry lies, the outermost first: PyTorch's numbers of how they
            write their state; -1 for those without one.
    """

    name: str
    shape: Shape
    dtype: str
    same_as: str
    parameter: str = ""
    order: tuple[int, ...] = ()
    constant: npt.NDArray[Any] | None = None
    versions: tuple[int, ...] = ()


ModuleState = tuple[StateEntry, ...]
"""Every entry of a state dict, in its order."""
