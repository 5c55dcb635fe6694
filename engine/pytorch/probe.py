"""A run of a module of PyTorch on drawn numbers: its output, its cost, and what a step of it changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from partita.layers.box import Shape

EXAMPLES: Final = 2
"""Examples of the run: more than one, which batch normalisation needs."""

_LOCK: Final = threading.RLock()


@dataclass(frozen=True)
class Probe:
    """The facts about a module for inputs of certain shapes.

    Args:
        shape: of its output for one example, as the module has it.
        flops: floating-point operations of one example in the forward pass, as PyTorch counts them.
        averaged: names of the buffers that a step in training changes, such as running statistics.
        random: whether a step in training draws random numbers.
    """

    shape: Shape
    flops: float
    averaged: tuple[str, ...]
    random: bool


def probe(
    module: torch.nn.Module, values: Mapping[str, torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> Probe:
    """Runs a module at rest and in training; neither the module nor PyTorch's random state changes.

    Args:
        module: without its parameters.
        values: of the parameters, by name.
        inputs: for `EXAMPLES` examples.

    Raises:
        ValueError: it cannot be run on them, or does not return one tensor with a row for each example.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.no_grad(), seeded(0):
            counter = FlopCounterMode(display=False)
            with counter:
                output = called(module, {**values, **buffers}, inputs, training=False)
            state = torch.get_rng_state()
            called(module, {**values, **buffers}, inputs, training=True)
            random = not torch.equal(state, torch.get_rng_state())
    except Exception as error:
        shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
        raise ValueError(f"the module fails on inputs of shape {shapes}: {error}") from error
    if not isinstance(output, torch.Tensor):
        raise ValueError(f"the module returns {type(output).__name__}; let its forward return one tensor")
    if output.dim() < 2 or len(output) != EXAMPLES:
        raise ValueError(
            f"the module returns a tensor of shape {tuple(output.shape)} for {EXAMPLES} examples; let its "
            "forward return (examples, ...), with at least one number for each"
        )
    kept = dict(module.named_buffers())
    averaged = tuple(
        name for name, one in buffers.items() if one.is_floating_point() and not torch.equal(one, kept[name])
    )
    return Probe(tuple(output.shape[1:]), counter.get_total_flops() / EXAMPLES, averaged, random)


def called(
    module: torch.nn.Module,
    state: Mapping[str, torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    *,
    training: bool,
) -> torch.Tensor:
    """Calls a module with these parameters and buffers, which take the place of its own.

    What was set to `eval()` inside a module in training stays so. One module is called at a time, because a
    module has its state while it is called.
    """
    with _LOCK:
        still = [one for one in module.modules() if not one.training] if module.training else []
        module.train(training)
        for one in still:
            one.train(False)
        try:
            found: torch.Tensor = functional_call(module, dict(state), inputs)
        finally:
            module.train()
            for one in still:
                one.train(False)
        return found


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Lets PyTorch's random numbers on CPUs begin with a seed, and restores their state afterwards."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
