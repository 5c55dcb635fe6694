"""Loops in LLVM's language whose sums stay in registers: `vector_products` of small matrices and
`transposition`.

`forms` are the tiles that there is code for, and `choice` reads which of them the plan has chosen. `runs`
moves rows of a few numbers, `llvm_vectors` writes for vectors, `scratch` holds arrays for the threads of a
pool.
"""

from partita.engine.kernels.tiles.vector_products import Extent, Strides, multiply

__all__ = ["Extent", "Strides", "multiply"]
