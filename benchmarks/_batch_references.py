"""The problems in PyTorch, and how SciPy and PyTorch minimise them. Nothing here knows how Partita
computes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from scipy import optimize
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._batch_nodes import SLOPE, STEEP
from benchmarks._batch_problems import Problem
from benchmarks._recipe import Array
from partita.layers import Dense, SoftmaxCrossEntropy

DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Found:
    """The result of a method.

    Args:
        loss: at the end.
        iterations, evaluations: in all.
        losses: after each iteration where that is known, else of each evaluation.
        seconds: since the first evaluation began, when each of these losses was known.
        point: the parameters at the end, one after another; empty where nobody asks.
    """

    loss: float
    iterations: int
    evaluations: int
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    point: Array

    def reached(self, loss: float) -> int | None:
        """The index of the first loss that is as small."""
        return next((n for n, found in enumerate(self.losses) if found <= loss), None)


class Reference(nn.Module):
    """A problem's function of its parameters: called without arguments, it gives what is to be minimised.

    Args:
        problem: whose network is dense layers in a row, or one of `_batch_nodes`.
        initial: parameters by name.
        precision: "float32" or "float64".
    """

    def __init__(self, problem: Problem, initial: Mapping[str, Array], precision: str = "float64") -> None:
        super().__init__()
        self._dtype, self._l2 = DTYPES[precision], problem.l2
        self._data = [self._tensor(array) for array in problem.data.values()]
        self._weights = nn.ParameterList([nn.Parameter(self._tensor(a)) for a in initial.values()])
        graph = problem.graph
        layers = [grid.layer for grid in graph.computed]
        self._activations = [layer.activation for layer in layers if isinstance(layer, Dense)]
        self._labels = any(isinstance(layer, SoftmaxCrossEntropy) for layer in layers)
        self._mean_loss = self._chain if self._activations else FUNCTIONS[graph.name.split("-")[0]]

    def _tensor(self, array: Array) -> Tensor:
        labels = array.dtype == np.int64
        return torch.tensor(array, dtype=torch.int64 if labels else self._dtype)

    def _chain(self, weights: list[Tensor], rows: Tensor, asked: Tensor) -> Tensor:
        states = rows
        pairs = zip(weights[::2], weights[1::2], strict=True)
        for (weight, bias), activation in zip(pairs, self._activations, strict=True):
            states = functional.linear(states, weight, bias)
            states = torch.tanh(states) if activation == "tanh" else states
        if self._labels:
            return functional.cross_entropy(states, asked)
        return 0.5 * (states - asked).square().sum() / len(asked)

    def forward(self) -> Tensor:
        weights = list(self._weights)
        loss = self._mean_loss(weights, *self._data)
        if self._l2:
            loss = loss + 0.5 * self._l2 * sum(weight.square().sum() for weight in weights)
        return loss

    def move(self, point: Array) -> None:
        """The parameters, one after another, become these."""
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.as_tensor(point, dtype=self._dtype), self.parameters())

    def at(self, point: Array) -> tuple[float, Array]:
        """The value and the gradient where the parameters, one after another, are these."""
        self.move(point)
        self.zero_grad()
        loss = self()
        loss.backward()
        return loss.item(), np.concatenate([_gradient(weight) for weight in self._weights])

    @property
    def point(self) -> Array:
        """The parameters, one after another, in float64."""
        found: Array = nn.utils.parameters_to_vector(self.parameters()).detach().numpy()
        return found.astype(np.float64)


def _gradient(weight: Tensor) -> Array:
    assert weight.grad is not None
    return weight.grad.numpy().ravel().astype(np.float64)


def _rosenbrock(weights: list[Tensor], start: Tensor, zero: Tensor) -> Tensor:
    x = (start + weights[0])[..., 0]
    steep, slope = STEEP * (x[:, 1:] - x[:, :-1].square()), SLOPE * (1.0 - x[:, :-1])
    return 0.5 * ((steep - zero[..., 0]).square() + (slope - zero[..., 0]).square()).sum() / len(x)


def _quadratic(weights: list[Tensor], scale: Tensor, goal: Tensor) -> Tensor:
    return 0.5 * (scale * weights[0] - goal).square().sum() / len(goal)


FUNCTIONS: Final[Mapping[str, Callable[..., Tensor]]] = {"rosenbrock": _rosenbrock, "quadratic": _quadratic}
"""Functions in PyTorch, by the name of the network without its size."""


def by_scipy(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    gtol: float,
    ftol: float,
    history: int = 10,
    max_iterations: int = 10_000,
    until: float = -np.inf,
) -> Found:
    """L-BFGS-B without bounds; `until`: an iteration whose loss is as small ends it."""
    losses, seconds, began = [], [], time.perf_counter()

    def after_iteration(intermediate_result: Any) -> None:
        losses.append(float(intermediate_result.fun))
        seconds.append(time.perf_counter() - began)
        if losses[-1] <= until:
            raise StopIteration

    options = {"maxcor": history, "gtol": gtol, "ftol": ftol, "maxiter": max_iterations, "maxfun": 10**6}
    found = optimize.minimize(
        function, start, jac=True, method="L-BFGS-B", options=options, callback=after_iteration
    )
    return Found(float(found.fun), found.nit, found.nfev, tuple(losses), tuple(seconds), found.x)


def by_torch(
    reference: Reference,
    *,
    gtol: float,
    ftol: float = 0.0,
    history: int = 10,
    max_evaluations: int = 100_000,
    loss: Callable[[], Tensor] | None = None,
    until: float = -np.inf,
) -> Found:
    """L-BFGS with a strong Wolfe line search, from where the reference stands.

    Args:
        reference: it is left at the minimum.
        gtol: largest absolute value in the gradient.
        ftol: absolute change of the loss, and of the parameters.
        history: pairs.
        max_evaluations: at most.
        loss: the function, if not the reference itself: a compiled form of it.
        until: an evaluation whose loss is as small ends it.
    """
    compute: Callable[[], Tensor] = reference if loss is None else loss
    losses, seconds = [], []
    method = torch.optim.LBFGS(
        reference.parameters(),
        max_iter=max_evaluations,
        max_eval=max_evaluations,
        tolerance_grad=gtol,
        tolerance_change=ftol,
        history_size=history,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        method.zero_grad()
        value = compute()
        value.backward()
        losses.append(value.item())
        seconds.append(time.perf_counter() - began)
        if losses[-1] <= until:
            raise _Reached
        return value

    began = time.perf_counter()
    with contextlib.suppress(_Reached):
        method.step(closure)  # type: ignore[arg-type, unused-ignore]
    (state,) = method.state.values()
    iterations = int(state.get("n_iter", 0))
    return Found(losses[-1], iterations, len(losses), tuple(losses), tuple(seconds), reference.point)


class _Reached(Exception):
    """Raised when the loss is small enough."""
