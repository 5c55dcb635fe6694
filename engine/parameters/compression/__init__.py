"""Compression: short messages that take the place of gradients, and what they lack, which is kept.

`compressor` is the interface: settings, sizes of messages, and the state of one range of one replica.
`exact` sends some tensors beside a compressor's message as they are.
`top_k`, `one_bit` and `int8` write messages that are collected from all replicas, `power_sgd` factors that
are added up. `kept_state` has what is kept in checkpoints. `options` has their names on the
command line. No module here knows who sends a message.
"""

from partita.engine.parameters.compression.compressor import (
    BadMessage,
    Compressor,
    Encoder,
    Exact,
    Kind,
    Shape,
)
from partita.engine.parameters.compression.exact import encoder_of
from partita.engine.parameters.compression.int8 import Int8
from partita.engine.parameters.compression.one_bit import OneBit
from partita.engine.parameters.compression.power_sgd import PowerSGD
from partita.engine.parameters.compression.top_k import TopK

__all__ = [
    "BadMessage",
    "Compressor",
    "Encoder",
    "Exact",
    "Int8",
    "Kind",
    "OneBit",
    "PowerSGD",
    "Shape",
    "TopK",
    "encoder_of",
]
