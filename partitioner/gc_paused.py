"""A pause of Python's cycle collector.

A search makes millions of small objects that live on and form no cycles: instructions, operands, rows. The
collector would scan all of them again and again, which takes as long as making them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the collector in all threads, and restores its state afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
