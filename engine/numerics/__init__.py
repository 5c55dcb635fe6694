"""Numbers in memory, and the compilation of code on them.

`compiled` holds the decorators and the fused multiply-add; `compiling` is Numba's compiler with our names and
cache, `fingerprint` the digest of a function's content, `code_files` the files of machine code. `precision`
has the names of precisions, their storage types, and conversions, `arrays` operations on whole arrays,
`functions` the exponential and similar ones for compiled loops, `philox` counted random bits,
`row_gradient` the gradient of a few rows of a table. `cache` finds the user's cache folder.
Nothing here knows a layer, an optimizer or a message.
"""

from partita.engine.numerics.arrays import add_array, aligned, stored
from partita.engine.numerics.compiled import (
    NO,
    ZERO,
    compiled,
    compiled_for_pointers,
    compiled_reassociating,
    compiled_to_be_called,
    fma,
)
from partita.engine.numerics.precision import (
    downcast,
    downcast_array,
    master,
    storage,
    upcast,
    upcast_array,
)
from partita.engine.numerics.row_gradient import RowGradient

__all__ = [
    "NO",
    "ZERO",
    "RowGradient",
    "add_array",
    "aligned",
    "compiled",
    "compiled_for_pointers",
    "compiled_reassociating",
    "compiled_to_be_called",
    "downcast",
    "downcast_array",
    "fma",
    "master",
    "storage",
    "stored",
    "upcast",
    "upcast_array",
]
