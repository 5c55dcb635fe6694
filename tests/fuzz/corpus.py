"""All kinds of messages, of which the corpus of frames consists."""

from __future__ import annotations

from typing import Final, get_args

from partita.engine.protocol.messages import Message
from partita.engine.protocol.pool.messages import PoolMessage
from partita.engine.testing.corpus import drawn, mutated
from partita.engine.transport.wire import Envelope

__all__ = ["ENVELOPES", "MESSAGES", "POOL_MESSAGES", "drawn", "mutated"]

MESSAGES: Final = get_args(Message)
POOL_MESSAGES: Final = get_args(PoolMessage)
ENVELOPES: Final = get_args(Envelope)
