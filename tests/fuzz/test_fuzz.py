"""A small share of `make fuzz`: nothing is uncaught, nothing hangs, and right messages are taken after it."""

from __future__ import annotations

import msgspec
import pytest

from partita.engine.protocol.messages import MalformedMessage, decode
from tests.fuzz.__main__ import TARGETS, play
from tests.fuzz.readers import Decoders


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_wrong_is_refused_and_what_is_right_taken(name: str) -> None:
    play(name, frames=3_000, seed=0)


def test_an_error_that_is_not_caught_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Decoders):
        def __init__(self) -> None:
            super().__init__()
            kinds, _, error = self._decoders[0]
            self._decoders = [(kinds, msgspec.msgpack.Decoder(bytes).decode, error)]

    monkeypatch.setitem(TARGETS, "decoders", Careless)
    with pytest.raises(msgspec.MsgspecError) as found:
        play("decoders", frames=3_000, seed=0)
    assert "target decoders, seed 0" in found.value.__notes__[0]
    with pytest.raises(MalformedMessage):
        decode(b"\xc1")
