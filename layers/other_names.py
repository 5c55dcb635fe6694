"""Names in Keras and PyTorch, answered with those here: of losses, and of the arguments of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

_MEANT: Final = {
    "CrossEntropyLoss": "SoftmaxCrossEntropy",
    "NLLLoss": "SoftmaxCrossEntropy, which takes scores",
    "SparseCategoricalCrossentropy": "SoftmaxCrossEntropy",
    "sparse_categorical_crossentropy": "SoftmaxCrossEntropy",
    "CategoricalCrossentropy": "SoftmaxCrossEntropy with labels, or KLDivergence with probabilities",
    "categorical_crossentropy": "SoftmaxCrossEntropy with labels, or KLDivergence with probabilities",
    "BCELoss": "BinaryCrossEntropy, which takes scores",
    "BCEWithLogitsLoss": "BinaryCrossEntropy",
    "BinaryCrossentropy": "BinaryCrossEntropy",
    "binary_crossentropy": "BinaryCrossEntropy",
    "MSELoss": "HalfSquaredError",
    "MeanSquaredError": "HalfSquaredError",
    "mean_squared_error": "HalfSquaredError",
    "HuberLoss": "Huber",
    "SmoothL1Loss": "Huber: its loss is delta times that of SmoothL1Loss(beta=delta)",
    "KLDivLoss": "KLDivergence, which takes scores",
    "kl_divergence": "KLDivergence",
}

ARGUMENTS: Final[Mapping[str, str | tuple[str, ...]]] = {
    "strides": ("stride",),
    "stride_size": ("stride",),
    "kernel_shape": ("kernel_size",),
    "kernel": ("kernel_size", "pool_size"),
    "kernel_size": ("pool_size", "size"),
    "pool_size": ("kernel_size",),
    "pool": ("pool_size",),
    "window_size": ("pool_size", "size"),
    "dilation_rate": ("dilation",),
    "out_channels": ("filters",),
    "num_filters": ("filters",),
    "channels": ("filters",),
    "filters": ("units",),
    "units": ("filters",),
    "out_features": ("units", "filters"),
    "nodes": ("units", "filters"),
    "bias": ("use_bias",),
    "kernel_initializer": ("initialiser",),
    "kernel_initialiser": ("initialiser",),
    "weight_initializer": ("initialiser",),
    "depthwise_initializer": ("initialiser",),
    "initializer": ("initialiser",),
    "init": ("initialiser",),
    "act": ("activation",),
    "nonlinearity": ("activation",),
    "eps": ("epsilon",),
    "num_groups": ("groups",),
    "affine": ("scale",),
    "requires_grad": ("trainable",),
    "frozen": ("trainable",),
    "bias_initializer": ("bias_initialiser",),
    "bias_init": ("bias_initialiser",),
    "embeddings_initializer": ("initialiser",),
    "in_channels": "leave it out: it follows from what the layer is called on",
    "num_features": "leave it out: it follows from what the layer is called on",
    "num_channels": "leave it out: it follows from what the layer is called on",
    "track_running_stats": "running statistics are always kept; leave it out",
    "center": "`scale` is of the weight and the bias together; write scale=False for none",
    "in_features": "leave it out: it follows from what the layer is called on",
    "input_shape": "leave it out; the shape is that of net.input(name, shape=...)",
    "input_dim": "leave it out; the shape is that of net.input(name, shape=...)",
    "batch_size": "leave it out; the batch is that of partition(net, cluster, batch=...)",
    "padding_mode": "padding is of zeros (of a maximum, minus infinity); leave it out",
    "data_format": "pictures are (height, width, channels); leave it out",
    "dtype": "leave it out; the precision is that of partition(..., precision=...)",
    "device": "leave it out; a machine of the cluster has a device",
    "reduction": "losses are means over the examples; leave it out",
    "from_logits": "losses take scores, not probabilities; leave it out",
    "weight_decay": "it is an argument of the optimizer, for example SGD(0.05, weight_decay=1e-4)",
    "kernel_regularizer": ("regulariser",),
    "embeddings_regularizer": ("regulariser",),
    "regularizer": ("regulariser",),
    "vocab_size": ("classes",),
    "initial_value": ("initialiser",),
    "activity_regularizer": "regularisers are of parameters alone; leave it out",
    "kernel_constraint": "there are no constraints; leave it out",
}
"""The arguments that users of other libraries write for a layer of any kind; the classes add their own."""


def refuse(name: str) -> NoReturn:
    """Answers an attribute that the package does not have.

    Raises:
        ImportError: another library calls a loss so; the message says what to write.
        AttributeError: nothing is called so.
    """
    if name in _MEANT:
        raise ImportError(f"partita.layers has no {name}; did you mean {_MEANT[name]}?")
    raise AttributeError(f"module 'partita.layers' has no attribute {name!r}")
