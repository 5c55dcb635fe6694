"""A question to the registry of a pool, and its answer."""

from __future__ import annotations

import time
from typing import Final

import zmq

from partita.engine.launch.pool.client import worded
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool.messages import Inspect, Rejection, Status, decode, encode
from partita.engine.transport.addresses import address_towards
from partita.engine.transport.keyring import Keyring
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.visit import Visit

ANSWER_S: Final = 5.0
_AGAIN_S: Final = 0.5


def ask_pool(address: str, keyring: Keyring, question: Inspect) -> Status:
    """Asks a pool for its state, as a client.

    Args:
        address: of the pool, `tcp://HOST:PORT`.
        keyring: has the pair `client`, and trusts the pool's key.
        question: what is asked; may be asked several times.

    Raises:
        OSError: the pool does not answer, and why.
        ValueError: it refuses the question, or the address is none.
        FileNotFoundError, ValueError, InsecureKeyFile, MalformedKeyFile: a key cannot be read.
    """
    return ask(
        Peer("the pool", 0, address, keyring.trusted("pool").public_key), keyring.pair("client"), question
    )


def ask(pool: Peer, keys: KeyPair, question: Inspect) -> Status:
    """Asks the registry behind a door for the state of its pool, by the key of a client.

    Raises:
        OSError: the pool does not answer, and why.
        ValueError: it refuses the question.
    """
    address = pool.endpoint
    until, asked_at = time.monotonic() + ANSWER_S, float("-inf")
    with Visit(keys, pool) as visit:
        while (now := time.monotonic()) < until:
            if now - asked_at >= _AGAIN_S and visit.send(encode(question)):
                asked_at = now
            zmq.select(list(visit.sockets), [], [], 0.05)
            for answer in map(decode, visit.receive()):
                match answer:
                    case Status():
                        return answer
                    case Rejection(reason=reason):
                        raise ValueError(f"the pool at {address} refuses: {reason}")
        if visit.trouble is not None:
            raise OSError(worded(visit, visit.trouble, address_towards(address)))
    raise OSError(f"the pool at {address} did not answer within {ANSWER_S:g} s")
