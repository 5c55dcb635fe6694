"""Runs node definitions: from a user's functions of one node to all nodes, edges and examples.

`source` finds the text of a function; `reader` (with `syntax`, `expressions` and `functions`) parses it into
the small tree of `ir`. A `downward` that the user did not write is derived from `upward`: `named` gives
every value a name, `backward` differentiates, with the slopes in `derivatives`. `kinds`, `passes`, `places`,
`templates` and `grouping` transform the tree; `vectors` (with `text`, `writer` and `tiles`) writes it as
loops with the examples innermost, which `loops` compiles (`generated`) and `loop_kernel` runs. `sums` finds
weighted sums, whose products run in the loops of the local layers (`sum_kernels`). On a device, and for what
loops do not express, `torch_kernel` runs the tree in torch (`on_torch`), or the functions in plain Python.
`wiring` holds the edges, `comparison` compares the chosen form with plain Python, `derived` gives
`check_gradients` the derived function of one node, and `errors` has what a user reads.
"""

from partita.engine.kernels.nodes.errors import NodeCompileError

__all__ = ["NodeCompileError"]
