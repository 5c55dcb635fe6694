"""The parts of a partitioned module: sessions in training and at rest, and the parameters that they have.

At rest there are two: one of forward passes, and one with a backward pass, which starts when the first such
pass is asked for.

Arrays and tensors are those of the network, by its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
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
    """The hosts of a module's parts. Those of each session start when they are needed first.

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
        self._learning: dict[bool, ModuleSession] = {}  # with a backward pass; by whether it is at rest
        self._resting: Session | None = None
        self._sent: dict[int, dict[str, torch.Tensor]] = {}
        self._played: dict[bool, int] = {}  # by the same, the pass whose activations the parts have

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

    def keeps_activations_at_rest(self) -> bool:
        """Returns whether there are parts at rest that can play a backward pass."""
        return True in self._learning

    def play(
        self,
        inputs: Mapping[str, Array],
        examples: int,
        parameters: Parameters,
        *,
        visit: int,
        wanted: Collection[str],
        at_rest: bool,
    ) -> list[torch.Tensor]:
        """Computes the outputs, and keeps what the backward pass needs; see `rest`.

        Args:
            inputs: see `rest`.
            examples: see `rest`.
            parameters: see `rest`.
            visit: number of the pass, from which random numbers follow.
            wanted: the inputs whose gradients will be asked for.
            at_rest: whether layers compute what they compute in `eval()`.
        """
        session = self._learning.get(at_rest)
        if session is None or not set(wanted) <= session.given.entries.keys():
            self._end(at_rest)
            given, first = with_gradients(self.plan, self.outputs, sorted(wanted)), self._arrays(parameters)
            settings: dict[str, Any] = {"given": given, "at_rest": at_rest, "train": True}
            session = ModuleSession(given.plan, first, **settings, **self._settings)
            self._learning[at_rest] = session
            self._keep(session, parameters)
        self._send(session, parameters)
        self._played.pop(at_rest, None)
        found = session.forward(inputs, examples=examples, visit=visit)
        self._played[at_rest] = visit
        return [examples_first(found[name], examples) for name in self.outputs]

    def has(self, visit: int, *, at_rest: bool) -> bool:
        """Returns whether the parts still have the activations of a pass."""
        return self._played.get(at_rest) == visit

    def backward(
        self, gradients: Sequence[torch.Tensor], *, visit: int, at_rest: bool
    ) -> tuple[dict[str, Array], dict[str, torch.Tensor]]:
        """Returns the gradients of all parameters, and those of inputs, `[example, *shape]`.

        Args:
            gradients: of the outputs.
            visit: number of the pass, which the parts have.
            at_rest: see `play`.
        """
        assert self.has(visit, at_rest=at_rest), visit
        del self._played[at_rest]  # its activations give way to gradients
        examples = len(gradients[0])
        given = {
            name: filled(one, self.plan.batch) for name, one in zip(self.outputs, gradients, strict=True)
        }
        found, of_inputs = self._learning[at_rest].backward(given, examples=examples, visit=visit)
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

    def _end(self, at_rest: bool) -> None:
        """Ends the hosts of one of the sessions with a backward pass."""
        session = self._learning.pop(at_rest, None)
        self._played.pop(at_rest, None)
        if session is not None:
            self._sent.pop(id(session), None)
            session.close()

    def close(self) -> None:
        """Ends the hosts of all sessions; calls of the module are refused from then on."""
        self.closed = True
        resting, self._resting = self._resting, None
        with ExitStack() as stack:
            stack.callback(self._sent.clear)
            if resting is not None:
                stack.callback(resting.close)
            for at_rest in tuple(self._learning):
                stack.callback(self._end, at_rest)


def filled(tensor: torch.Tensor, batch: int) -> Array:
    """A tensor's numbers, with zeros for the examples that are missing."""
    found = array_of(tensor, copy=False)
    if len(found) == batch:
        return found
    return np.concatenate([found, np.zeros((batch - len(found), *found.shape[1:]), found.dtype)])


def examples_first(array: Array, examples: int) -> torch.Tensor:
    """The real examples of `[*shape, batch]`."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 0)[:examples]))
