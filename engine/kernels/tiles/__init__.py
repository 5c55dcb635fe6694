"""Loops whose sums stay in registers: what layers on patches, convolutions and products of matrices share.

`vector_products` multiplies a tile of rows by a tile of vectors, `transposition` turns matrices in registers;
both are written with the vectors of `llvm_vectors`. `scratch` is memory that threads borrow.
"""

from partita.engine.kernels.tiles.vector_products import Extent, Strides, multiply

__all__ = ["Extent", "Strides", "multiply"]
