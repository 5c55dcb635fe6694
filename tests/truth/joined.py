"""Synchronous training of one process on joined batches: a plain loop in torch and float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from partita.engine import Optimizer
from partita.engine.parameters import initialise
from partita.layers import Conv2D, Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Plan
from tests.parameters.in_torch import torch_of

Arrays = dict[str, np.ndarray[Any, Any]]
CLASSES = 3


def picture_network() -> Network:
    """A network whose filters are shared by all rows, so that machines that cut a layer share them."""
    net = Network("filters")
    picture = net.input("picture", shape=(6, 5, 2))
    filtered = Conv2D(3, 3, padding=1, activation="tanh", name="filters")(picture)
    scores = Dense(CLASSES, name="scores")(filtered)
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    return net


def picture_data(examples: int) -> Arrays:
    """Pictures in a seeded order, and classes that depend on them."""
    draw = np.random.default_rng(3)
    pictures = draw.normal(size=(examples, 6, 5, 2))
    classes = pictures.reshape(examples, -1) @ draw.normal(size=(60, CLASSES))
    return {"picture": pictures, "digit": classes.argmax(axis=1)}


def scores_of(parameters: Mapping[str, torch.Tensor], picture: torch.Tensor) -> torch.Tensor:
    """The scores of `picture_network`, `[example, class]`."""
    weight = parameters["filters.weight"].permute(0, 3, 1, 2)
    filtered = functional.conv2d(picture.permute(0, 3, 1, 2), weight, parameters["filters.bias"], padding=1)
    flat = torch.tanh(filtered).permute(0, 2, 3, 1).reshape(len(picture), -1)
    return functional.linear(flat, parameters["scores.weight"], parameters["scores.bias"])


def trained_alone(plan: Plan, data: Arrays, optimizer: Optimizer, *, batch: int, epochs: int) -> Arrays:
    """Parameters of `picture_network` after some epochs of joined batches.

    Args:
        plan: of the network, for the first parameters of seed 0.
        data: of `picture_data`.
        optimizer: without norms; or SGD with `clip_norm`.
        batch: examples of all replicas in a step.
        epochs: passes over the data.
    """
    first = initialise(plan.graph.parameters.values(), 0, dtype="float64")
    parameters = {name: torch.nn.Parameter(torch.from_numpy(one.copy())) for name, one in first.items()}
    updates = [torch_of(optimizer, one) for one in parameters.values()]
    for chosen in _batches(len(data["digit"]), batch, epochs):
        scores = scores_of(parameters, torch.from_numpy(data["picture"][chosen]))
        loss = functional.cross_entropy(scores, torch.from_numpy(data["digit"][chosen]))
        for update in updates:
            update.zero_grad()
        loss.backward()
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), optimizer.clip_norm, foreach=False)
        for update in updates:
            update.step()
    return {name: one.detach().numpy() for name, one in parameters.items()}


def _batches(examples: int, batch: int, epochs: int) -> Iterator[np.ndarray[Any, Any]]:
    """The joined batches of seed 0, by the definition of the order: one permutation for each epoch."""
    for epoch in range(epochs):
        order = np.random.default_rng([0, 2, epoch]).permutation(examples)
        for n in range(math.ceil(examples / batch)):
            yield order[n * batch : (n + 1) * batch]
