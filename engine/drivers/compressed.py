"""Compressed exchanges between replicas: which settings of a driver go together, and the actions of one."""

from __future__ import annotations

from typing import Any

from partita.engine.parameters.compression import Compressor
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Ring


def check_compressor(compress: object, driver: str) -> None:
    """Raises ValueError where a driver's `compress` is neither None nor a compressor."""
    if compress is not None and not isinstance(compress, Compressor):
        raise ValueError(
            f"{driver}'s compress is {compress!r}; give TopK(0.01), OneBit(), Int8() or PowerSGD(2)"
        )


def check_exchange(compress: Compressor | None, by: object, driver: str) -> None:
    """Raises ValueError where `compress` is no compressor, or its messages cannot be exchanged so."""
    check_compressor(compress, driver)
    if compress is not None and "gather" in compress.rounds and not isinstance(by, Ring):
        raise ValueError(
            f"messages of {compress} are collected from all replicas, and not added up, which {by!r} does "
            "not do; use by=Ring(), or PowerSGD(2)"
        )


def exchange(compress: Compressor, *, step: int, by: Algorithm, vector: str = "gradient") -> a.Program:
    """Yields the actions after which a vector holds its sum over all replicas, as far as messages have it.

    Args:
        compress: makes and reads the messages.
        step: the one that was computed last.
        by: how messages are exchanged.
        vector: "gradient", or a scratch vector of the driver.
    """
    for turn in range(len(compress.rounds)):
        yield a.ExchangeMessages(step, compress=compress, by=by, turn=turn, vector=vector)


def keeps_unsent(driver: Any) -> bool:
    """Returns whether checkpoints have what each replica has not sent: a driver with `elastic` goes on
    without that of a replica that is gone.
    """
    compress: Compressor | None = driver.compress
    return compress is not None and bool(compress.state_names) and driver.elastic is None
