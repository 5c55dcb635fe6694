"""Operations of a graph that become one layer: chains to one result, along one dimension."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from torch import fx

from partita.engine.pytorch.alignment import PRODUCTS, RULES, SHAPES, Demands, NotAlong
from partita.engine.pytorch.nodes import extents, is_tensor, operation_of, tensors_of

Demand = dict[fx.Node, int | None]


@dataclass(frozen=True)
class Group:
    """Operations that become one layer.

    Args:
        root: the last one, whose result the others see.
        members: all of them, in the order of the graph.
    """

    root: fx.Node
    members: tuple[fx.Node, ...]

    def leaves(self, free: Collection[fx.Node]) -> tuple[fx.Node, ...]:
        """The tensors of examples that the operations read, but those of each other."""
        read = dict.fromkeys(one for node in self.members for one in tensors_of(node))
        return tuple(one for one in read if one not in free and one not in self.members)

    def demands(self, d: int, free: Collection[fx.Node]) -> dict[tuple[fx.Node, fx.Node], int | None]:
        """For each operation and each tensor that it reads, the dimension of which a part is enough.

        Args:
            d: dimension of the result of which a part is computed.
            free: tensors that depend on no input; each operation may read another part of them.

        Raises:
            NotAlong: the operations do not run along this dimension.
        """
        wanted: Demand = {self.root: d}
        found: dict[tuple[fx.Node, fx.Node], int | None] = {}
        for node in reversed(self.members):
            want = wanted[node]
            if want is None and operation_of(node) not in SHAPES:
                raise NotAlong  # each machine would compute all of it
            pairs = (
                [(one, None) for one in tensors_of(node)]
                if want is None
                else RULES[operation_of(node)](node, want)
            )
            for argument, k in pairs:
                found[node, argument] = k
                if argument not in free and wanted.setdefault(argument, k) != k:
                    raise NotAlong
        return found

    def dimensions(self, free: Collection[fx.Node]) -> tuple[int, ...]:
        """The dimensions of the result along which the operations run."""
        found = []
        for d in range(1, len(extents(self.root))):
            try:
                self.demands(d, free)
            except NotAlong:
                continue
            found.append(d)
        return tuple(found)


def _of_all(node: fx.Node) -> Demands:
    """All of each argument."""
    return [(one, None) for one in tensors_of(node)]


def groups_of(
    operations: Sequence[fx.Node],
    free: Collection[fx.Node],
    *,
    alone: Callable[[fx.Node], bool],
    ends: Collection[fx.Node],
) -> list[Group]:
    """Finds the operations that become one layer together.

    Args:
        operations: all that depend on inputs, in the order of the graph.
        free: tensors that depend on no input.
        alone: whether an operation has a layer of its own, or needs none.
        ends: the results of the module.

    Returns:
        Groups of which at least one operation is not `alone`. All others are in none.
    """
    known = set(operations)
    members: dict[fx.Node, set[fx.Node]] = {}  # by root
    root_of: dict[fx.Node, fx.Node] = {}
    for node in reversed(operations):
        name = operation_of(node)
        if name not in RULES or (name in PRODUCTS and alone(node)):
            continue  # a product with a layer of its own stays a layer
        users = {one for one in node.users if one in known}
        roots = {root_of.get(one) for one in users}
        root = roots.pop() if len(roots) == 1 and node not in ends else None
        if root is not None:
            grown = _sorted(root, members[root] | {node}, operations)
            if grown.dimensions(free):
                members[root].add(node)
                root_of[node] = root
                continue
        if is_tensor(node) and not (name in SHAPES and alone(node)):
            members[node], root_of[node] = {node}, node
    found = [_sorted(root, own, operations) for root, own in members.items()]
    found = [_trimmed(one, free) for one in found]
    return [one for one in found if not all(alone(node) for node in one.members)]


def _sorted(root: fx.Node, members: set[fx.Node], operations: Sequence[fx.Node]) -> Group:
    return Group(root, tuple(one for one in operations if one in members))


SLICES: Final = frozenset(["slice", "select", "getitem", "split", "split_with_sizes", "chunk", "unbind"])
"""Operations that take a part."""


def _trimmed(group: Group, free: Collection[fx.Node]) -> Group:
    """Leaves out what only takes a part of an input: all of it would be read."""
    members = list(group.members)
    while True:
        leaves = Group(group.root, tuple(members)).leaves(free)
        out = [one for one in members if one is not group.root and _enters(one, leaves, members)]
        if not out:
            return Group(group.root, tuple(members))
        members = [one for one in members if one not in out]


def _enters(node: fx.Node, leaves: Sequence[fx.Node], members: Sequence[fx.Node]) -> bool:
    """Returns whether an operation that moves numbers reads one input, and does so better outside of the
    group.
    """
    inputs = tensors_of(node)
    if operation_of(node) not in SHAPES or not all(one in leaves for one in inputs):
        return False
    read_once = all(sum(one in tensors_of(member) for member in members) == 1 for one in inputs)
    results = not all(map(is_tensor, inputs))
    return results or (operation_of(node) in SLICES and read_once)
