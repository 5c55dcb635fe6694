"""Names of losses in Keras and PyTorch, answered with those here when they are imported."""

from __future__ import annotations

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


def refuse(name: str) -> NoReturn:
    """Answers an attribute that the package does not have.

    Raises:
        ImportError: another library calls a loss so; the message says what to write.
        AttributeError: nothing is called so.
    """
    if name in _MEANT:
        raise ImportError(f"partita.layers has no {name}; did you mean {_MEANT[name]}?")
    raise AttributeError(f"module 'partita.layers' has no attribute {name!r}")
