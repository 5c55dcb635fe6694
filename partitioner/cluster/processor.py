"""The kind of processor that this process runs on, as Linux describes it.

Read where a plan is made and where a calibration is kept, never where a step is played.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_DESCRIBED_IN: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Processor:
    """A kind of processor, as Linux names it ("" where unknown): "AuthenticAMD", family "26".

    Model number and stepping distinguish processors of one name. `features` are flags, in alphabetical order.
    """

    name: str
    vendor: str = ""
    family: str = ""
    model: str = ""
    features: tuple[str, ...] = ()


@cache
def processor() -> Processor:
    """The processor of this machine."""
    try:
        return described(_DESCRIBED_IN.read_text(encoding="utf-8"))
    except OSError:
        return Processor(platform.processor() or platform.machine())


def described(text: str) -> Processor:
    """The first processor of a text in the form of `/proc/cpuinfo`."""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    return Processor(
        fields.get("model name") or platform.machine(),
        fields.get("vendor_id", ""),
        fields.get("cpu family", ""),
        " ".join(fields[name] for name in ("model", "stepping") if name in fields),
        tuple(sorted(fields.get("flags", "").split())),
    )
