"""Places where PyTorch's own tools can cut a module in two: before a part, or through pairs of linear
layers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Final

import torch
from torch import fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.utils.flop_counter import FlopCounterMode

from partita.engine.pytorch.exported import Exported
from partita.engine.pytorch.nodes import operation_of

TRIED: Final = 4
"""Parts before which the pipeline is cut for a trial: the first that works is taken."""
_FUNCTIONS: Final = ("relu", "gelu", "silu", "sigmoid", "tanh", "elu", "leaky_relu", "softplus")
ELEMENTWISE: Final = frozenset({*_FUNCTIONS, "dropout", "contiguous", "clone", "alias"})
"""Operations that treat every number for itself, whichever half of them a process has."""


def split_point(module: nn.Module, inputs: Sequence[torch.Tensor]) -> str:
    """Returns the path of the part with which the second stage of a pipeline begins.

    Of the parts that are called once, that before which the work is nearest to a half of all, by the
    operations that PyTorch counts.

    Args:
        module: in training.
        inputs: a micro-batch.

    Raises:
        ValueError: PyTorch cannot cut the module before any of the parts nearest to the middle.
    """
    reasons: list[str] = []
    for path in _by_distance(module, inputs)[:TRIED]:
        try:
            found = staged(module, inputs, path).num_stages
        except Exception as error:  # noqa: BLE001 - whatever its tracing raises is the reason
            reasons.append(first_line(error))
            continue
        if found == 2:
            return path
        reasons.append(f"it makes {found} stages of a cut before {path}")
    raise ValueError(reasons[0] if reasons else "the module has no parts that are called once")


def staged(module: nn.Module, inputs: Sequence[torch.Tensor], path: str) -> torch.distributed.pipelining.Pipe:
    """Cuts a copy of a module in two before a part, for micro-batches like these inputs.

    A copy, because `pipeline` changes the part before which it cuts, and cannot cut there again.
    """
    with warnings.catch_warnings():  # PyTorch's own copies of its graphs warn of PyTorch's own classes
        warnings.simplefilter("ignore", FutureWarning)
        return pipeline(copy.deepcopy(module), tuple(inputs), split_spec={path: SplitPoint.BEGINNING})


def _by_distance(module: nn.Module, inputs: Sequence[torch.Tensor]) -> list[str]:
    """The parts that are called once, those before which half of the work is done first; of parts that begin
    together the outermost.
    """
    began: dict[str, list[float]] = {}
    counter = FlopCounterMode(display=False)
    paths = {part: path for path, part in module.named_modules() if path}

    def note(part: nn.Module, _: object) -> None:
        done = sum(map(len, began.values()))  # breaks ties where nothing is counted
        began.setdefault(paths[part], []).append(counter.get_total_flops() + done)

    handles = [part.register_forward_pre_hook(note) for part in paths]
    try:
        with counter, torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    half = (counter.get_total_flops() + sum(map(len, began.values()))) / 2
    once = {path: found[0] for path, found in began.items() if len(found) == 1 and found[0] > 0}
    return sorted(once, key=lambda path: (abs(once[path] - half), path.count(".")))


def linear_pairs(module: nn.Module, inputs: Sequence[torch.Tensor]) -> list[tuple[str, str]]:
    """Returns the paths of linear layers that follow one another, with only functions of each number between.

    The first can be cut by its outputs and the second by its inputs, with one exchange for both.

    Raises:
        ValueError: `torch.export` makes no graph of the module.
    """
    exported = Exported.of(module, inputs)
    found: list[tuple[str, str]] = []
    for node in exported.operations:
        first, second = _linear(exported, module, node), None
        after = _next(node)
        while after is not None and operation_of(after) in ELEMENTWISE:
            after = _next(after)
        if first and after is not None:
            second = _linear(exported, module, after)
        if first and second and first not in {two for _, two in found}:
            found.append((first, second))
    return found


def _next(node: fx.Node) -> fx.Node | None:
    """The only user of a node."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _linear(exported: Exported, module: nn.Module, node: fx.Node) -> str | None:
    """The path of the linear layer of a node, if nothing else uses its weight and its width is even."""
    if operation_of(node) != "linear":
        return None
    weight = node.args[1]
    if not isinstance(weight, fx.Node) or weight not in exported.state or len(weight.users) != 1:
        return None
    path = exported.state[weight][0].removesuffix(".weight")
    try:
        part = module.get_submodule(path)
    except AttributeError:
        return None
    names = [name for name, one in module.named_parameters(remove_duplicate=False) if one is part.weight]
    even = isinstance(part, nn.Linear) and not part.in_features % 2 and not part.out_features % 2
    return path if even and len(names) == 1 else None


def first_line(error: BaseException) -> str:
    """The kind of the error that is the cause of one, and the first line of what it says."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
