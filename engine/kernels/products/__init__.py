"""Products of two matrices, by whoever is fastest on this machine.

`product` prepares one: by NumPy's BLAS, by torch (`torch_products`, imported where it is needed), or by our
own `tiles`. `calibration` chooses, from what was measured once and is kept in `calibration_file`;
`calibration_table` shows it.
"""

from partita.engine.kernels.products.product import product

__all__ = ["product"]
