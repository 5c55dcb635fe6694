"""Plays a layer in bfloat16 by a kernel that knows only float32, on widened copies of its arrays.

What the kernel reads is widened before each of its calls, what it writes is rounded after. The copies cost
memory and a pass over it; a kernel for which that matters takes bfloat16 itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from partita.engine.kernels.calls import in_turn
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.views import rows_of
from partita.engine.numerics import narrow_array, widen_array
from partita.layers.box import Spans


class WidenedKernel(Kernel):
    """A kernel in float32, at a site in bfloat16.

    Args:
        maker: of the kernel.
        site: where it works, in bfloat16.
        arrays: what it works on, as stored.
        team: threads that kernels share.
    """

    def __init__(
        self, maker: Callable[[Site, Arrays, Team], Kernel], site: Site, arrays: Arrays, team: Team
    ) -> None:
        super().__init__(site, arrays, team)
        self._wide = Arrays(
            sources=tuple(map(_widened, arrays.sources)),
            state=_widened(arrays.state),
            delta=None if arrays.delta is None else _widened(arrays.delta),
            errors=tuple(None if errors is None else _widened(errors) for errors in arrays.errors),
            parameters=tuple(map(_widened, arrays.parameters)),
        )
        self._kernel = maker(replace(site, precision="float32"), self._wide, team)
        self.gradient_by_rows = self._kernel.gradient_by_rows

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Widens parameters and inputs, and rounds the states once the sum is whole."""
        stored, wide = self.arrays, self._wide
        pairs = [*zip(stored.parameters, wide.parameters, strict=True)] if first else []
        if block is None:
            pairs += zip(stored.sources, wide.sources, strict=True)
        else:
            window = self.site.windows[0]
            pairs.append((rows_of(stored.sources[0], block, window), rows_of(wide.sources[0], block, window)))
        return in_turn(
            self._over(widen_array, pairs),
            self._kernel.up(block=block, first=first, last=last),
            self._over(narrow_array, [(wide.state, stored.state)] if last else []),
        )

    def delta(self) -> Call:
        """Widens the errors, and rounds them again."""
        stored, wide = self.arrays.own_errors, self._wide.own_errors
        widen, narrow = self._over(widen_array, [(stored, wide)]), self._over(narrow_array, [(wide, stored)])
        return in_turn(widen, self._kernel.delta(), narrow)

    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Widens the errors, and what is accumulated to; rounds the asked rows."""
        window = self.site.error_windows[source]
        out, wide = self.arrays.errors_of(source), self._wide.errors_of(source)
        asked = [(rows_of(out, run, window), rows_of(wide, run, window)) for run in rows]
        own = (self.arrays.own_errors, self._wide.own_errors)
        return in_turn(
            self._over(widen_array, [own, *(asked if accumulate else [])]),
            self._kernel.errors(source, rows, accumulate=accumulate),
            self._over(narrow_array, [(after, before) for before, after in asked]),
        )

    def gradient(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Widens the errors; gradients are float32 in any case."""
        own = (self.arrays.own_errors, self._wide.own_errors)
        find = self._kernel.gradient(out, rows, accumulate=accumulate)
        return in_turn(self._over(widen_array, [own]), find)

    def _over(self, convert: Callable[[Array, Array], Array], pairs: Iterable[tuple[Array, Array]]) -> Call:
        """Converts the first array of each pair into the second, rows shared among the threads."""
        return in_turn(*(self._conversion(convert, *pair) for pair in pairs if pair[0] is not pair[1]))

    def _conversion(self, convert: Callable[[Array, Array], Array], source: Array, out: Array) -> Call:
        def work(start: int, stop: int) -> None:
            convert(source[start:stop], out[start:stop])

        work(0, 0)
        return lambda: self.team.split(0, len(source), work, operations=source.size)


def _widened(array: Array) -> Array:
    """Room for its numbers in float32; what is not bfloat16 stays itself."""
    return np.zeros(array.shape, np.float32) if array.dtype == np.uint16 else array
