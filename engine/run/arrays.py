"""Converts the user's data to arrays: arrays, tensors, lists of either, anything that NumPy takes.

A tensor is taken as the numbers that it holds, on any device. Nothing that would change numbers is done
silently: masked numbers and Python objects are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def array_of(name: str, given: object) -> Array:
    """Converts a value to an array.

    Args:
        name: name of the input or target, for the sentence of an error.
        given: an array, a tensor, a list of either, or nested lists of numbers.

    Returns:
        `[example, ...]`, of numbers or text; their values are checked elsewhere.

    Raises:
        ValueError: the value is no array, its examples differ in shape, it has masked numbers, or holds
            objects.
    """
    if isinstance(given, list | tuple) and any(_is_special(one) for one in given):
        return _stacked(name, [_plain(f"{name}[{n}]", one) for n, one in enumerate(given)])
    array = _plain(name, given)
    if array.ndim == 0 and array.dtype == object:
        raise ValueError(f"'{name}' is {_kind(given)}; give an array, with one entry for each example")
    if array.dtype.names is not None:
        fields = ", ".join(array.dtype.names)
        raise ValueError(
            f"'{name}' holds records with the fields {fields}; stack them: "
            "np.stack([array[field] for field in array.dtype.names], axis=-1)"
        )
    if array.dtype == object:
        _refuse_objects(name, array)
    return array


def _plain(name: str, given: object) -> Array:
    """Converts by NumPy; reads tensors and refuses masks."""
    if isinstance(given, np.ma.MaskedArray):
        return _unmasked(name, given)
    if _is_tensor(given):
        return _of_tensor(name, given)
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        _check_equal(name, _shapes(given))
        raise ValueError(
            f"'{name}' is {_kind(given)}, of which NumPy makes no array ({error}); give an array of numbers"
        ) from error


def _stacked(name: str, examples: Sequence[Array]) -> Array:
    _check_equal(name, [example.shape for example in examples])
    return np.stack(examples)


def _check_equal(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuses examples of different shapes. Raises ValueError."""
    for n, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"the examples of '{name}' differ: example 0 has shape {shapes[0]}, example {n} {shape}; "
                "give every example the same shape"
            )


def _unmasked(name: str, given: np.ma.MaskedArray[Any, Any]) -> Array:
    hidden = np.ma.getmaskarray(given)
    if hidden.any():
        first = np.argwhere(hidden)[0].tolist()
        raise ValueError(
            f"'{name}' is a masked array, and {int(hidden.sum())} of its {hidden.size} numbers are masked, "
            f"the first at {first}; leave those examples out, or fill them: array.filled(0)"
        )
    return given.data


def _of_tensor(name: str, given: Any) -> Array:
    """The tensor's numbers, detached from autograd; bfloat16 becomes float32, which holds every number."""
    if given.device.type == "meta":
        raise ValueError(f"'{name}' is a tensor without numbers (device meta); give one that holds them")
    if str(given.layout) != "torch.strided":
        raise ValueError(f"'{name}' is a sparse tensor ({given.layout}); give tensor.to_dense()")
    plain = given.detach().cpu()
    if str(plain.dtype).startswith(("torch.bfloat", "torch.float8")):
        plain = plain.float()
    try:
        found: Array = plain.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"'{name}' is a tensor of {given.dtype}; convert it: tensor.float()") from error
    return found


def _refuse_objects(name: str, array: Array) -> None:
    where, first = next(
        ((n, one) for n, one in np.ndenumerate(array) if isinstance(one, bool) or not _is_number(one)),
        (None, None),
    )
    if where is None:
        raise ValueError(
            f"'{name}' holds Python objects (dtype object), though all are numbers; convert it: "
            "array.astype(np.float32), or np.int64 for labels"
        )
    raise ValueError(
        f"'{name}' holds Python objects (dtype object), and the one at {list(where)} is {first!r:.40}, no "
        "number; replace such entries, or leave their examples out, and convert it to float32, or int64 for "
        "labels"
    )


def _is_special(value: object) -> bool:
    return isinstance(value, np.ma.MaskedArray) or _is_tensor(value)


def _is_tensor(value: object) -> bool:
    """Returns whether the value is PyTorch's; a process that never imported torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _shapes(given: object) -> list[tuple[int, ...]]:
    """The shape of each example; none where an example is ragged itself."""
    if not isinstance(given, list | tuple):
        return []
    try:
        return [np.shape(one) for one in given]
    except (ValueError, TypeError, RuntimeError):  # one of them is ragged itself
        return []


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
