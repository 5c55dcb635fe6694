"""The declaration of networks, node by node. This package knows no machine and no clock.

`Network` collects inputs, layers (called like functions on the output of other layers), targets and losses;
`Network.graph()` freezes it. `node` turns one node's arithmetic in plain Python into a layer.

**The contract of a layer: one layer, one file.** A layer is a frozen dataclass that derives from `Layer`. Its
    file
holds all that the system knows of it; beside the file it has an export here and a test. It states

- `connectivity` and `shape`: which nodes of each input feed a node, and the grid. Cuts, messages and windows
  follow from them;
- `parameters`: arrays cut with the rows of the layer, or shared by all of them;
- `forward(step, inputs, parameters) -> output`: the arithmetic, in torch, of the rows `step.rows`. All inputs
come
  at once, each as the rows that feed those (`step.windows`); parameters are pieces for these rows, shared
  ones whole. Tensors are node-major, `[rows, other node axes ..., example]`, in the step's precision (float32
  where that is bfloat16);
- `summary(shape)`, `summarise(step, inputs, parameters)` and `combine(step, summaries)`, if a row needs to
  know something of all rows: where the layer is cut, each machine summarises its rows and sends the result to
  the others, and all combine the summaries in the order of the rows; `forward` finds the result as
  `step.summary`, whether the layer is cut or not. Gradients travel back in the same way;
- `partial(step, inputs, parameters)` and `finish(step, sums)`, if it `splits_sum`;
- `backward(step, inputs, parameters, output, grad_output) -> (grad_inputs, grad_parameters)`, if autograd is
not
  to make it. A layer with a summary writes it only where no gradient has to travel back.
  Nothing is saved between the two but their arguments: random bits are counted, so a backward pass computes
  its mask again;
- `definition`: one node's arithmetic in scalars, which tests compare `forward` with; None with the reason;
- `flops_per_node` and `slowdown`: the hints by which plans predict its cost where it was not measured.

Capabilities are stated, not assumed: `cuttable` (rows may lie on several machines), `by_rows` (computes some
    rows
before others), `splits_sum` (sums over one block of its input after the other, and over inputs on several
machines), `rounds_products` (takes bfloat16 as it is), `several_inputs`, `integer_inputs` (reads numbers
of classes, as `net.input(..., classes=n)` declares them), and of a parameter `sparse`: its gradient has few
rows, so that autograd returns a sparse tensor, or `backward` `(rows, values)`. `step.training` says whether a
backward pass follows. Randomness is `step.bits()`: a function of the seed, the layer, the visit, the example
and the node.

A layer is computed by its native kernel if `engine/kernels` has one, else by `forward`, else by its
definition, compiled. A device other than a CPU is torch: there `forward` comes first.
"""

from typing import TYPE_CHECKING

from partita.layers.activations import Activation
from partita.layers.attention import Attention
from partita.layers.batch_norm import BatchNorm
from partita.layers.boltzmann import DeepBeliefNet, RestrictedBoltzmannMachine
from partita.layers.box import Box, BoxSet
from partita.layers.connectivity import Connectivity, Full, OneToOne, Patch
from partita.layers.contract import Step, Summary
from partita.layers.convolution import Conv1D, Conv2D, DepthwiseConv2D
from partita.layers.cross_entropy import KLDivergence, SoftmaxCrossEntropy
from partita.layers.difference_losses import HalfSquaredError, Huber
from partita.layers.dropout import Dropout
from partita.layers.edges import Edges
from partita.layers.embedding import Embedding
from partita.layers.exits import Exit
from partita.layers.feed_forward import FeedForward
from partita.layers.global_pooling import GlobalAveragePool, GlobalMaxPool
from partita.layers.graph import Graph, Grid
from partita.layers.group_norm import GroupNorm
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.layer_norm import LayerNorm, RMSNorm
from partita.layers.linear import Linear
from partita.layers.logistic_losses import BinaryCrossEntropy, OneVsRest
from partita.layers.losses import LabelLoss, Loss, ScoreLoss, ScoreSum
from partita.layers.merge import Add, Average, Maximum, Multiply
from partita.layers.multi_head_attention import MultiHeadAttention
from partita.layers.network import Network
from partita.layers.node import Node, node, per_edge, per_node
from partita.layers.normalisation import LocalContrastNormalisation2D
from partita.layers.other_names import refuse
from partita.layers.parts import Concatenate, Slice
from partita.layers.pooling import AveragePool2D, L2Pool2D, MaxPool2D
from partita.layers.positions import PaddingMask, PositionEmbedding
from partita.layers.recurrent import GRU, LSTM
from partita.layers.regularisers import L1, L1L2, L2
from partita.layers.reshape import Flatten, Permute, Reshape
from partita.layers.resize import Crop, UpSample, ZeroPad
from partita.layers.sampling import Bernoulli
from partita.layers.softmax import Softmax
from partita.layers.states import SymbolicTensor
from partita.layers.ties import ParameterOf
from partita.layers.transposed import Bias, DenseTransposed
from partita.layers.weighted_sum import Dense, LocallyConnected2D

if not TYPE_CHECKING:
    __getattr__ = refuse

__all__ = [
    "GRU",
    "L1",
    "L1L2",
    "L2",
    "LSTM",
    "Activation",
    "Add",
    "Attention",
    "Average",
    "AveragePool2D",
    "BatchNorm",
    "Bernoulli",
    "Bias",
    "BinaryCrossEntropy",
    "Box",
    "BoxSet",
    "Concatenate",
    "Connectivity",
    "Conv1D",
    "Conv2D",
    "Crop",
    "DeepBeliefNet",
    "Dense",
    "DenseTransposed",
    "DepthwiseConv2D",
    "Dropout",
    "Edges",
    "Embedding",
    "Exit",
    "FeedForward",
    "Flatten",
    "Full",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Graph",
    "Grid",
    "GroupNorm",
    "HalfSquaredError",
    "Huber",
    "KLDivergence",
    "L2Pool2D",
    "LabelLoss",
    "Layer",
    "LayerNorm",
    "Linear",
    "LocalContrastNormalisation2D",
    "LocallyConnected2D",
    "Loss",
    "MaxPool2D",
    "Maximum",
    "MultiHeadAttention",
    "Multiply",
    "Network",
    "Node",
    "NodeDefinition",
    "OneToOne",
    "OneVsRest",
    "PaddingMask",
    "Parameter",
    "ParameterOf",
    "Patch",
    "Permute",
    "PositionEmbedding",
    "RMSNorm",
    "Reshape",
    "RestrictedBoltzmannMachine",
    "ScoreLoss",
    "ScoreSum",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropy",
    "Step",
    "Summary",
    "SymbolicTensor",
    "UpSample",
    "ZeroPad",
    "node",
    "per_edge",
    "per_node",
]
