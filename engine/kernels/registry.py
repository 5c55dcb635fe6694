"""Which kernel plays which layer. Adding one is a line here and a file beside it."""

from __future__ import annotations

from collections.abc import Callable

from partita.engine.kernels.dense import DenseKernel
from partita.engine.kernels.elementwise import ActivationKernel, AddKernel
from partita.engine.kernels.kernel import Kernel, Site
from partita.engine.kernels.local import LocallyConnectedKernel
from partita.engine.kernels.losses import SoftmaxCrossEntropyKernel, SquaredErrorKernel
from partita.engine.kernels.node import NodeKernel
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.pooling import AveragePoolKernel, L2PoolKernel, MaxPoolKernel
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    Dense,
    L2Pool2D,
    Layer,
    LocallyConnected2D,
    MaxPool2D,
    SoftmaxCrossEntropy,
    SquaredError,
)

_KERNELS: dict[type[Layer], Callable[[Site, Team], Kernel]] = {
    Activation: ActivationKernel,
    Add: AddKernel,
    AveragePool2D: AveragePoolKernel,
    Dense: DenseKernel,
    L2Pool2D: L2PoolKernel,
    LocallyConnected2D: LocallyConnectedKernel,
    MaxPool2D: MaxPoolKernel,
    SoftmaxCrossEntropy: SoftmaxCrossEntropyKernel,
    SquaredError: SquaredErrorKernel,
}


def build(site: Site, team: Team | None = None) -> Kernel:
    """The kernel that plays a layer at a site, compiled and ready: no step waits for a compiler.

    A layer that is not in the table (a `Node`, a user's own class) is played by its node definition. A
    subclass of a layer in the table counts as a layer of its own, because its arithmetic may differ.

    Args:
        site: where it works.
        team: threads that kernels share; by default a team of the kernel's own, of `site.threads`.

    Raises:
        ValueError: the layer has no kernel and no definition, or its definition cannot be compiled.
    """
    layer = site.grid.layer
    team = team or Team(site.threads)
    if type(layer) in _KERNELS:
        return _KERNELS[type(layer)](site, team)
    if layer.definition is not None and len(site.sources) == 1:
        return NodeKernel(site, team)
    why = "has no node definition" if layer.definition is None else f"listens to {len(site.sources)} inputs"
    raise ValueError(
        f"{layer.kind} '{site.grid.name}' has no kernel, and {why}; "
        "add a kernel to partita.engine.kernels.registry, or give the layer a definition and one input"
    )
