"""Restricted Boltzmann machines and deep belief nets: several layers, placed by one call.

A step of Gibbs sampling is a dense layer upward, `Bernoulli`, the same weight downward, `Bernoulli`. A chain
of such steps is a feed-forward network, so it is cut, played and trained as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from partita.layers.activations import Activation
from partita.layers.arguments import Arguments
from partita.layers.checks import check_flag, check_shape, check_whole
from partita.layers.energies import FreeEnergy, HiddenEnergy, MarkovChains, VisibleEnergy
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.losses import ScoreSum
from partita.layers.regularisers import Regulariser, check_regulariser
from partita.layers.sampling import Bernoulli
from partita.layers.several_layers import unused
from partita.layers.states import LossSum, SymbolicTensor
from partita.layers.ties import ParameterOf
from partita.layers.transposed import Bias, DenseTransposed
from partita.layers.weighted_sum import Dense


@dataclass(frozen=True)
class RestrictedBoltzmannMachine(Arguments):
    """Visible and hidden units of two values, each joined to all of the other kind.

    Its probability of visible states v is proportional to `exp(-F(v))`, with the free energy `F(v) = - sum
    a_i v_i - sum softplus(b_j + sum W_ji v_i)`. The parameters are `NAME.weight` `[hidden, visible]`,
    `NAME.bias` of the hidden units and `NAME_visible.bias` of the visible ones. Methods place layers, whose
    names begin with NAME; all of them in one network use these parameters.

    Sources: Hinton, *Training products of experts by minimizing contrastive divergence*, 2002; Tieleman,
    *Training restricted Boltzmann machines using approximations to the likelihood gradient*, 2008.

    Args:
        units: number of hidden units.
        initialiser: of the weight, see `Parameter`; by default normal with the deviation 0.05.
        regulariser: of the weight, for example `L2(1e-4)`.
        trainable: whether weight and biases learn.
        name: of the machine, and the beginning of its layers' names.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "n_components": ("units",),
        "n_hidden": ("units",),
        "learning_rate": "it is that of the optimizer, for example SGD(0.05)",
        "batch_size": "leave it out; the batch is that of partition(net, cluster, batch=...)",
        "n_iter": "it is train(..., epochs=...)",
        "persistent": "write machine.contrastive_divergence(visible, chains=...)",
        "steps": "write machine.contrastive_divergence(visible, steps=...)",
        "k": "write machine.contrastive_divergence(visible, steps=...)",
    }

    units: int
    initialiser: Initialiser = field(default="normal", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str = field(default="boltzmann", kw_only=True)

    def __post_init__(self) -> None:
        try:
            check_whole(self.units, "the number of units is")
            check_initialiser(self.initialiser)
            check_regulariser(self.regulariser)
            check_flag(self.trainable, "trainable is")
        except ValueError as error:
            raise ValueError(f"RestrictedBoltzmannMachine: {error}") from error

    def __call__(self, visible: SymbolicTensor) -> SymbolicTensor:
        """Returns the probabilities of the hidden units, as `upward` does."""
        return self.upward(visible)

    def upward(self, visible: SymbolicTensor, *, sample: bool = False) -> SymbolicTensor:
        """Returns the probabilities of the hidden units, or samples of their states.

        Args:
            visible: states or probabilities of the visible units, of any shape.
            sample: whether to draw states, 0 or 1.
        """
        sums = self._hidden_sums(visible)
        return self._drawn(sums) if sample else self._probabilities(sums)

    def downward(
        self, hidden: SymbolicTensor, *, shape: int | Sequence[int] | None = None, sample: bool = False
    ) -> SymbolicTensor:
        """Returns the probabilities of the visible units, or samples of their states.

        Args:
            hidden: states or probabilities of the hidden units.
            shape: of the visible units; to be given where the machine was not called upward before.
            sample: whether to draw states, 0 or 1.

        Raises:
            ValueError: the shape of the visible units is not known.
        """
        sums = self._visible_sums(hidden, shape)
        return self._drawn(sums) if sample else self._probabilities(sums)

    def gibbs(self, visible: SymbolicTensor, steps: int) -> SymbolicTensor:
        """Returns samples of the visible units after so many steps of Gibbs sampling, up and down."""
        for _ in range(check_whole(steps, "the number of steps is")):
            visible = self.downward(self.upward(visible, sample=True), sample=True)
        return visible

    def reconstruct(self, visible: SymbolicTensor) -> SymbolicTensor:
        """Returns the probabilities of the visible units, given those of the hidden ones."""
        return self.downward(self.upward(visible))

    def free_energy(self, visible: SymbolicTensor) -> SymbolicTensor:
        """Returns the free energy of each example, one number. One machine adds it up."""
        sums = self._hidden_sums(visible)
        found: SymbolicTensor = self._with_visible_bias(visible, FreeEnergy)(visible, sums)
        return found

    def contrastive_divergence(
        self, visible: SymbolicTensor, *, steps: int = 1, chains: int | None = None
    ) -> LossSum:
        """Returns the loss whose gradient is that of contrastive divergence: `F(data) - F(chain)`.

        The chain is held constant. Its value falls and rises: look at reconstructions instead.

        Args:
            visible: the data; of several values, probabilities from 0 to 1.
            steps: of Gibbs sampling, from the data to the end of the chain (the k of CD-k).
            chains: if given, chains that go on from step to step (persistent contrastive divergence), so
                many, instead of chains that begin at the data. At least the examples of a minibatch, times
                the replicas. `NAME_chains.states` has their states.
        """
        data, kept, states = visible, None, None
        if chains is not None:
            kept = MarkovChains(chains, name=unused(visible.network, f"{self.name}_chains"))
            states = ParameterOf(kept, "states")
        data_sums = self._hidden_sums(data)
        chain, sums = (data, data_sums) if kept is None else (kept(data), None)
        for _ in range(check_whole(steps, "the number of steps is")):
            hidden = self._drawn(self._hidden_sums(chain) if sums is None else sums)
            chain, sums = self._drawn(self._visible_sums(hidden)), None
        chain_sums = self._hidden_sums(chain)
        bias = ParameterOf(self._placed(visible)["visible"], "bias")
        energy = VisibleEnergy(bias=bias, states=states, name=self._free(visible, "visible_energy"))
        terms = (
            HiddenEnergy(name=self._free(visible, "hidden_energy"))(chain_sums, data_sums),
            energy(chain, data),
        )
        losses = [ScoreSum(name=self._free(visible, f"{kind}_loss")) for kind in ("hidden", "visible")]
        return losses[0](terms[0]) + losses[1](terms[1])

    def _hidden_sums(self, visible: SymbolicTensor) -> SymbolicTensor:
        placed = self._placed(visible)
        if "downward" in placed and "hidden" not in placed:
            raise ValueError(
                f"{self._label} was called downward before it was called upward in network "
                f"'{visible.network.name}'; call it upward first"
            )
        if "hidden" not in placed:
            placed["shape"] = visible.shape
            placed["hidden"] = Dense(
                self.units,
                initialiser=self.initialiser,
                regulariser=self.regulariser,
                trainable=self.trainable,
                name=self.name,
            )
        found: SymbolicTensor = placed["hidden"](visible)
        return found

    def _visible_sums(
        self, hidden: SymbolicTensor, shape: int | Sequence[int] | None = None
    ) -> SymbolicTensor:
        placed = self._placed(hidden)
        found = placed.get("shape", shape)
        if found is None:
            raise ValueError(
                f"{self._label} does not know its visible units yet; give their shape, downward(hidden, "
                "shape=...)"
            )
        placed["shape"] = found
        if "hidden" in placed:
            own: Any = {
                "weight": ParameterOf(placed["hidden"], "weight"),
                "name": self._free(hidden, "downward"),
            }
        else:
            own = {"initialiser": self.initialiser, "trainable": self.trainable, "name": self.name}
        layer = DenseTransposed(found, **own)
        if "hidden" not in placed:
            layer = placed.setdefault("downward", layer)
        biased: SymbolicTensor = self._with_visible_bias(hidden, Bias)(layer(hidden))
        return biased

    def _with_visible_bias(self, at: SymbolicTensor, kind: Any) -> Any:
        """A layer that uses the biases of the visible units; the first in a network has them."""
        placed = self._placed(at)
        if "visible" in placed:
            return kind(bias=ParameterOf(placed["visible"], "bias"), name=self._free(at, "visible"))
        placed["visible"] = kind(trainable=self.trainable, name=f"{self.name}_visible")
        return placed["visible"]

    def _drawn(self, sums: SymbolicTensor) -> SymbolicTensor:
        return Bernoulli(name=self._free(sums, "sample"))(sums)

    def _probabilities(self, sums: SymbolicTensor) -> SymbolicTensor:
        return Activation("sigmoid", name=self._free(sums, "probability"))(sums)

    def _placed(self, at: object) -> dict[str, Any]:
        """The layers that the machine has placed in a network, by their parts in it."""
        if not isinstance(at, SymbolicTensor):
            raise ValueError(f"{self._label} needs the states of another layer; call it on them")
        return at.network.placed(self)

    def _free(self, at: SymbolicTensor, what: str) -> str:
        return unused(at.network, f"{self.name}_{what}")

    @property
    def _label(self) -> str:
        return f"RestrictedBoltzmannMachine '{self.name}'"


@dataclass(frozen=True)
class DeepBeliefNet(Arguments):
    """Restricted Boltzmann machines in a stack: the hidden units of each are the visible ones of the next.

    They are trained one after the other, from the lowest: `contrastive_divergence(visible, level)` places the
    levels below with weights that do not learn, and a loss for one level. Then `dream` draws samples, by
    Gibbs sampling in the highest machine and one pass downward; and `upward`, under further layers, is a
    feed-forward network that begins with what was learnt.

    Source: Hinton, Osindero and Teh, *A fast learning algorithm for deep belief nets*, 2006.

    Args:
        units: number of hidden units of each machine, from the lowest.
        initialiser, regulariser: of the weights, as in `RestrictedBoltzmannMachine`.
        name: the machines are NAME_1, NAME_2 ..., from the lowest.
    """

    units: Sequence[int]
    initialiser: Initialiser = field(default="normal", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    name: str = field(default="belief", kw_only=True)
    levels: tuple[RestrictedBoltzmannMachine, ...] = field(init=False, repr=False)
    """The machines, from the lowest."""
    _frozen: tuple[RestrictedBoltzmannMachine, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        units = check_shape(self.units, "DeepBeliefNet: the numbers of units are")
        settings: Any = {"initialiser": self.initialiser, "regulariser": self.regulariser}
        levels = tuple(
            RestrictedBoltzmannMachine(n, name=f"{self.name}_{k}", **settings)
            for k, n in enumerate(units, start=1)
        )
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "_frozen", tuple(replace(one, trainable=False) for one in levels))

    def __call__(self, visible: SymbolicTensor) -> SymbolicTensor:
        """Returns the probabilities of the highest units, as `upward` does."""
        return self.upward(visible)

    def upward(self, visible: SymbolicTensor) -> SymbolicTensor:
        """Returns the probabilities of the highest units; each level reads those of the level below."""
        for machine in self.levels:
            visible = machine.upward(visible)
        return visible

    def contrastive_divergence(
        self, visible: SymbolicTensor, level: int, *, steps: int = 1, chains: int | None = None
    ) -> LossSum:
        """Returns the loss of one level, over samples of those below, which do not learn.

        Args:
            visible: the data.
            level: from 1, the lowest.
            steps: as in `RestrictedBoltzmannMachine.contrastive_divergence`.
            chains: as there.

        Raises:
            ValueError: there is no such level.
        """
        at = self._index(level)
        for machine in self._frozen[:at]:
            visible = machine.upward(visible, sample=True)
        return self.levels[at].contrastive_divergence(visible, steps=steps, chains=chains)

    def dream(
        self, visible: SymbolicTensor, *, steps: int, shape: int | Sequence[int] | None = None
    ) -> SymbolicTensor:
        """Returns probabilities of the lowest visible units, after Gibbs sampling in the highest machine.

        Args:
            visible: states of the visible units of the highest machine with which its chain begins, for
                example random ones.
            steps: of Gibbs sampling.
            shape: of the lowest visible units; `visible`'s own where there is one level.
        """
        *below, top = self.levels
        states = top.gibbs(visible, steps - 1) if steps > 1 else visible
        hidden = top.upward(states, sample=True)
        if not below:
            return top.downward(hidden)
        states = top.downward(hidden, sample=True)
        for machine, lower in zip(below[:0:-1], below[-2::-1], strict=True):
            states = machine.downward(states, shape=lower.units, sample=True)
        return below[0].downward(states, shape=shape)

    def _index(self, level: int) -> int:
        at = check_whole(level, "DeepBeliefNet: the level is")
        if at > len(self.levels):
            raise ValueError(f"DeepBeliefNet: there is no level {at}; it has {len(self.levels)}, from 1")
        return at - 1
