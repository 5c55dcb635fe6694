"""The parts of a partitioned module: sessions in training and at rest, and the parameters that they have.

Arrays and tensors are those of the network, by its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from partita.engine.kernels.kernel import Array
from partita.engine.launch.on import On
from partita.engine.pytorch.state_dict import array_of
from partita.engine.run.given_gradients import up_to, with_gradients
from partita.engine.run.module_session import ModuleSession
from partita.engine.run.session import Hosts, Session
from partita.partitioner.plan import Plan

Parameters = Mapping[str, torch.Tensor]


class ModuleParts:
    """The hosts of a module's parts. Those of training, and those at rest, start when they are needed first.

    Attributes:
        plan: without losses.
        outputs: names of the layers whose activations are returned.
        closed: whether they have ended for good.
    """

    def __init__(
        self,
        plan: Plan,
        outputs: tuple[str, ...],
        as_array: Callable[[str, torch.Tensor], Array],
        *,
        hosts: Hosts | On | str,
        seed: int,
        timeout_s: float,
    ) -> None:
        """Starts nothing yet.

        Args:
            plan: of the network.
            outputs: see the attribute.
            as_array: makes the network's array of the tensor of a parameter.
            hosts: see `as_module`.
            seed: see there.
            timeout_s: see there.
        """
        self.plan, self.outputs, self.closed = up_to(plan, outputs), outputs, False
        self._as_array, self._seed = as_array, seed
        self._settings: Final[dict[str, Any]] = {"hosts": hosts, "timeout_s": timeout_s, "show": "nothing"}
        self._training: ModuleSession | None = None
        self._resting: Session | None = None
        self._sent: dict[int, dict[str, torch.Tensor]] = {}
        self._played: int | None = None  # the pass whose activations the parts have

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make the same parts, but for `as_array`."""
        hosts, timeout_s = self._settings["hosts"], self._settings["timeout_s"]
        return {
            "plan": self.plan,
            "outputs": self.outputs,
            "hosts": hosts,
            "seed": self._seed,
            "timeout_s": timeout_s,
        }

    def rest(self, inputs: Mapping[str, Array], examples: int, parameters: Parameters) -> list[torch.Tensor]:
        """Computes the outputs at rest, `[example, *shape]` each.

        Args:
            inputs: by name, `[batch, *shape]`.
            examples: the real ones of the batch.
            parameters: by name.
        """
        if self._resting is None:
            self._resting = Session(self.plan, self._arrays(parameters), train=False, **self._settings)
            self._keep(self._resting, parameters)
        self._send(self._resting, parameters)
        found = self._resting.step(inputs, examples=examples, collect=self.outputs).collected
        return [examples_first(found[name], examples) for name in self.outputs]

    def train(
        self,
        inputs: Mapping[str, Array],
        examples: int,
        parameters: Parameters,
        *,
        visit: int,
        wanted: Collection[str],
    ) -> list[torch.Tensor]:
        """Computes the outputs in training, and keeps what the backward pass needs; see `rest`.

        Args:
            inputs: see `rest`.
            examples: see `rest`.
            parameters: see `rest`.
            visit: number of the pass, from which random numbers follow.
            wanted: the inputs whose gradients will be asked for.
        """
        if self._training is None or not set(wanted) <= self._training.given.entries.keys():
            self._end_training()
            given = with_gradients(self.plan, self.outputs, sorted(wanted))
            first = self._arrays(parameters)
            self._training = ModuleSession(given.plan, first, given=given, train=True, **self._settings)
            self._keep(self._training, parameters)
        self._send(self._training, parameters)
        self._played = None
        found = self._training.forward(inputs, examples=examples, visit=visit)
        self._played = visit
        return [examples_first(found[name], examples) for name in self.outputs]

    def has(self, visit: int) -> bool:
        """Returns whether the parts still have the activations of a pass."""
        return self._played == visit

    def backward(
        self, gradients: Sequence[torch.Tensor], *, visit: int
    ) -> tuple[dict[str, Array], dict[str, torch.Tensor]]:
        """Returns the gradients of all parameters, and those of inputs, `[example, *shape]`.

        Args:
            gradients: of the outputs.
            visit: number of the pass, which the parts have.
        """
        assert self._training is not None and self.has(visit), visit
        self._played, examples = None, len(gradients[0])  # its activations give way to gradients
        given = {
            name: filled(one, self.plan.batch) for name, one in zip(self.outputs, gradients, strict=True)
        }
        found, of_inputs = self._training.backward(given, examples=examples, visit=visit)
        return found, {name: examples_first(one, examples) for name, one in of_inputs.items()}

    def _send(self, session: Session, parameters: Parameters) -> None:
        """Sends a session's parts all parameters if one has changed since."""
        sent = self._sent.get(id(session))
        if sent is not None and all(torch.equal(one, sent[name]) for name, one in parameters.items()):
            return
        session.load(self._arrays(parameters))
        self._keep(session, parameters)

    def _arrays(self, parameters: Parameters) -> dict[str, Array]:
        return {name: self._as_array(name, one) for name, one in parameters.items()}

    def _keep(self, session: Session, parameters: Parameters) -> None:
        self._sent[id(session)] = {name: one.detach().clone() for name, one in parameters.items()}

    def _end_training(self) -> None:
        session, self._training, self._played = self._training, None, None
        if session is not None:
            self._sent.pop(id(session), None)
            session.close()

    def close(self) -> None:
        """Ends the hosts of both sessions; calls of the module are refused from then on."""
        self.closed = True
        resting, self._resting = self._resting, None
        try:
            self._end_training()
        finally:
            self._sent.clear()
            if resting is not None:
                resting.close()


def filled(tensor: torch.Tensor, batch: int) -> Array:
    """A tensor's numbers, with zeros for the examples that are missing."""
    found = array_of(tensor, copy=False)
    if len(found) == batch:
        return found
    return np.concatenate([found, np.zeros((batch - len(found), *found.shape[1:]), found.dtype)])


def examples_first(array: Array, examples: int) -> torch.Tensor:
    """The real examples of `[*shape, batch]`."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 0)[:examples]))
