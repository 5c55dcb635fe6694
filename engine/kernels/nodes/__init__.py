"""Compiles node definitions: from a user's two functions of one node to loops over nodes, edges and examples.

`source` finds the text of a function; `reader` (with `syntax`, `expressions` and `functions`) parses it into
the small tree of `ir`; `kinds`, `passes`, `places`, `templates` and `grouping` transform that; `vectors`
(with `text`, `writer` and `tiles`) writes it with the examples innermost. `sums` finds weighted sums, whose
products run in the loops of the local layers (`sum_kernels`). A function that is not understood runs as it
stands, by `scalars`, with `portable` (a function as text) and `compiler` (a function as an object, and its
errors). `loops` chooses, `comparison` checks the choice against plain Python (by `plays`), `generated`
compiles text, `wiring` holds the edges, `loop_kernel` is the kernel.
"""

from partita.engine.kernels.nodes.compiler import NodeCompileError

__all__ = ["NodeCompileError"]
