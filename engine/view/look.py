"""What all parts of a picture share: colours and names of machines, and how large arrow heads are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.palette import Palette

HEAD = 14.0
"""Length of the arrow head of a line that stands for many messages, in pixels."""


@dataclass(frozen=True)
class Look:
    """The look of one picture.

    Args:
        names: of the machines.
        arrow: length of an arrow head, in pixels.
    """

    names: tuple[str, ...]
    arrow: float = svg.ARROW

    @property
    def palette(self) -> Palette:
        """The colours of the machines."""
        return Palette(len(self.names))

    def definitions(self) -> Iterator[str]:
        """Arrow heads in the colours of the machines and in grey, and patterns."""
        for machine in range(len(self.names)):
            yield svg.arrow(f"to{machine}", self.palette.line(machine), length=self.arrow)
        yield svg.arrow("to", svg.SOFT, length=self.arrow)
        yield svg.arrow("many", svg.SOFT, length=HEAD)
        yield from self.palette.patterns()
