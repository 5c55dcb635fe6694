"""Products of two matrices, by the library that the plan determines.

`product` prepares one: by NumPy's BLAS (`blas` keeps it on one thread), by torch (`torch_products`, imported
where it is needed), or by our own `tiles`. `differentiable` makes the product that layers' `forward` has.
"""

from partita.engine.kernels.products.product import product

__all__ = ["product"]
