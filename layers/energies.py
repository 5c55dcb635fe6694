"""Free energies of a Boltzmann machine, term by term, and the chains that model its negative phase.

The free energy of visible states v is `F(v) = - sum a_i v_i - sum softplus(z_j)`, where `z = W v + b`. The
gradient of `F(data) - F(chain)`, with the chain held constant, is that of contrastive divergence. Each term
belongs to one node, so a cut exchanges none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.checks import check_whole
from partita.layers.connectivity import Connectivity, Full, OneToOne
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.merge import Merge
from partita.layers.ties import ParameterOf


@dataclass(frozen=True)
class Energies(Merge):
    """Terms of an energy in two states of the same units: the chain's, and those of the data."""

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of both. Raises ValueError unless there are two inputs of one shape."""
        if len(sources) != 2:
            raise ValueError(f"it takes the chain and the data, not {len(sources)} inputs")
        return super().shape(sources)


@dataclass(frozen=True)
class HiddenEnergy(Energies):
    """The hidden units' terms of `F(data) - F(chain)`: `softplus(chain) - softplus(data)`, of their sums.

    Called on the sums of the chain and on those of the data.
    """

    slowdown = 10.0

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The difference of the terms."""
        chain, data = (step.torch.nn.functional.softplus(one, 1.0, 40.0) for one in inputs)
        return chain - data

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The probabilities of the units: of the chain, and negative of the data."""
        chain, data = inputs
        return (chain.sigmoid() * grad_output, -data.sigmoid() * grad_output), ()

    @property
    def definition(self) -> NodeDefinition:
        """The difference of one node's terms."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            chain, data = incoming[0], incoming[1]
            return (max(chain, 0.0) + math.log1p(math.exp(-abs(chain)))) - (
                max(data, 0.0) + math.log1p(math.exp(-abs(data)))
            )

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            errors = 0 * incoming
            errors[0] = error / (1.0 + math.exp(-incoming[0]))
            errors[1] = -error / (1.0 + math.exp(-incoming[1]))
            return (errors,)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class VisibleEnergy(Energies):
    """The visible units' terms of `F(data) - F(chain)`: `bias * (chain - data)`, of their states.

    Called on the states of the chain and on those of the data. With `states`, it keeps those of the chain for
    the next step.

    Args:
        bias: that of the visible units, in another layer.
        states: those of a `MarkovChains`, which become the chain's in each step of training.
        name: the layer's name in the network.
    """

    bias: ParameterOf = field(kw_only=True)
    states: ParameterOf | None = field(default=None, kw_only=True)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The biases, and the chains' states."""
        found = (Parameter("bias", shape),)
        if self.states is None:
            return found
        assert isinstance(self.states.layer, MarkovChains), f"{self.states} are no chains"
        return (*found, *self.states.layer.parameters(shape, sources))

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The differences of the states, times the biases."""
        return parameters[0].unsqueeze(-1) * (inputs[0] - inputs[1])

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The biases, the differences, and the change of the chains."""
        (chain, data), (bias, *states) = inputs, parameters
        grad = bias.unsqueeze(-1) * grad_output
        changes = []
        for kept in states:
            own = _chains(step, kept, chain)
            change = step.torch.zeros_like(kept)
            change[..., own] = kept[..., own] - chain
            changes.append(change)
        return (grad, -grad), (((chain - data) * grad_output).sum(-1), *changes)

    @property
    def definition(self) -> None:
        """None: the chains' states are of no node, but of the examples."""
        return


@dataclass(frozen=True)
class MarkovChains(Layer):
    """The states in which the last steps left a number of chains, in the shape of its input.

    The chains are no example's: the examples of a minibatch take them in turn, each one chain. Their states
    are a parameter that no optimizer updates: checkpoints contain it, and the machines of a cut have their
    rows of it. A `VisibleEnergy` writes it. All states are 0 at first.

    Source: Tieleman, *Training restricted Boltzmann machines using approximations to the likelihood
    gradient*, ICML 2008.

    Args:
        chains: their number, at least that of the examples which all replicas compute at once.
        name: the layer's name in the network.
    """

    stops_gradient = True

    chains: int
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(chains=check_whole(self.chains, "the number of chains is"))

    @property
    def connectivity(self) -> Connectivity:
        """The node in the same place, whose shape alone counts."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The state of each node in each chain."""
        return (Parameter("states", (*shape, self.chains), trainable=False, averaged=True, kept=True),)

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The states of the examples' chains.

        Raises:
            ValueError: the minibatch has more examples than there are chains.
        """
        (states,), own = parameters, _chains(step, parameters[0], inputs[0])
        return (states[..., own] > 0.5).to(states.dtype)

    @property
    def definition(self) -> None:
        """None: a node's states are those of the chains, whatever its input."""
        return


@dataclass(frozen=True)
class FreeEnergy(Layer):
    """The free energy of each example, one node: `- sum a_i v_i - sum softplus(z_j)`.

    Called on visible states and on the sums of the hidden units. One machine computes it.

    Args:
        bias: that of the visible units, in another layer; its own if not given.
        trainable: whether its own bias learns.
        name: the layer's name in the network.
    """

    slowdown = 10.0
    cuttable = False
    several_inputs = True

    bias: ParameterOf | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """All visible states, and all sums."""
        return Full()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """One node. Raises ValueError unless there are two inputs."""
        if len(sources) != 2:
            raise ValueError(
                f"it takes visible states and the sums of hidden units, not {len(sources)} inputs"
            )
        return (1,)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The biases of the visible units."""
        return (Parameter("bias", sources[0], shared=True),)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A product for each visible unit, and a logarithm for each hidden one."""
        return 2.0 * math.prod(sources[0]) + 2.0 * math.prod(sources[1])

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """Sums over the units."""
        visible, sums = (one.flatten(0, -2) for one in inputs)
        terms = step.torch.nn.functional.softplus(sums, 1.0, 40.0).sum(0)
        return -(parameters[0].flatten() @ visible + terms)[None]

    @property
    def definition(self) -> NodeDefinition | None:
        """None: its two inputs are summed in different ways."""
        return None


def _chains(step: Step, states: Tensor, like: Tensor) -> Tensor:
    """The chains of the examples of `like`, `[example]`. Raises ValueError where there are too few."""
    count = states.shape[-1]
    if step.training and step.mean_over > count:
        raise ValueError(
            f"there are {count} Markov chains for minibatches of {step.mean_over} examples; give as many "
            "chains as all replicas have examples in a step"
        )
    return (step.position + step.torch.arange(like.shape[-1], device=states.device)) % count
