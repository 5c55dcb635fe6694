"""Initial values of parameters: names, one number, an array, or a function that makes one.

Names and numbers are drawn where they are needed, by `engine/parameters`. Arrays and functions stay in the
process that declares the network: runs send whole initial parameters as a file of numbers, so a pickled
network carries the shape and the digest of an array, and no function.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Final, TypeAlias

import numpy as np

from partita.layers.box import Shape
from partita.layers.text import did_you_mean

INITIALISERS: Final = (
    *("glorot", "glorot_normal", "he", "he_uniform", "lecun_normal", "lecun_uniform"),
    *("normal", "zeros", "ones"),
)
"""Names of initial values. The engine defines them: `engine/parameters`."""

ALIASES: Final = {
    "glorot_uniform": "glorot",
    "xavier_uniform": "glorot",
    "xavier_normal": "glorot_normal",
    "he_normal": "he",
    "kaiming_normal": "he",
    "kaiming_uniform": "he_uniform",
    "random_normal": "normal",
}
"""Names in Keras and PyTorch."""


class InitialValues:
    """An array of initial values, or a function `f(shape, rng) -> array`, called once for all of it.

    Two are equal if their digests are. A pickle has no values.

    Attributes:
        shape: of the array; None for a function.
        text: describes it, with its digest.
    """

    def __init__(self, given: Any) -> None:
        """Copies an array of NumPy or a tensor of torch; keeps a function.

        Raises:
            ValueError: it holds no finite numbers.
        """
        self.shape: Shape | None = None
        self._values: Any = given
        if callable(given) and not hasattr(given, "detach"):
            self.text = f"function {getattr(given, '__name__', type(given).__name__)}"
            return
        values = np.array(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise ValueError(
                f"an array of initial values is {values.dtype}, or not finite; give finite numbers"
            )
        values.flags.writeable = False
        self.shape, self._values = values.shape, values
        digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:12]
        self.text = f"{values.dtype}{list(values.shape)} #{digest}"

    @property
    def given(self) -> Any:
        """The array or the function; None where they stayed in the process that declared the network."""
        return self._values

    def of(self, name: str, shape: Shape, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Returns the values of a parameter.

        Args:
            name: of the parameter, for messages.
            shape: of the whole parameter.
            rng: passed to a function.

        Raises:
            ValueError: a function returned another shape or what is not finite, or the values stayed in the
                process that declared the network.
        """
        if self._values is None:
            raise ValueError(
                f"the initial values of {name!r} are not here: a pickled network has none; declare it in "
                "this process, or give run.parameters"
            )
        if self.shape is not None:
            self.check(name, shape)
            return self._values  # type: ignore[no-any-return]
        found = np.asarray(self._values(shape, rng))
        if found.shape != tuple(shape) or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise ValueError(
                f"the {self.text} returned {found.dtype} {found.shape} for {name!r}; return finite numbers "
                f"of shape {tuple(shape)}"
            )
        return found

    def check(self, name: str, shape: Shape) -> None:
        """Raises ValueError where an array does not have the shape of the parameter."""
        if self.shape not in (None, tuple(shape)):
            raise ValueError(
                f"the initial values of {name} have the shape {self.shape}, and it has {tuple(shape)}; give "
                "an array of that shape"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InitialValues):
            return NotImplemented
        same = self.shape is not None or self._values is other._values
        return self.text == other.text and self.shape == other.shape and same

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def __getstate__(self) -> dict[str, object]:
        return {"shape": self.shape, "text": self.text, "_values": None}

    def __deepcopy__(self, memo: object) -> InitialValues:
        return self


Initialiser: TypeAlias = str | float | InitialValues | Callable[[Shape, np.random.Generator], Any] | Any
"""A name, a number, an array (NumPy or torch), or a function `f(shape, rng) -> array`."""


def check_initialiser(initialiser: object) -> str | float | InitialValues:
    """Returns the name, the number for all values, or the values.

    Raises:
        ValueError: there is no such name, or a number is not finite.
    """
    if isinstance(initialiser, str):
        name = ALIASES.get(initialiser, initialiser)
        if name in INITIALISERS:
            return name
    elif isinstance(initialiser, InitialValues):
        return initialiser
    elif isinstance(initialiser, bool):
        pass
    elif isinstance(initialiser, Real | np.number):
        if math.isfinite(initialiser):
            return float(initialiser)
    elif callable(initialiser) or hasattr(initialiser, "__array__"):
        return InitialValues(initialiser)
    meant = did_you_mean(initialiser, (*INITIALISERS, *ALIASES))
    raise ValueError(
        f"there is no initialiser {initialiser!r}; {meant}choose one of {', '.join(INITIALISERS)}, a finite "
        "number, an array, or a function f(shape, rng) that returns one"
    )
