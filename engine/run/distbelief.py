"""Training by two functions alone: `DistBelief(outputs, gradients, machines=n)`.

Source: K. Yang and M. Farrell, "Distributed stochastic gradient descent", 2016: a user gives a function that
returns the outputs of a model, one that returns its gradients, and the number of machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from partita.engine.drivers import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.run.run import Run
from partita.engine.run.train import train
from partita.engine.run.user_functions import Named, UserFunction, UserFunctions, fields_of, network_of
from partita.layers.checks import check_whole
from partita.partitioner import Cluster, partition


class DistBelief:
    """A model of two functions, which machines train by Downpour SGD.

    Each machine computes gradients of minibatches by the user's function, and a quarter as many processes
    hold the parameters. Processes that die are started again, and every gradient counts once.

    Attributes:
        run: result of the last `fit`; None before the first.
    """

    def __init__(self, outputs: UserFunction, gradients: UserFunction, *, machines: int = 1) -> None:
        """Takes what is to be computed.

        Args:
            outputs: (parameters, minibatch) -> `[example, ...]`, in NumPy or PyTorch.
            gradients: (parameters, minibatch) -> the gradient of the mean over the examples, for each
                parameter by name, of its shape.
            machines: on which gradients are computed.

        Raises:
            ValueError: a function is none, or the number of machines is not whole and at least 1.
        """
        for name, function in (("outputs", outputs), ("gradients", gradients)):
            if not callable(function):
                raise ValueError(f"{name} is {function!r}; give a function of parameters and a minibatch")
        self._outputs: Final = outputs
        self._gradients: Final = gradients
        self._machines: Final = check_whole(machines, "DistBelief's machines are")
        self._parameters: Named = {}
        self._in_torch = False
        self.run: Run | None = None

    def fit(
        self,
        parameters: Named,
        data: Mapping[str, Any],
        *,
        batch: int = 32,
        epochs: int | None = None,
        driver: Driver | None = None,
        precision: str = "float32",
        **more: Any,
    ) -> DistBelief:
        """Trains from these parameters on. Returns the model itself.

        Args:
            parameters: arrays of NumPy, or tensors of PyTorch, by name; the functions get the same kind.
            data: fields of all examples, with the examples first; a minibatch has some rows of each.
            batch: examples of a minibatch.
            epochs: passes over the data; 1 if not given, where the driver has epochs.
            driver: in the place of `Downpour(replicas=machines, shards=machines / 4)` with `SGD(0.05)`.
            precision: of the parameters and of the fields of a minibatch: "float32" or "float64".
            more: further arguments of `train`, such as `checkpoints` or `show`.

        Raises:
            ValueError: there are no parameters or fields, or the functions do not fit them.
        """
        if not parameters or not data:
            raise ValueError("fit needs at least one parameter and one field of data; give both by name")
        self._in_torch = any(_is_torch(values) for values in parameters.values())
        first = {
            name: np.asarray(values.detach() if _is_torch(values) else values)
            for name, values in parameters.items()
        }
        fields = fields_of(data, precision)
        layer = UserFunctions(
            self._outputs, self._gradients, first, fields, self._nodes(first, data), self._in_torch
        )
        plan = partition(network_of(layer), Cluster.local(), batch=batch, precision=precision)
        chosen = driver or Downpour(replicas=self._machines, shards=max(1, self._machines // 4))
        flat = {
            name: np.asarray(values).reshape(len(values), *(shape or (1,)))
            for (name, shape, _), values in zip(fields, data.values(), strict=True)
        }
        passes = 1 if epochs is None and not chosen.ends else epochs
        self.run = train(plan, flat, driver=chosen, epochs=passes, **more)
        self._parameters = {
            name: self.run.parameters[f"functions.{name}"].reshape(values.shape)
            for name, values in first.items()
        }
        return self

    def _nodes(self, first: Named, data: Mapping[str, Any]) -> int:
        """Returns the numbers that `outputs` has for each example, by calling it on two.

        Raises:
            ValueError: it returns no row for each example.
        """
        some = {name: values[:2] for name, values in data.items()}
        examples = {len(values) for values in some.values()}
        found = self._outputs(self._same_kind(first), self._same_kind(some))
        shape = np.shape(found.detach() if _is_torch(found) else found)
        if len(examples) == 1 and shape[:1] != tuple(examples):
            raise ValueError(
                f"outputs(parameters, batch) has returned the shape {shape} for {examples.pop()} examples; "
                "return the examples first, a row for each"
            )
        return max(1, int(math.prod(shape[1:])))

    @property
    def parameters(self) -> Named:
        """The trained parameters, of the kind that `fit` was given. Raises RuntimeError before the first."""
        if not self._parameters:
            raise RuntimeError("the model is not trained yet; call fit(parameters, data) first")
        return self._same_kind(self._parameters)

    def predict(self, data: Mapping[str, Any]) -> Any:
        """Returns the outputs of examples, computed in this process. Raises RuntimeError before `fit`."""
        return self._outputs(self.parameters, self._same_kind(data))

    def _same_kind(self, arrays: Named) -> Named:
        if not self._in_torch:
            return {name: np.asarray(values) for name, values in arrays.items()}
        import torch

        return {name: torch.as_tensor(values) for name, values in arrays.items()}


def _is_torch(values: Any) -> bool:
    """Returns whether these are a tensor or a parameter of PyTorch, which is not imported for that."""
    return type(values).__module__.partition(".")[0] == "torch"
