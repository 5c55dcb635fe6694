"""The arithmetic of layers on a GPU, on tensors of torch: imported only by a part that has one.

`table` lists the kernels. `dense` and `convolution` are torch's products and convolutions; `elementwise`,
`pooling`, `normalisation` and `losses` its operations on whole tensors, with `activations`. `local` computes
locally connected layers by the compiled kernels in `local_loops`, and `node` any node definition by those
that `node_text` writes for it. `tensors` converts the arrays of a kernel to tensors, and `arrays` those to
the arrays of compiled kernels.
"""

__all__: list[str] = []
