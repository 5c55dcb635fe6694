"""The result of a training: the plan, the parameters, and the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from partita.engine.parameters.files import save_parameters
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.commands import Outcome
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.run.data import check_plan
from partita.engine.run.metrics import Iteration, Record, TrainingProgress
from partita.engine.run.state_files import has_modules, initial_of, save_state, state_dict_of
from partita.layers.text import counted
from partita.partitioner.plan import Plan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Run:
    """A trained network.

    Args:
        plan: the plan that was trained.
        parameters: parameters by name, in their whole shapes.
        steps: steps of each replica; none under a batch method.
        seconds: of training, with the start of the hosts.
        lost_pushes: acknowledged updates that failures have cost.
        history: loss, accuracy, speed and staleness in the course of the run; for a batch method its
            iterations.
        checkpoint: folder or URL of the checkpoints, if they were kept.
        iterations: iterations of a batch method, with those before it was resumed.
        outcome: how the batch method ended; None where there was none, or it was interrupted.
        stopped: why the run ended before all of its epochs or iterations were done; "": it did not.
        validations: the figures of each validation in the course of the run.
        loss_scale: of a plan in float16: the scale at the end, and the steps that were skipped.
    """

    plan: Plan
    parameters: Mapping[str, Vector]
    steps: tuple[int, ...] = ()
    seconds: float = 0.0
    lost_pushes: int = 0
    history: tuple[TrainingProgress | Iteration, ...] = ()
    checkpoint: Path | str | None = None
    iterations: int = 0
    outcome: Outcome | None = None
    stopped: str = ""
    validations: tuple[Record, ...] = ()
    loss_scale: ScaleState | None = None

    def __repr__(self) -> str:
        """Network and progress: `Run(digits: 11,530 parameters, 2 machines; 440 steps in 4.6 s)`."""
        graph, done = self.plan.graph, []
        if self.steps:
            done.append(counted(sum(self.steps), "step"))
        if self.iterations or self.outcome is not None:
            done.append(counted(self.iterations, "iteration"))
        what = f"{counted(graph.n_parameters, 'parameter')}, {counted(len(self.plan.cluster), 'machine')}"
        how = f"; {' and '.join(done)} in {self.seconds:.1f} s" if done else ""
        return f"Run({graph.name}: {what}{how})"

    def following(self, before: Run) -> Run:
        """Joins this run and the run that it began with."""
        return replace(
            self,
            steps=before.steps,
            seconds=before.seconds + self.seconds,
            lost_pushes=before.lost_pushes,
            history=(*before.history, *self.history),
            validations=(*before.validations, *self.validations),
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the parameters as tensors, for `module.load_state_dict(..., strict=True)`.

        A network of `from_torch` has the names, shapes and orders of axes of its module, and the numbers that
        are no parameters; a network that was declared has its own names, with those of a module behind the
        name of its layer `Torch`. A parameter with several names is one tensor. Numbers have the precision of
        the run, or bfloat16 and float16 where the module has these.
        """
        return state_dict_of(self.plan.graph, self.parameters)

    def save(self, path: str | Path) -> Path:
        """Writes the parameters as one safetensors file, atomically: `state_dict()`, where there is a module.

        `safetensors.torch.load_file` reads it too; `load_model` where parameters have several names.
        """
        if has_modules(self.plan.graph):
            save_state(path, self.state_dict())
        else:
            save_parameters(path, dict(self.parameters))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, plan: Plan) -> Self:
        """Reads the parameters that `save` wrote, for any plan of the same network.

        Args:
            path: a file of `save`; a state dict of the network's module as a file of safetensors or
                `torch.save`; or a folder of checkpoints, of which the newest whole one is read.
            plan: of the network.

        Raises:
            ValueError: the file cannot be read, or is of another network: all that differs is listed.
        """
        check_plan(plan)
        plan, parameters = initial_of(plan, Path(path))
        assert parameters is not None, path
        return cls(plan, parameters)
