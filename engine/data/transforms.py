"""Transforms of a minibatch: what users write as functions, and some for pictures.

A transform takes a minibatch, a dictionary of arrays `[count, *shape]` in the type in which the data is
given, and returns one. If it takes a second argument, that is a `Draws`. It may change or add arrays, but
neither the number of examples nor their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.data.draws import Batch, Draws

Array = npt.NDArray[Any]

Transform: TypeAlias = Callable[..., Batch]
"""`transform(batch)` or `transform(batch, draws)`."""


def applied(transforms: Sequence[Transform], batch: Batch, draws: Draws) -> Batch:
    """Applies transforms one after another. Raises what they do, and TypeError for what is no minibatch."""
    for transform in transforms:
        batch = transform(batch, draws) if takes_draws(transform) else transform(batch)
        name = getattr(transform, "__name__", repr(transform))
        if not isinstance(batch, dict):
            raise TypeError(f"the transform {name} returned a {type(batch).__name__}; return the dictionary")
        batch = {key: np.asarray(value) for key, value in batch.items()}
        for key, value in batch.items():
            if value.ndim < 1 or len(value) != len(draws.examples):
                raise TypeError(
                    f"the transform {name} returned '{key}' of shape {value.shape} for "
                    f"{len(draws.examples)} examples; keep the number of examples"
                )
    return batch


def takes_draws(transform: Transform) -> bool:
    """Returns whether a transform takes random numbers, too."""
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # one of C has no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional for one in parameters) > 1


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean and divides by a deviation: `(x / scale - mean) / deviation`, as float32.

    Args:
        name: the field; None: each with at least three axes besides the examples.
        mean: a number, or one for each channel (the last axis).
        deviation: likewise.
        scale: the largest value, 255 for pictures of uint8.
    """

    name: str | None = None
    mean: float | Sequence[float] = 0.0
    deviation: float | Sequence[float] = 1.0
    scale: float = 255.0

    def __call__(self, batch: Batch) -> Batch:
        """Normalizes a minibatch."""
        deviation = np.asarray(self.deviation, np.float32)
        factor = (1.0 / (self.scale * deviation)).astype(np.float32)
        shift = (np.asarray(self.mean, np.float32) / deviation).astype(np.float32)
        return batch | {name: batch[name] * factor - shift for name in _pictures(batch, self.name)}


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirrors some examples left to right.

    Args:
        name: the field of pictures `[height, width, channels]`; None: each with three axes.
        probability: the share of examples that are mirrored.
    """

    name: str | None = None
    probability: float = 0.5

    def __call__(self, batch: Batch, draws: Draws) -> Batch:
        """Mirrors examples of a minibatch."""
        found, flips = dict(batch), draws.uniform("flip") < self.probability
        for name in _pictures(batch, self.name):
            found[name] = batch[name].copy()
            found[name][flips] = batch[name][flips][:, :, ::-1]
        return found


@dataclass(frozen=True)
class RandomCrop:
    """Pads each picture with zeros, and cuts a picture of the old size out of it, at a random place.

    Args:
        padding: pixels on each side.
        name: the field of pictures `[height, width, channels]`; None: each with three axes.
    """

    padding: int
    name: str | None = None

    def __call__(self, batch: Batch, draws: Draws) -> Batch:
        """Crops the examples of a minibatch."""
        found, places = dict(batch), 2 * self.padding + 1
        tops, lefts = draws.integers(places, "top"), draws.integers(places, "left")
        for name in _pictures(batch, self.name):
            pictures = batch[name]
            count, height, width, channels = pictures.shape
            p = self.padding
            padded = np.zeros((count, height + 2 * p, width + 2 * p, channels), pictures.dtype)
            padded[:, p : p + height, p : p + width] = pictures
            found[name] = np.empty_like(pictures)
            for n, (top, left) in enumerate(zip(tops, lefts, strict=True)):
                found[name][n] = padded[n, top : top + height, left : left + width]
        return found


@dataclass(frozen=True)
class ChannelsLast:
    """Moves the channels of pictures `[channels, height, width]`, as torchvision has them, to the end.

    Args:
        name: the field; None: each with three axes.
    """

    name: str | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Moves the channels of a minibatch."""
        return batch | {name: np.moveaxis(batch[name], 1, -1) for name in _pictures(batch, self.name)}


@dataclass(frozen=True)
class PerExample:
    """Applies a function to each example, which takes a dictionary of its arrays and returns one.

    Args:
        function: of an example; if it takes a second argument, that is a `numpy.random.Generator`.
    """

    function: Callable[..., dict[str, Any]]

    def __call__(self, batch: Batch, draws: Draws) -> Batch:
        """Applies the function to the examples of a minibatch."""
        wants_random = takes_draws(self.function)
        found = []
        for n in range(len(draws.examples)):
            example = {name: values[n] for name, values in batch.items()}
            more = (draws.generator(n),) if wants_random else ()
            found.append(self.function(example, *more))
        return {name: np.stack([np.asarray(one[name]) for one in found]) for name in found[0]}


def _pictures(batch: Batch, name: str | None) -> list[str]:
    if name is not None:
        return [name]
    return [name for name, values in batch.items() if values.ndim == 4]
