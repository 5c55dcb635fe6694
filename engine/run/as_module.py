"""`as_module`: a partitioned network as a module of PyTorch, for somebody else's training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from partita.engine.kernels.kernel import Array
from partita.engine.launch.on import On
from partita.engine.numerics import master
from partita.engine.parameters.initial_values import initialise
from partita.engine.pytorch.state_dict import array_of, entries_of, state_of, tensor_of
from partita.engine.run.data import check_plan
from partita.engine.run.module_parts import ModuleParts, filled
from partita.engine.run.run import Run
from partita.engine.run.session import Hosts
from partita.layers.graph import Grid
from partita.layers.layer import Placeholder
from partita.layers.module_state import ModuleState
from partita.layers.states import SymbolicTensor
from partita.layers.text import counted
from partita.partitioner.plan import Plan


def as_module(
    plan: Plan,
    run: Run | None = None,
    *,
    outputs: Sequence[str | SymbolicTensor] = (),
    hosts: Hosts | On | str | None = None,
    seed: int = 0,
    timeout_s: float = 300.0,
) -> PartitionedModule:
    """Makes a module of PyTorch of a partitioned network.

    Each parameter is a `torch.nn.Parameter`, with the name and shape that it has in the module of which the
    network was made, or its own name; any optimizer of PyTorch changes it. The parts receive parameters that
    have changed before the next forward pass, and return their gradients. Losses of the network count for
    nothing.

    Args:
        plan: of the network; its batch is the largest number of examples in a call.
        run: the run whose parameters it begins with; those of the plan's network if not given.
        outputs: the layers whose activations it returns; if not given, those that the losses evaluate, or the
            last ones.
        hosts: "inline", "threads", "processes" or where they are started beyond this machine, as in
            `Session`; "inline" for one machine and "threads" for several if not given.
        seed: of drawn initial values, and of dropout.
        timeout_s: seconds that hosts may take to start, and for any pass.

    Raises:
        ValueError: the run or an output is of another network.
    """
    check_plan(plan)
    graph = plan.graph
    names = tuple(one.name if isinstance(one, SymbolicTensor) else one for one in outputs) or graph.scores
    known = [grid.name for grid in graph.computed if grid.name not in graph.losses]
    if not set(names) <= set(known) or len(set(names)) < len(names):
        raise ValueError(
            f"the outputs are {', '.join(names)}; name some layers, once each, of {', '.join(known)}"
        )
    if run is not None and run.plan.graph.fingerprint != graph.fingerprint:
        raise ValueError(f"the run is of network '{run.plan.graph.name}', and the plan of '{graph.name}'")
    dtype = master(plan.precision).name
    run = run or Run(plan, initialise(graph.parameters.values(), seed, dtype=dtype))
    place = hosts or ("inline" if len(plan.cluster) == 1 else "threads")
    return PartitionedModule(plan, run, names, hosts=place, seed=seed, timeout_s=timeout_s)


class PartitionedModule(nn.Module):
    """A partitioned network as a module; made by `as_module`.

    Call it from one thread at a time. Hosts start with the first call, in training and at rest apart, and end
    with `close()` or the block of a `with` statement. A copy starts hosts of its own.
    """

    def __init__(
        self,
        plan: Plan,
        run: Run,
        outputs: tuple[str, ...],
        *,
        hosts: Hosts | On | str,
        seed: int,
        timeout_s: float,
    ) -> None:
        super().__init__()
        entries = entries_of(run.plan.graph)
        self._specs = dict(plan.graph.parameters)
        self._entries = {one.parameter: one for one in reversed(entries) if one.parameter}
        self._parts = ModuleParts(plan, outputs, self._as_array, hosts=hosts, seed=seed, timeout_s=timeout_s)
        self._passes = 0
        self._register(entries, state_of(entries, run.parameters))

    def _register(self, entries: ModuleState, state: Mapping[str, torch.Tensor]) -> None:
        """Makes parameters and buffers under the names of the state dict."""
        made: dict[str, torch.Tensor] = {}
        for entry in entries:
            path, _, name = entry.name.rpartition(".")
            place, spec = _submodule(self, path), self._specs.get(entry.parameter)
            if spec is None or spec.averaged:
                place.register_buffer(name, made.setdefault(entry.same_as, state[entry.name]))
                continue
            if entry.same_as not in made:
                made[entry.same_as] = nn.Parameter(state[entry.name], requires_grad=spec.trainable)
            one = made[entry.same_as]
            assert isinstance(one, nn.Parameter)
            place.register_parameter(name, one)

    def _as_array(self, name: str, tensor: torch.Tensor) -> Array:
        """The network's array of a parameter."""
        order = self._entries[name].order or None
        return array_of(tensor, order, copy=False).reshape(self._specs[name].shape)

    def _as_tensor(self, name: str, array: Array, like: torch.Tensor) -> torch.Tensor:
        """The module's tensor of a parameter, or its gradient, in the type and on the device of another."""
        return tensor_of(array, self._entries[name], copy=False).to(like)

    @property
    def _used(self) -> dict[str, torch.Tensor]:
        """The parameters that the outputs need, by the network's names."""
        found = {}
        for name in self._parts.plan.graph.parameters:
            path, _, short = self._entries[name].name.rpartition(".")
            found[name] = getattr(self.get_submodule(path), short)
        return found

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Computes the outputs.

        Args:
            inputs: a tensor for each input, `[example, *shape]`, with at most as many examples as the plan's
                batch.

        Returns:
            `[example, *shape]` of each output, in the precision of the plan; a tuple where there are several.

        Raises:
            RuntimeError: the module is closed.
            ValueError: the inputs do not fit.
            HostError: a host fails, dies, or does not answer in time.
        """
        if self._parts.closed:
            raise RuntimeError("the module is closed, and its hosts have ended; make another: as_module(...)")
        self._check(inputs)
        learning = {name: one for name, one in self._used.items() if one.requires_grad}
        frozen = [self._entries[name].name for name in learning if not self._specs[name].trainable]
        if frozen and torch.is_grad_enabled():
            raise ValueError(
                f"{', '.join(frozen)} requires a gradient, and the parts compute none: it is not trainable "
                "in the network; declare its layer with trainable=True, or import a module with "
                "requires_grad_()"
            )
        given = (self, tuple(learning), len(inputs), *inputs, *learning.values())
        found: tuple[torch.Tensor, ...] = _Pass.apply(*given)  # type: ignore[no-untyped-call]
        return found[0] if len(found) == 1 else found

    def _check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Refuses inputs that do not fit. Raises ValueError."""
        grids, most = self._parts.plan.graph.inputs, self._parts.plan.batch
        if len(inputs) != len(grids):
            names = ", ".join(grid.name for grid in grids)
            raise ValueError(f"{counted(len(inputs), 'tensor')} given, and the inputs are {names}")
        for grid, one in zip(grids, inputs, strict=True):
            shapes = (grid.shape, ()) if grid.shape == (1,) else (grid.shape,)  # a number needs no axis
            if not one.dim() or tuple(one.shape[1:]) not in shapes or len(one) != len(inputs[0]):
                expected = ", ".join(("examples", *map(str, grid.shape)))
                raise ValueError(
                    f"input '{grid.name}' has shape {tuple(one.shape)}; give ({expected}), with as many "
                    "examples in each input"
                )
            if one.is_floating_point() != (_classes(grid) is None):
                kind = "real" if _classes(grid) is None else "whole"
                raise ValueError(f"input '{grid.name}' is {one.dtype}; give {kind} numbers")
        if not 1 <= len(inputs[0]) <= most:
            raise ValueError(
                f"{counted(len(inputs[0]), 'example')} given, and the plan is for 1 to {most}; give as many, "
                "or make a plan with a larger batch"
            )

    def _play(
        self,
        inputs: Sequence[torch.Tensor],
        *,
        training: bool,
        visit: int,
        wanted: Sequence[str] = (),
        backward: bool = False,
    ) -> list[torch.Tensor]:
        """Plays a forward pass; at rest one that may have a backward pass where parts are there for it."""
        parts, used = self._parts, {name: one.detach() for name, one in self._used.items()}
        grids = parts.plan.graph.inputs
        batch = {grid.name: filled(one, parts.plan.batch) for grid, one in zip(grids, inputs, strict=True)}
        if training or backward:
            given = batch, len(inputs[0]), used
            return parts.play(*given, visit=visit, wanted=wanted, at_rest=not training)
        return parts.rest(batch, len(inputs[0]), used)

    def _average(self, gradients: Mapping[str, Array]) -> None:
        """Changes running statistics by what a backward pass returned for them."""
        with torch.no_grad():
            for name, one in self._used.items():
                if self._specs[name].averaged:
                    one.sub_(self._as_tensor(name, gradients[name], one))

    def close(self) -> None:
        """Ends all hosts; parameters stay."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the hosts."""
        return {**self.__dict__, "_parts": self._parts.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes parts whose hosts have not started."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._parts = ModuleParts(as_array=self._as_array, **state["_parts"])

    def extra_repr(self) -> str:
        """The network and its parts."""
        plan = self._parts.plan
        machines = counted(len(plan.cluster), "machine")
        return f"{plan.graph.name}: {counted(plan.graph.n_parameters, 'parameter')}, {machines}"


class _Pass(torch.autograd.Function):
    """A pass through the parts, whose backward pass is theirs.

    The backward pass of an earlier call, or a second one under `retain_graph=True`, first plays the forward
    pass again, with the same random numbers: parts keep the activations of the last one.
    """

    @staticmethod
    def forward(
        ctx: Any, module: PartitionedModule, learning: tuple[str, ...], n_inputs: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        inputs, grids = tensors[:n_inputs], module._parts.plan.graph.inputs
        needed = zip(grids, ctx.needs_input_grad[3 : 3 + n_inputs], strict=True)
        module._passes += 1
        ctx.module, ctx.learning, ctx.n_inputs, ctx.visit = module, learning, n_inputs, module._passes
        ctx.wanted = tuple(grid.name for grid, wanted in needed if wanted)
        ctx.in_training, ctx.is_first = module.training, True
        ctx.save_for_backward(*tensors)
        backward = any(ctx.needs_input_grad) and module._parts.keeps_activations_at_rest()
        settings = {"training": module.training, "visit": ctx.visit, "wanted": ctx.wanted}
        found = module._play(inputs, **settings, backward=backward)
        return tuple(one.to(inputs[0].device) for one in found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        module, parts, tensors = ctx.module, ctx.module._parts, ctx.saved_tensors
        if parts.closed:
            raise RuntimeError("the module was closed before this backward pass; close it after the last one")
        inputs, learning = tensors[: ctx.n_inputs], tensors[ctx.n_inputs :]
        at_rest = not ctx.in_training
        if not parts.has(ctx.visit, at_rest=at_rest):
            settings = {"training": ctx.in_training, "visit": ctx.visit, "wanted": ctx.wanted}
            module._play(inputs, **settings, backward=True)
        gradients, of_inputs = parts.backward(grads, visit=ctx.visit, at_rest=at_rest)
        if ctx.is_first and not at_rest:
            module._average(gradients)
            ctx.is_first = False
        names = (grid.name for grid in parts.plan.graph.inputs)
        entering = (
            of_inputs[name].to(one) if name in ctx.wanted else None
            for name, one in zip(names, inputs, strict=True)
        )
        pairs = zip(ctx.learning, learning, strict=True)
        found = (module._as_tensor(name, gradients[name], one) for name, one in pairs)
        return None, None, None, *entering, *found


def _submodule(module: nn.Module, path: str) -> nn.Module:
    """The part of a module at a path, which is made if it is missing."""
    for name in path.split(".") if path else ():
        if name not in module._modules:
            module.add_module(name, nn.Module())
        module = module.get_submodule(name)
    return module


def _classes(grid: Grid) -> int | None:
    return grid.layer.classes if isinstance(grid.layer, Placeholder) else None
