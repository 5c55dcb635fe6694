"""Initial values as a function of a parameter's name and a seed.

Numbers come from counter-based streams, one for each block of a parameter, keyed by (seed, name, block). So
any range can be made by itself, in any order, by any process, and the values are the same for every plan and
every number of shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.slots import Slot, split
from partita.engine.parameters.vector import Vector
from partita.layers import Parameter
from partita.layers.initial import InitialValues

BLOCK: Final = 1 << 16  # numbers of a parameter that share one stream
NORMAL_DEVIATION: Final = 0.05  # standard deviation of "normal", as in Keras
CONSTANTS: Final = {"zeros": 0.0, "ones": 1.0}

_GAINS: Final = {
    "glorot": ("uniform", 1.0, "both"),
    "glorot_normal": ("normal", 1.0, "both"),
    "he": ("normal", 2.0, "in"),
    "he_uniform": ("uniform", 2.0, "in"),
    "lecun_normal": ("normal", 1.0, "in"),
    "lecun_uniform": ("uniform", 1.0, "in"),
}
"""Distribution, and variance times the fans: the mean of both, or `fan_in`."""

DRAWN: Final = (*_GAINS, "normal")
"""Uniform within sqrt(6 / (fan_in + fan_out)) of zero (Glorot and Bengio 2010, equation 16); normal with
variance 2 / fan_in (He et al. 2015, equation 10); normal with `NORMAL_DEVIATION`."""


def initialise(
    specs: Iterable[Parameter], seed: int, *, dtype: npt.DTypeLike = np.float32
) -> dict[str, Vector]:
    """Returns whole initial parameters by name, in their shapes, drawn in float64 and rounded to `dtype`.

    Raises:
        ValueError: a fan below 1, a negative seed, or a repeated name.
    """
    values: dict[str, Vector] = {}
    for spec in specs:
        if spec.name in values:
            raise ValueError(f"two parameters are named {spec.name!r}; each needs a name of its own")
        flat = initial_range(spec, seed, start=0, stop=spec.size, dtype=dtype)
        values[spec.name] = flat.reshape(spec.shape)
    return values


def initial_vector(
    slots: Iterable[Slot],
    specs: Mapping[str, Parameter],
    seed: int,
    *,
    dtype: npt.DTypeLike = np.float32,
    out: Vector | None = None,
) -> Vector:
    """Returns the vector that slots make out of initial parameters (see `initialise`), given by name.

    Fills `out`, `[n]`, if it is given; else a new vector of `dtype`.
    """
    given = list(slots)
    vector = np.empty(sum(slot.size for slot in given), dtype) if out is None else out
    stream = _Stream(seed)
    for slot, piece in split(given, vector):
        position = 0
        for start, stop in slot.runs.tolist():
            stream.fill(specs[slot.parameter], start, stop, piece[position : position + stop - start])
            position += stop - start
    return vector


def initial_range(
    spec: Parameter, seed: int, *, start: int, stop: int, dtype: npt.DTypeLike = np.float32
) -> Vector:
    """Returns the flat range `[start, stop)` of an initial parameter, made without the rest.

    Raises:
        ValueError: as `initialise`, or the range leaves the parameter.
    """
    values = np.empty(stop - start, dtype)
    _Stream(seed).fill(spec, start, stop, values)
    return values


class _Stream:
    """Numbers of a seed. Caches the last block, because tiles have many short ranges of few blocks."""

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"the seed is {seed}; use 0 or above")
        self._seed, self._of = seed, ("", -1)
        self._numbers = np.empty(0)
        self._whole: dict[str, Vector] = {}

    def fill(self, spec: Parameter, start: int, stop: int, values: Vector) -> None:
        """Writes the range of a parameter."""
        size = spec.size
        if not 0 <= start <= stop <= size:
            raise ValueError(f"[{start}:{stop}] leaves parameter {spec.name!r}, which has {size} numbers")
        if isinstance(spec.initialiser, InitialValues):
            values[:] = self._whole_of(spec, spec.initialiser)[start:stop]
            return
        constant = _constant(spec)
        if constant is not None:
            values[:] = constant
            return
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            first, high = block * BLOCK, min(stop, (block + 1) * BLOCK)
            low = max(start, first)
            if self._of != (spec.name, block) or len(self._numbers) < high - first:
                n = high - first if self._of[0] != spec.name else min(BLOCK, size - first)
                self._of, self._numbers = (spec.name, block), _block(spec, self._seed, block, n)
            values[low - start : high - start] = self._numbers[low - first : high - first]

    def _whole_of(self, spec: Parameter, initial: InitialValues) -> Vector:
        """The flat values of an array or a function, which is called once; its `rng` is of the seed and the
        name.
        """
        if spec.name not in self._whole:
            key = np.random.SeedSequence(self._seed, spawn_key=(*spec.name.encode(), 257))
            rng = np.random.Generator(np.random.Philox(key))
            self._whole[spec.name] = initial.of(spec.name, spec.shape, rng).reshape(-1)
        return self._whole[spec.name]


def evaluated(specs: Mapping[str, Parameter], seed: int) -> dict[str, Parameter]:
    """Returns the parameters with arrays in place of functions, each of which is called once."""
    stream, found = _Stream(seed), dict(specs)
    for name, spec in specs.items():
        if isinstance(spec.initialiser, InitialValues) and spec.initialiser.shape is None:
            whole = stream._whole_of(spec, spec.initialiser).reshape(spec.shape)
            found[name] = replace(spec, initialiser=InitialValues(whole))
    return found


def _constant(spec: Parameter) -> float | None:
    """Returns the constant that fills the parameter; None where its numbers are drawn."""
    if isinstance(spec.initialiser, float):
        return spec.initialiser
    assert isinstance(spec.initialiser, str), spec
    if spec.initialiser in CONSTANTS:
        return CONSTANTS[spec.initialiser]
    if min(spec.fan_in, spec.fan_out) < 1:
        raise ValueError(
            f"parameter {spec.name!r} has fan_in {spec.fan_in} and fan_out {spec.fan_out}; use 1 or more"
        )
    return None


def _block(spec: Parameter, seed: int, block: int, n: int) -> npt.NDArray[np.float64]:
    """Draws the first `n` numbers of a block."""
    key = np.random.SeedSequence(seed, spawn_key=(*spec.name.encode(), 256, block))
    stream = np.random.Generator(np.random.Philox(key))
    if spec.initialiser == "normal":
        return stream.standard_normal(n) * NORMAL_DEVIATION
    how, gain, fans = _GAINS[str(spec.initialiser)]
    gain, fan = (2.0 * gain, spec.fan_in + spec.fan_out) if fans == "both" else (gain, spec.fan_in)
    if how == "uniform":
        return (2.0 * stream.random(n) - 1.0) * math.sqrt(3.0 * gain / fan)
    return stream.standard_normal(n) * math.sqrt(gain / fan)
