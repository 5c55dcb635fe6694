"""The form of the compressed pushes to one range of a shard, which part and shard know alike.

A push has one message of a compressor for all numbers of its range outside of sparse tables. Its size follows
from the step alone, so a push of any other size is refused. The module must not know what a message means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The messages in the place of the numbers of a range.

    Args:
        compress: makes and reads them; opaque but for `items` and `state_names`.
        shapes: of the tensors in the range.
        item_bytes: bytes of a number of the gradient.
    """

    compress: Any
    shapes: tuple[tuple[int, ...], ...]
    item_bytes: int

    def items(self, step: int) -> int:
        """Returns the length of the message of a step, in whole numbers of the gradient's type."""
        return int(self.compress.items(self.shapes, self.item_bytes, step=step))

    @property
    def state_bytes(self) -> int:
        """The bytes of the vectors that the compressor keeps."""
        return len(self.compress.state_names) * sum(map(math.prod, self.shapes)) * self.item_bytes

    def n_bytes(self, step: int) -> int:
        """Returns the bytes of the message of a step."""
        return self.items(step) * self.item_bytes


def step_of(stop: int) -> int:
    """Returns the step that a push is compressed as: its sender's last one before `Push.stop`."""
    return max(0, stop - 1)
