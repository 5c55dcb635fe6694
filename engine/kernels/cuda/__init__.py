"""The arithmetic of layers on a GPU, on tensors of torch: imported only by a part that has one.

`table` says which kernel plays which layer. `dense` and `convolution` are torch's products and convolutions;
`elementwise`, `pooling`, `normalisation` and `losses` its operations on whole tensors, and `activations`
what they share. `local` plays locally connected layers by the compiled kernels in `local_loops`, and `node`
any node definition by those that `node_text` writes for it. `tensors` is what a kernel sees of its arrays,
and `arrays` what a compiled one does.
"""

__all__: list[str] = []
