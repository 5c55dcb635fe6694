"""Kernels on a device of torch: the host's memory as "torch", or a GPU. Importing a module here imports
torch.

`dense` sums over blocks of inputs, and over the inputs of several machines; `losses` evaluate their own
scores and exchange summaries. Both derive from `tensor_kernel` and use `activations`. Every other layer runs
by its `forward` (`layer_form`), and a layer without one on the host (`on_host`).
"""

__all__: list[str] = []
