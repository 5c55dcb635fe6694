"""Runs node definitions: from a user's functions of one node to all nodes, edges and examples.

`source` finds the text of a function; `reader` (with `syntax`, `expressions` and `functions`) parses it into
the statements of `ir`, where every value is assigned once. All else are passes over these: `backward` derives
a `downward` that the user did not write (with the slopes in `derivatives`); `kinds`, `passes`, `places` and
`grouping` prepare loops with the examples innermost, which `vectors` (with `text`, `writer` and `tiles`)
writes, `loops` compiles (`generated`) and `loop_kernel` runs. `sums` finds weighted sums, whose products run
in the loops of the local layers (`sum_kernels`). On a device, and for what loops do not express,
`torch_kernel` runs the statements in torch (`on_torch`), or the functions in plain Python.
`wiring` holds the edges, `comparison` compares the chosen form with plain Python, `derived` gives
`check_gradients` the derived function of one node, and `errors` has what a user reads.
"""

from partita.engine.kernels.nodes.errors import NodeCompileError

__all__ = ["NodeCompileError"]
