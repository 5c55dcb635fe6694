"""Loops in LLVM's language whose sums stay in registers: `vector_products` of small matrices and
`transposition`.

`runs` moves rows of a few numbers, `llvm_vectors` writes for the machine's vectors, `scratch` holds arrays
for the threads of a pool.
"""

from partita.engine.kernels.tiles.vector_products import Extent, Strides, multiply

__all__ = ["Extent", "Strides", "multiply"]
