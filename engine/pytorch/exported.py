"""A module of PyTorch as a graph of operations, by `torch.export`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import OutputKind
from torch.nn.utils.rnn import PackedSequence

from partita.engine.pytorch.example_args import Arguments, call, tensors_of
from partita.engine.pytorch.folding import constants_of
from partita.engine.pytorch.results import NoSuchResult
from partita.engine.pytorch.simplified import simplify


@dataclass(frozen=True)
class Exported:
    """The operations of a module in training, for any number of examples.

    Args:
        program: of `torch.export`.
        state: for each node that is a parameter or a buffer, its name in the module, and its numbers.
        constants: values of the nodes that depend on no input and no parameter.
        free: all nodes that depend on no input.
        targets: inputs that the module's own loss alone reads.
    """

    program: torch.export.ExportedProgram
    state: dict[fx.Node, tuple[str, torch.Tensor]]
    constants: dict[fx.Node, Any] = field(default_factory=dict)
    free: set[fx.Node] = field(default_factory=set)
    targets: frozenset[fx.Node] = frozenset()

    @classmethod
    def of(cls, module: torch.nn.Module, example_args: Arguments, dims: Sequence[int] = ()) -> Exported:
        """Exports a module.

        Args:
            module: in training; takes tensors of examples.
            example_args: some examples for each, in order or by name.
            dims: for each, the dimension of the examples; 0 if not given.

        Raises:
            ValueError: `torch.export` cannot make a graph of it, or only for this number of examples.
        """
        batch = torch.export.Dim("batch", min=2)
        dims = dims or [0] * len(example_args)
        shapes: Any = tuple({dim: batch} for dim in dims)
        args = [one.clone() for one in tensors_of(example_args)]  # one tensor twice would be one input
        given: tuple[Any, Any] = tuple(args), None
        if isinstance(example_args, Mapping):
            keys = list(example_args)
            given, shapes = ((), dict(zip(keys, args, strict=True))), dict(zip(keys, shapes, strict=True))
        elif _is_variadic(module):
            shapes = (shapes,)
        try:
            with warnings.catch_warnings():  # of weights that recurrent layers keep in a list, too
                warnings.filterwarnings("ignore", message="The tensor attributes")
                program = torch.export.export(module, *given, dynamic_shapes=shapes)
        except NoSuchResult:
            raise
        except Exception as error:
            if _packs_sequences(module, example_args):
                raise ValueError(
                    "the module packs sequences, and packed ones have no dimension of examples; let it take "
                    "padded sequences of one length, or declare LSTM(...)(x, mask) of partita.layers"
                ) from error
            if "specialized it to be a constant" in str(error):
                raise ValueError(
                    "torch.export makes a graph of the module for this number of examples alone; where it "
                    "computes with that number, write x.shape[0], not len(x) or int(...)"
                ) from error
            raise ValueError(f"torch.export makes no graph of the module: {_first_lines(error)}") from error
        _read_what_was_changed(program.graph)
        signature = program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        lifted = signature.inputs_to_lifted_tensor_constants
        state = {}
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in names:
                name = names[node.name]
                kept = program.state_dict.get(name, program.constants.get(name))
                state[node] = (name, kept)
            elif node.op == "placeholder" and node.name in lifted:
                state[node] = ("", program.constants[lifted[node.name]])
        return cls(program, state)

    def simplified(self) -> Exported:
        """Folds constants and simplifies the graph, whose tensors all have the examples on axis 0."""
        constants = constants_of(self.program, self.state)
        free = _free(self.program.graph, self.state, constants)
        simplify(self.program.graph, constants, free)
        return replace(self, constants=constants, free=free)

    @cached_property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The inputs, in their order; not the targets."""
        graph = self.program.graph
        others = self.state.keys() | self.targets
        return tuple(one for one in graph.nodes if one.op == "placeholder" and one not in others)

    @cached_property
    def outputs(self) -> tuple[fx.Node, ...]:
        """The tensors that the module returns; not the buffers that it changes."""
        kinds = [one.kind for one in self.program.graph_signature.output_specs]
        given = self.program.graph.output_node().args[0]
        pairs = zip(given, kinds, strict=True)
        return tuple(one for one, kind in pairs if kind is OutputKind.USER_OUTPUT)

    @cached_property
    def operations(self) -> tuple[fx.Node, ...]:
        """The operations that the outputs need, each after those that it needs."""
        needed: set[fx.Node] = set()
        stack = list(self.outputs)
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack += node.all_input_nodes
        return tuple(one for one in self.program.graph.nodes if one in needed and one.op == "call_function")


def _free(graph: fx.Graph, state: Mapping[fx.Node, Any], constants: Mapping[fx.Node, Any]) -> set[fx.Node]:
    """The nodes that depend on no input."""
    free = {*state, *constants}
    for node in graph.nodes:
        if node.op == "get_attr":
            free.add(node)
        given = node.all_input_nodes if node.op == "call_function" else ()
        if all(one in free for one in given) and any(one not in constants for one in given):
            free.add(node)
    return free


def _read_what_was_changed(graph: fx.Graph) -> None:
    """Lets what comes after an operation in place, such as `relu_`, read its result."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in order:
        if isinstance(node.target, torch._ops.OpOverload) and str(node.target).split(".")[1].endswith("_"):
            base, own = node.all_input_nodes[0], order[node]
            base.replace_all_uses_with(node, delete_user_cb=lambda user, own=own: order[user] > own)


def _is_variadic(module: torch.nn.Module) -> bool:
    """Returns whether `forward` takes `*args`: then torch.export wants one entry for all of them."""
    code = getattr(inspect.unwrap(module.forward), "__code__", None)
    return code is not None and code.co_argcount <= 1 and bool(code.co_flags & 0x04)


def _packs_sequences(module: torch.nn.Module, example_args: Arguments) -> bool:
    """Returns whether a recurrent layer of a module that cannot be exported is given a packed sequence."""
    seen: list[bool] = []
    layers = [one for one in module.modules() if isinstance(one, torch.nn.RNNBase)]
    handles = [
        one.register_forward_pre_hook(lambda _, given: seen.append(isinstance(given[0], PackedSequence)))
        for one in layers
    ]
    with torch.no_grad(), suppress(Exception):  # the error of the export is the one to report
        call(module, example_args)
    for handle in handles:
        handle.remove()
    return any(seen)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:400] or type(error).__name__
