"""Recurrent layers over the positions of a sequence: `LSTM` and `GRU`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.attention import SEQUENCE
from partita.layers.box import Shape
from partita.layers.checks import check_flag, check_whole
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Step, Tensor
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.layer import Layer, Parameter
from partita.layers.regularisers import Regulariser


@dataclass(frozen=True)
class Recurrent(Layer):
    """A layer whose state at a position follows from the input there and the state before; see `LSTM`, `GRU`.

    It is not cut: each position needs all units of the one before, so that machines would exchange the state
    at every position, one message after the other. Whole layers on several machines overlap by micro-batches.
    """

    cuttable = False
    several_inputs = True
    slowdown = 2.0
    gates: ClassVar[int]
    """Sums that a unit takes at each position."""
    carried: ClassVar[int] = 1
    """Arrays (units,) that a position hands to the next."""

    _meant: ClassVar[Any] = {
        "hidden_size": ("units",),
        "bidirectional": "call a second layer with go_backwards=True, and join both",
        "num_layers": "call one layer on the other, the first with return_sequences=True",
        "batch_first": "sequences are (positions, features) for each example; leave it out",
        "dropout": "call Dropout(...) on the input",
        "backward": ("go_backwards",),
        "activation": "gates are sigmoid and states tanh, as in PyTorch; leave it out",
        "recurrent_activation": "gates are sigmoid and states tanh, as in PyTorch; leave it out",
        "recurrent_initializer": ("initialiser",),
        "return_state": "the last state is what it returns; of an LSTM, return_cell=True adds the cell",
        "stateful": "call it with initial_state=True on the states that it begins with",
        "hx": ("initial_state",),
        "mask_zero": "give the call a mask, 1 at positions that count: layer(x, mask)",
    }

    units: int
    return_sequences: bool = field(default=False, kw_only=True)
    go_backwards: bool = field(default=False, kw_only=True)
    initial_state: bool = field(default=False, kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(units=check_whole(self.units, "the number of units is"))
        for flag in ("return_sequences", "go_backwards", "initial_state", "use_bias"):
            check_flag(getattr(self, flag), f"{flag} is")
        self._settle(initialiser=check_initialiser(self.initialiser))

    @property
    def connectivity(self) -> Connectivity:
        """All positions of the input."""
        return Full()

    @property
    def definition(self) -> None:
        """None: a node's state needs those of all units at the position before, which are no inputs."""
        return None

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The positions, if sequences are returned, and the units; one row more for the cell.

        Raises:
            ValueError: the input is no sequence, the mask is not one number for each position, or the states
                are not one number for each unit.
        """
        sequence, *further = sources
        if len(sequence) != 2:
            raise ValueError(f"the input has the shape {sequence}; {SEQUENCE}")
        shapes = " and ".join(map(str, further))
        if self.initial_state and further != [(self.units,)] * self.carried:
            raise ValueError(
                f"after the sequence {sequence} it is called on {shapes or 'nothing'}; with "
                f"initial_state=True give it {' and '.join([str((self.units,))] * self.carried)}"
            )
        if not self.initial_state and (len(further) > 1 or any(mask != sequence[:1] for mask in further)):
            raise ValueError(
                f"after the sequence {sequence} it is called on {shapes}; give it at most a mask "
                f"{sequence[:1]}, a number for each position"
            )
        if self.returns_cell and further and not self.initial_state:
            raise ValueError("it has a mask, with which it returns no cell; leave one of them out")
        rows = (sequence[0] if self.return_sequences else 1) + self.returns_cell
        return (rows, self.units) if self.return_sequences or self.returns_cell else (self.units,)

    @property
    def returns_cell(self) -> bool:
        """Returns whether the last cell is a row of the output."""
        return False

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """Weights of the input and of the state, and a bias for each, as PyTorch has them."""
        rows, features = self.gates * self.units, sources[0][1]
        found = [
            Parameter(f"weight_{name}", (rows, n), self.initialiser, n, self.units, shared=True)
            for name, n in (("ih", features), ("hh", self.units))
        ]
        if self.use_bias:
            found += [Parameter(name, (rows,), shared=True) for name in ("bias_ih", "bias_hh")]
        return tuple(found)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Products with the input and the state, of the positions that a node stands for."""
        positions, features = sources[0]
        each = self.gates * (2.0 * (features + self.units) + 4.0)
        rows = (positions if self.return_sequences else 1) + self.returns_cell
        return each * positions / rows

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's layer, over the positions that count.

        With a mask these are moved to the front, and their results back.
        """
        x, *further = inputs
        places = x.transpose(1, 2)  # [position, example, feature]
        states = [one.T[None] for one in further] if self.initial_state else None
        counts = further[0].detach() > 0.5 if further and states is None else None
        order = None
        if counts is not None:
            order = self._order(step, counts)
            places = places.gather(0, order.unsqueeze(-1).expand_as(places))
        elif self.go_backwards:
            places = places.flip(0)
        states = states or [places.new_zeros(1, places.shape[1], self.units)] * self.carried
        found, last, *cell = self._run(step, step.contiguous(places), states, parameters)
        if order is not None:
            return self._finished(step, found, counts, order).transpose(-1, -2)
        if self.return_sequences:
            last = found.flip(0) if self.go_backwards else found
        if self.returns_cell:
            return step.torch.cat([last, *cell]).transpose(1, 2)
        return last.transpose(1, 2) if self.return_sequences else last[0].T

    def _order(self, step: Step, counts: Tensor) -> Tensor:
        """The positions in the order of their states, `[position, example]`: those that count first."""
        positions = len(counts)
        number = step.torch.arange(positions, device=counts.device)[:, None]
        wanted = -number if self.go_backwards else number
        return step.torch.argsort(wanted + positions * 2 * ~counts, dim=0)

    def _finished(self, step: Step, found: Tensor, counts: Tensor, order: Tensor) -> Tensor:
        """States at their positions, 0 where none counts; or the last one of each example, 0 if it has
        none.
        """
        units = (-1, -1, self.units)
        if self.return_sequences:
            back = order.argsort(0).unsqueeze(-1).expand(units)
            return step.torch.where(counts.unsqueeze(-1), found.gather(0, back), 0.0)
        n = counts.sum(0)
        last = found.gather(0, (n - 1).clamp(min=0)[None, :, None].expand(units))[0]
        return step.torch.where((n > 0)[:, None], last, 0.0)

    def _run(
        self, step: Step, places: Tensor, states: list[Tensor], parameters: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Returns the states after each position, `[position, example, unit]`, and what the last one hands
        on, `[1, example, unit]` each.
        """
        raise NotImplementedError

    def _arguments(self, step: Step) -> tuple[Any, ...]:
        """The arguments of PyTorch's functions after the parameters: one layer, one direction."""
        return self.use_bias, 1, 0.0, step.training, False, False


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory over a sequence (positions, features).

    It returns the state after the last position, (units,), or after each one, (positions, units); the last
    cell may follow as a row of its own. A second input is a mask (positions,), 1 at positions that count and
    else 0: the others change no state, and their output is 0.

    Source: Hochreiter and Schmidhuber, *Long short-term memory*, 1997, with the forget gate of Gers and
    others, 2000. Weights are PyTorch's: rows of the gates input, forget, cell, output.

    Args:
        units: number of units.
        return_sequences: whether it returns the state after each position instead of the last.
        go_backwards: whether it begins at the last position; states stay at their positions.
        initial_state: whether a state (units,) and a cell (units,) are its second and third input, with which
            it begins; else it begins with zeros.
        use_bias: whether gates have biases: `bias_ih` and `bias_hh`, which are added.
        initialiser: of the weights, see `Parameter`.
        regulariser: of the weights, for example `L2(1e-4)`.
        trainable: whether its parameters learn.
        name: the layer's name in the network.
        return_cell: whether the cell after the last position is one row more: (positions + 1, units), or
            (2, units) behind the last state.
    """

    gates = 4
    carried = 2

    return_cell: bool = field(default=False, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        check_flag(self.return_cell, "return_cell is")

    @property
    def returns_cell(self) -> bool:
        """Returns whether the last cell is a row of the output."""
        return self.return_cell

    def _run(
        self, step: Step, places: Tensor, states: list[Tensor], parameters: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = step.torch.lstm(places, states, parameters, *self._arguments(step))
        return found


@dataclass(frozen=True)
class GRU(Recurrent):
    """Gated recurrent units over a sequence (positions, features); inputs and outputs are those of `LSTM`.

    Source: Cho and others, *Learning phrase representations using RNN encoder-decoder*, 2014, in the form
    whose reset gate is applied after the product, as PyTorch and Keras have it. Weights are PyTorch's: rows
    of the gates reset, update, new.

    Args:
        units, return_sequences, go_backwards, use_bias, initialiser, regulariser, trainable, name: as in
            `LSTM`.
        initial_state: whether a state (units,) is its second input, with which it begins; else it begins with
            zeros.
    """

    gates = 3

    def _run(
        self, step: Step, places: Tensor, states: list[Tensor], parameters: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = step.torch.gru(places, states[0], parameters, *self._arguments(step))
        return found
