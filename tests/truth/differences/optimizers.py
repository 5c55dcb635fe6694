"""Checks of optimizers, schedules and clipping."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from partita.engine import (
    LAMB,
    LARS,
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Cosine,
    LinearWarmup,
    Momentum,
    Optimizer,
    RMSProp,
    StepDecay,
)
from partita.engine.parameters import UpdateContext
from partita.engine.parameters.optimizers.optimizer import clip_factor
from partita.layers import (
    L2,
)
from tests.truth.differences.rows import row


@row("learning rate by default")
def _() -> bool:
    optim = torch.optim
    slow, fast = (optim.SGD, optim.Adam, optim.AdamW), (optim.Adagrad, optim.RMSprop)
    assert [inspect.signature(kind).parameters["lr"].default for kind in slow] == [1e-3] * 3
    assert [inspect.signature(kind).parameters["lr"].default for kind in fast] == [1e-2] * 2
    first, *_ = dataclasses.fields(SGD)
    return first.default is not dataclasses.MISSING


def steps_agree(optimizer: Optimizer, theirs: Callable[..., torch.optim.Optimizer]) -> bool:
    """Whether five updates by ordinary, tiny and zero gradients lead to the same values."""
    draw = np.random.default_rng(1)
    values = draw.normal(size=6)
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    reference, state = theirs([parameter]), optimizer.state(6, np.float64)
    for t in range(5):
        gradient = draw.normal(size=6) * [1, 1, 1, 1, 1e-9, 0]
        optimizer.bind(values, gradient, state)(UpdateContext(t))
        parameter.grad = torch.from_numpy(gradient)
        reference.step()
    return bool(np.allclose(values, parameter.detach().numpy(), rtol=1e-12, atol=1e-15))


@row("form of `Momentum`")
def _() -> bool:
    return steps_agree(Momentum(0.1, 0.8), lambda p: torch.optim.SGD(p, 0.1, momentum=0.8))


@row("factor of `Momentum` by default")
def _() -> bool:
    assert steps_agree(SGD(0.1), lambda p: torch.optim.SGD(p, 0.1))
    assert steps_agree(Momentum(0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    return steps_agree(Momentum(0.1), lambda p: torch.optim.SGD(p, 0.1))


@row("`nesterov` by default")
def _() -> bool:
    theirs = inspect.signature(torch.optim.SGD).parameters["nesterov"].default
    return theirs is Momentum(0.1).nesterov


@row("optimizers of a sparse gradient")
def _() -> bool:
    def takes(optimizer: Callable[..., Any], **settings: Any) -> bool:
        weight = torch.nn.Parameter(torch.ones(3, 2))
        with torch.sparse.check_sparse_tensor_invariants(enable=True):
            torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
            try:
                optimizer([weight], lr=0.1, **settings).step()
            except RuntimeError:
                return False
        return True

    assert takes(torch.optim.SGD) and takes(torch.optim.Adagrad) and takes(torch.optim.SparseAdam)
    assert SGD(0.1).supports_sparse and Adagrad(0.1).supports_sparse
    assert not takes(torch.optim.Adam) and not Adam(0.1).supports_sparse
    return takes(torch.optim.SGD, momentum=0.9) is Momentum(0.1).supports_sparse


@row("weight decay of `SGD`, `Adam`, `Adagrad`, `RMSProp`")
def _() -> bool:
    optim = torch.optim
    pairs: list[tuple[Any, Any]] = [
        (SGD, optim.SGD),
        (Adam, optim.Adam),
        (Adagrad, optim.Adagrad),
        (RMSProp, optim.RMSprop),
    ]
    return all(
        steps_agree(ours(0.1, **decay), lambda p, theirs=theirs, decay=decay: theirs(p, 0.1, **decay))
        for ours, theirs in pairs
        for decay in ({}, {"weight_decay": 0.3})
    )


@row("`L2(b)` of a layer")
def _() -> bool:
    weight = torch.tensor([3.0, -2.0], requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, weight_decay=0.25)
    weight.grad = torch.zeros(2)
    optimizer.step()
    theirs = np.array([3.0, -2.0]) - weight.detach().numpy()
    term, ours = L2(0.25).term(np.array([3.0, -2.0]))
    assert term == 0.25 * 13 and (ours == 2 * theirs).all()
    return bool((ours == theirs).all())


@row("weight decay of `AdamW`")
def _() -> bool:
    return AdamW(0.1).weight_decay == 0.01 and steps_agree(AdamW(0.1), lambda p: torch.optim.AdamW(p, 0.1))


@row("`Adam`'s betas and epsilon")
def _() -> bool:
    adam = Adam(0.1)
    assert (*adam.betas, adam.epsilon) == (0.9, 0.999, 1e-8)
    return steps_agree(adam, lambda p: torch.optim.Adam(p, 0.1))


@row("`Adagrad`'s accumulator and epsilon")
def _() -> bool:
    adagrad = Adagrad(0.1)
    assert (adagrad.initial_accumulator, adagrad.epsilon) == (0, 1e-10)
    return steps_agree(adagrad, lambda p: torch.optim.Adagrad(p, 0.1))


@row("`RMSProp`'s alpha, epsilon, momentum and centering")
def _() -> bool:
    optimizer = RMSProp(0.1)
    assert (optimizer.alpha, optimizer.epsilon, optimizer.momentum, optimizer.centered) == (
        0.99,
        1e-8,
        0,
        False,
    )
    return steps_agree(optimizer, lambda p: torch.optim.RMSprop(p, 0.1))


@row("`LARS`")
def _() -> bool:
    assert LARS(0.1).momentum == 0.9
    return hasattr(torch.optim, "LARS")


@row("`LAMB`")
def _() -> bool:
    assert LAMB(0.1).weight_decay == 0.01
    return hasattr(torch.optim, "LAMB")


@row("clipping a norm")
def _() -> bool:
    parameter = torch.nn.Parameter(torch.zeros(3).double())
    parameter.grad = torch.tensor([3e-6, 4e-6, 0.0]).double()
    torch.nn.utils.clip_grad_norm_([parameter], 1e-6)
    factor = clip_factor({"w": (0.0, 25e-12)}, 1e-6)
    return bool(np.allclose(parameter.grad.numpy(), factor * np.array([3e-6, 4e-6, 0]), rtol=1e-12))


def scheduled(scheduler: Callable[[torch.optim.Optimizer], Any], n: int) -> list[float]:
    """The rates that a scheduler of torch gives to updates, from 0.1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    schedule, found = scheduler(optimizer), []
    for _ in range(n):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


@row("`StepDecay`'s factor by default")
def _() -> bool:
    theirs = scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 3), 8)
    return bool(np.allclose([StepDecay(0.1, 3).at(t) for t in range(8)], theirs))


@row("`Cosine` after its last step")
def _() -> bool:
    theirs = scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4), 8)
    ours = [Cosine(0.1, 4).at(t) for t in range(8)]
    np.testing.assert_allclose(ours[:5], theirs[:5], atol=1e-12)
    assert ours[5] == 0 < theirs[5]
    return bool(np.allclose(ours, theirs))


@row("warm-up")
def _() -> bool:
    theirs = scheduled(torch.optim.lr_scheduler.LinearLR, 6)
    ours = [LinearWarmup(5, 0.1).at(t) for t in range(6)]
    np.testing.assert_allclose([theirs[0], theirs[5], ours[0], ours[5]], [0.1 / 3, 0.1, 0.1 / 6, 0.1])
    return bool(np.allclose(ours, theirs))


@row("pairs that `LBFGS` keeps by default")
def _() -> bool:
    theirs = inspect.signature(torch.optim.LBFGS).parameters["history_size"].default
    assert (theirs, LBFGS().history) == (100, 10)
    return theirs == LBFGS().history  # type: ignore[no-any-return]
