"""A module of PyTorch, cut over two machines, trained, and taken home with the names it had.

    python from_pytorch.py        (half a minute)

The module knows nothing of Partita. Its operations become layers, the layers are cut, and after training
`run.state_dict()` loads into the module with `strict=True`.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from partita.engine import Adam, AllReduce, from_torch, train
from partita.layers import Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition


class Digits(nn.Module):
    """Two convolutions with batch normalisation, and ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.scores = nn.Linear(32 * 4 * 4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Scores `[example, 10]` of pictures `[example, 1, 8, 8]`."""
        return self.scores(self.features(image).flatten(1))


def network(module: nn.Module) -> Network:
    """The layers that the module computes, and a loss."""
    net = from_torch(module, (torch.empty(2, 1, 8, 8),), name="digits")
    net.loss = SoftmaxCrossEntropy(name="loss")(net.output, net.target("digit"))
    return net


def data() -> dict[str, np.ndarray]:
    """Scikit-learn's digits, in the module's order of axes."""
    digits = load_digits()
    return {"image": digits.images[:, None].astype(np.float32) / 16, "digit": digits.target}


def main(epochs: int = 5) -> None:
    """Trains the network over two machines, and lets the module itself look at the pictures."""
    torch.manual_seed(0)
    module = Digits()
    plan = partition(network(module), Cluster.local(machines=2), batch=32, strategy="balanced")
    run = train(plan, data(), driver=AllReduce(optimizer=Adam(0.003)), epochs=epochs)

    module.load_state_dict(run.state_dict(), strict=True)
    module.eval()
    with torch.no_grad():
        found = module(torch.from_numpy(data()["image"])).argmax(1).numpy()
    print(f"accuracy of the module: {(found == data()['digit']).mean():.3f}")


if __name__ == "__main__":
    main()
