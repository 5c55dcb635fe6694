"""A small share of `make fuzz`: nothing is uncaught, nothing hangs, and right messages are taken after it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from random import Random

import msgspec
import pytest

from partita.engine import protocol
from partita.engine.protocol.message_base import MessageStruct
from partita.engine.protocol.messages import MalformedMessage, decode
from partita.engine.protocol.pool import messages as pool
from partita.engine.transport import wire
from tests.fuzz.__main__ import TARGETS, play
from tests.fuzz.corpus import ENVELOPES, MESSAGES, POOL_MESSAGES, drawn
from tests.fuzz.readers import Decoders


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_wrong_is_refused_and_what_is_right_taken(name: str) -> None:
    play(name, frames=3_000, seed=0)


def kinds(base: type) -> set[type]:
    return {base, *(kind for below in base.__subclasses__() for kind in kinds(below))}


def test_every_kind_of_message_is_in_the_corpus() -> None:
    for found in pkgutil.walk_packages(protocol.__path__, f"{protocol.__name__}."):
        importlib.import_module(found.name)
    known = set(MESSAGES) | set(POOL_MESSAGES) | set(ENVELOPES)
    assert kinds(MessageStruct) - {MessageStruct} <= known
    assert kinds(pool._Message) - {pool._Message} <= known
    tagged = {kind for kind in kinds(msgspec.Struct) if kind.__module__ == wire.__name__}
    assert tagged == set(ENVELOPES)
    for one in known:
        for seed in range(5):
            assert drawn([one], Random(seed)), "its fields can be drawn"


def test_every_decoder_of_the_wire_is_a_target() -> None:
    root = Path(protocol.__file__).parents[1]
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"msgpack\.(Decoder|decode)[(\[]", path.read_text())
    }
    assert found == {"protocol/messages.py", "protocol/pool/messages.py", "transport/wire.py"}


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
