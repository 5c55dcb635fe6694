"""Any module of PyTorch as a layer: `Torch`."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from partita.engine.pytorch.probe import EXAMPLES, Probe, called, probe, seeded
from partita.layers.box import Shape
from partita.layers.checks import check_flag
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Step, Tensor
from partita.layers.initial import InitialValues
from partita.layers.layer import Layer, Parameter


@dataclass(frozen=True)
class Torch(Layer):
    """A module of PyTorch as a layer: it is placed on one machine, costed and trained, but not cut.

    Its parameters begin with the module's values, have the module's names behind that of the layer, and learn
    unless they do not require a gradient; parameters that are tied are one. Running statistics of batch
    normalisation inside it are kept as `BatchNorm` keeps its own. The module is copied: it stays as it is,
    and `state_dict` brings the trained numbers back into it.

    A node's state may depend on all of the inputs. Arrays of three axes are pictures (height, width,
    channels), and modules have them as (channels, height, width): they are turned on the way in and out.

    Random numbers inside the module, as of dropout, follow from the run's seed, the step and the first
    example: they are the same each time, but not for other micro-batches or another number of replicas.

    Args:
        module: takes a tensor (examples, ...) for each input and returns one; `forward` is called with each
            in its place. It must be importable, or defined in the program, on each host.
        channels_first: whether arrays of three axes are turned; False gives them as they are.
        integers: whether the inputs are numbers of classes, which the module gets as int64.
        trainable: whether its parameters learn.
        name: the layer's name in the network.

    Raises:
        ValueError: this is no module, or an input does not fit it.
    """

    cuttable = False
    several_inputs = True
    slowdown = 2.0

    _meant: ClassVar[Any] = {
        "model": ("module",),
        "net": ("module",),
        "channels_last": ("channels_first",),
        "example_inputs": "leave it out: the shapes are those of the layers that it is called on",
    }

    module: torch.nn.Module = field(compare=False)
    channels_first: bool = field(default=True, kw_only=True)
    integers: bool = field(default=False, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    _text: str = field(init=False, repr=False, default="")
    _values: dict[str, InitialValues] = field(init=False, repr=False, default_factory=dict)
    _probes: dict[tuple[Shape, ...], Probe] = field(
        init=False, repr=False, default_factory=dict, compare=False
    )

    def __hash__(self) -> int:
        return hash(self._text)

    def check(self) -> None:
        """Raises ValueError for an invalid setting; takes the module apart into its numbers and the rest."""
        super().check()
        for flag in ("channels_first", "integers"):
            check_flag(getattr(self, flag), f"{flag} is")
        if not isinstance(self.module, torch.nn.Module):
            raise ValueError(f"it is given {self.module!r}; give it an instance of torch.nn.Module")
        own = dict(self.module.named_parameters())
        without = {id(one): torch.nn.Parameter(one.to("meta"), one.requires_grad) for one in own.values()}
        kind = type(self.module)
        self._settle(
            _values={name: InitialValues(one) for name, one in own.items()},
            _text=f"{kind.__module__}.{kind.__qualname__} {self.module!r}",
            module=copy.deepcopy(self.module, without),
        )

    @property
    def integer_inputs(self) -> bool:  # type: ignore[override]
        """Returns whether its inputs are numbers of classes."""
        return self.integers

    @property
    def connectivity(self) -> Connectivity:
        """All of each input."""
        return Full()

    @property
    def definition(self) -> None:
        """None: a module says what a batch of examples becomes, not what one node computes."""
        return None

    def probe(self, sources: tuple[Shape, ...]) -> Probe:
        """Runs the module once for inputs of these shapes. Raises ValueError where they do not fit."""
        if sources not in self._probes:
            draw = torch.Generator().manual_seed(0)
            shapes = [(EXAMPLES, *self._turned(shape, -1)) for shape in sources]
            drawn = (torch.randn(shape, generator=draw) for shape in shapes)
            given = tuple(torch.zeros_like(one).long() if self.integers else one for one in drawn)
            values = {name: torch.from_numpy(np.array(one.given)) for name, one in self._values.items()}
            self._probes[sources] = probe(self.module, values, given)
        return self._probes[sources]

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the module's output. Raises ValueError where it cannot be called on the inputs."""
        return self._turned(self.probe(sources).shape, 1)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The module's parameters, by its names for them; then the buffers that a step changes."""
        learns = {name for name, one in self.module.named_parameters() if one.requires_grad}
        buffers = dict(self.module.named_buffers())
        return (
            *(
                Parameter(name, tuple(one.shape or ()), one, shared=True, trainable=name in learns)
                for name, one in self._values.items()
            ),
            *(
                Parameter(
                    name,
                    tuple(buffers[name].shape),
                    InitialValues(buffers[name]),
                    shared=True,
                    trainable=False,
                    averaged=True,
                )
                for name in self.probe(sources).averaged
            ),
        )

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """PyTorch's count of operations for one example, divided among the nodes, and one for each node."""
        found = self.probe(sources)
        return found.flops / int(np.prod(found.shape)) + 1.0

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The module on the examples that are real."""
        if not step.examples:
            return inputs[0].new_zeros((*step.shape, inputs[0].shape[-1]))
        known = self.probe(step.sources)
        given = tuple(self._examples_first(one, step.examples) for one in inputs)
        names = (*self._values, *known.averaged)
        state = dict(zip(names, parameters, strict=True))
        averaged = {name: state[name].detach().clone() for name in known.averaged}
        constant = self._constant(given[0], averaged)
        output = self._call(step, known, {**state, **constant, **averaged}, given)
        turned = self._examples_last(output, inputs[0].shape[-1])
        if step.training:
            share = step.examples / step.mean_over
            for name, new in averaged.items():
                turned = step.with_gradient(turned, state[name], (state[name] - new).detach() * share)
        return turned

    def _constant(self, like: Tensor, averaged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the buffers that keep their values, in the precision of the step."""
        precision = like.dtype if like.is_floating_point() else torch.float32
        return {
            name: one.to(like.device, precision if one.is_floating_point() else one.dtype, copy=True)
            for name, one in self.module.named_buffers()
            if name not in averaged
        }

    def _call(
        self, step: Step, known: Probe, state: Mapping[str, Tensor], given: tuple[Tensor, ...]
    ) -> Tensor:
        if not (step.training and known.random):
            return called(self.module, state, given, training=step.training)
        with seeded(int(step.bits().reshape(-1)[0])):
            return called(self.module, state, given, training=True)

    def _examples_first(self, x: Tensor, examples: int) -> Tensor:
        """The real examples of an array `[nodes ..., example]`, as a module has them."""
        real = x[..., :examples].movedim(-1, 0)
        if self.channels_first and real.dim() == 4:
            real = real.movedim(-1, 1)
        return (real.long() if self.integers else real).contiguous()

    def _examples_last(self, output: Tensor, examples: int) -> Tensor:
        """The output of a module as `[nodes ..., example]`, zero for examples that only fill the array."""
        if self.channels_first and output.dim() == 4:
            output = output.movedim(1, -1)
        turned = output.movedim(0, -1)
        return torch.nn.functional.pad(turned, (0, examples - len(output)))

    def _turned(self, shape: Shape, by: int) -> Shape:
        """A shape of three axes with the channels first (`by` -1), or last again (1)."""
        if not self.channels_first or len(shape) != 3:
            return shape
        return (shape[2], *shape[:2]) if by < 0 else (*shape[1:], shape[0])

    def state_dict(self, parameters: Mapping[str, npt.NDArray[Any]], name: str = "") -> dict[str, Tensor]:
        """The numbers of a run by the module's names, for `module.load_state_dict(..., strict=True)`.

        Args:
            parameters: `run.parameters`.
            name: of the layer in the network, if it was not given one.

        Raises:
            ValueError: these are not the parameters of a network with this layer.
        """
        prefix = f"{name or self.name or self.default_name}."
        found = {key.removeprefix(prefix): one for key, one in parameters.items() if key.startswith(prefix)}
        if not self._values.keys() <= found.keys():
            lacking = ", ".join(sorted(self._values.keys() - found.keys()))
            raise ValueError(f"the parameters have no {prefix}{lacking}; give the name of the layer")
        state: OrderedDict[str, Tensor] = OrderedDict()
        same = {id(one): name for name, one in self.module.named_parameters()}
        own = self.module.state_dict(keep_vars=True)
        state._metadata = own._metadata  # type: ignore[attr-defined]
        for key, kept in own.items():
            of = same.get(id(kept), key)
            state[key] = torch.from_numpy(np.array(found[of])) if of in found else kept.detach().clone()
        return state
