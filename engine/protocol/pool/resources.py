"""Resources: what a worker has, and what a host needs of it."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

import msgspec

_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS_OF_TEN: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGT]i?B)?", flags=re.ASCII)
_MOST: Final = 1 << 50

Amount = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of what hosts use up.

    Args:
        cpu: cores.
        gpu: graphics processors.
        memory: bytes.
    """

    cpu: Amount = 0
    gpu: Amount = 0
    memory: Amount = 0

    @classmethod
    def parse(cls, text: str, default: Resources | None = None) -> Self:
        """Reads `cpu=8,gpu=1,memory=32GiB`; what is not named is as in `default`, or none.

        Raises:
            ValueError: a name or an amount cannot be read.
        """
        start = default or cls()
        found = {name: getattr(start, name) for name in cls.__struct_fields__}
        for item in filter(None, (item.strip() for item in text.split(","))):
            name, _, amount = item.partition("=")
            match = _AMOUNT.fullmatch(amount.strip())
            units = _UNITS | _UNITS_OF_TEN if name == "memory" else {"": 1}
            if name not in found or match is None or (match[2] or "") not in units:
                raise ValueError(
                    f"'{item}' is not a resource; write for example cpu=8,gpu=1,memory=32GiB, with any of "
                    f"{', '.join(cls.__struct_fields__)}"
                )
            value = float(match[1]) * units[match[2] or ""]
            if value > _MOST or (name != "memory" and value != int(value)):
                raise ValueError(f"'{item}' is not an amount of {name}; write a whole number")
            found[name] = int(value)
        return cls(**found)

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            cpu=self.cpu + other.cpu, gpu=self.gpu + other.gpu, memory=self.memory + other.memory
        )

    def minus(self, other: Resources) -> Resources:
        """Returns what is left after an amount is taken; never less than nothing."""
        return Resources(
            cpu=max(self.cpu - other.cpu, 0),
            gpu=max(self.gpu - other.gpu, 0),
            memory=max(self.memory - other.memory, 0),
        )

    def covers(self, need: Resources) -> bool:
        """Returns whether a need fits into this."""
        return self.cpu >= need.cpu and self.gpu >= need.gpu and self.memory >= need.memory

    def lacks(self, need: Resources) -> str:
        """Words what of a need does not fit: `needs cpu 4, has 2`; "" if it fits."""
        found = [
            f"{name} {_worded(name, wanted)}, has {_worded(name, has)}"
            for name in self.__struct_fields__
            if (wanted := getattr(need, name)) > (has := getattr(self, name))
        ]
        return f"needs {'; '.join(found)}" if found else ""

    def __str__(self) -> str:
        amounts = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {_worded(name, amount)}" for name, amount in amounts if amount) or "nothing"


def _worded(name: str, amount: int) -> str:
    if name != "memory":
        return str(amount)
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if amount >= _UNITS[unit]), "")
    return f"{amount / _UNITS[unit]:.3g} {unit}" if unit else f"{amount} B"
