"""The optimizers of torch that correspond to those of the package."""

from __future__ import annotations

from typing import Any

import torch

from partita.engine import SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RMSProp


def torch_of(optimizer: Optimizer, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    rest: dict[str, Any] = {
        "lr": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "foreach": False,
    }
    match optimizer:
        case AdamW(betas=betas, epsilon=epsilon):
            return torch.optim.AdamW([parameter], betas=betas, eps=epsilon, **rest)
        case Adam(betas=betas, epsilon=epsilon):
            return torch.optim.Adam([parameter], betas=betas, eps=epsilon, **rest)
        case RMSProp(alpha=alpha, epsilon=epsilon, momentum=momentum, centered=centered):
            rest |= {"momentum": momentum, "centered": centered}
            return torch.optim.RMSprop([parameter], alpha=alpha, eps=epsilon, **rest)
        case Adagrad(initial_accumulator=start, epsilon=epsilon):
            return torch.optim.Adagrad([parameter], initial_accumulator_value=start, eps=epsilon, **rest)
        case Momentum(momentum=momentum, nesterov=nesterov):
            return torch.optim.SGD([parameter], momentum=momentum, nesterov=nesterov, **rest)
        case SGD():
            return torch.optim.SGD([parameter], **rest)
    raise AssertionError(optimizer)
