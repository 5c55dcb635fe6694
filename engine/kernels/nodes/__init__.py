"""Node definitions at speed: from a user's two functions of one node to loops over nodes, edges and examples.

`source` finds what was written; `reader` (with `syntax`, `expressions` and `functions`) understands it as the
small tree of `arithmetic`; `kinds`, `passes`, `places`, `templates` and `grouping` prepare that; `vectors`
(with `text`, `writer` and `tiles`) writes it with the examples innermost. `sums` finds weighted sums: their
products run in the loops of the local layers (`sum_kernels`, `full_loops`). What is not understood runs as it
stands, by `scalars`, with `portable` (a function as text) and `compiler` (a function as it is, and what is
wrong with it). `loops` chooses, `comparison` plays the choice against plain Python (by `plays`), `generated`
compiles text, `wiring` says who hears whom, `loop_kernel` plays it.
"""

from partita.engine.kernels.nodes.compiler import NodeCompileError

__all__ = ["NodeCompileError"]
