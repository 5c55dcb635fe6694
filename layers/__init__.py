"""The declaration of networks, node by node. This package knows no machine and no clock.

`Network` collects inputs, layers (called like functions on the output of other layers), targets and losses;
`Network.graph()` freezes it. `node` turns one node's arithmetic in plain Python into a layer.
"""

from partita.layers.activations import Activation
from partita.layers.box import Box, BoxSet
from partita.layers.connectivity import Connectivity, Full, OneToOne, Patch
from partita.layers.convolution import Conv2D
from partita.layers.edges import Edges
from partita.layers.graph import Graph, Grid
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.losses import (
    BinaryCrossEntropy,
    HalfSquaredError,
    Loss,
    OneVsRest,
    SoftmaxCrossEntropy,
)
from partita.layers.merge import Add
from partita.layers.network import Network
from partita.layers.node import Node, node, per_edge, per_node
from partita.layers.normalisation import LocalContrastNormalisation2D
from partita.layers.pooling import AveragePool2D, L2Pool2D, MaxPool2D
from partita.layers.states import SymbolicTensor
from partita.layers.weighted_sum import Dense, LocallyConnected2D

__all__ = [
    "Activation",
    "Add",
    "AveragePool2D",
    "BinaryCrossEntropy",
    "Box",
    "BoxSet",
    "Connectivity",
    "Conv2D",
    "Dense",
    "Edges",
    "Full",
    "Graph",
    "Grid",
    "HalfSquaredError",
    "L2Pool2D",
    "Layer",
    "LocalContrastNormalisation2D",
    "LocallyConnected2D",
    "Loss",
    "MaxPool2D",
    "Network",
    "Node",
    "NodeDefinition",
    "OneToOne",
    "OneVsRest",
    "Parameter",
    "Patch",
    "SoftmaxCrossEntropy",
    "SymbolicTensor",
    "node",
    "per_edge",
    "per_node",
]
