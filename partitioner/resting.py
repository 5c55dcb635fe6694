"""Python's search for cycles of dead objects, and when it rests.

While a plan is searched, millions of small objects are made, most of which live on: instructions, operands,
rows. The collector looks at all of them again and again, which takes as long as making them; and finds
nothing, because they form no cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No cycles are looked for meanwhile, in all threads; afterwards all is as it was."""
    was_at_work = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_at_work:
            gc.enable()
