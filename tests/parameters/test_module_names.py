"""Names of a module in a manifest: all of a state dict comes back, and damage is said."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from partita.engine.parameters import CheckpointError, module_names
from partita.engine.parameters.module_names import ModuleEntry, module_entries, state_entries
from partita.layers.module_state import StateEntry

STATE = (
    StateEntry("w", (2, 3), "bfloat16", "w", "layer.weight", (1, 0), versions=(2,)),
    StateEntry("again", (2, 3), "bfloat16", "w", "layer.weight", (1, 0)),
    StateEntry("steps", (), "int64", "steps", constant=np.array(7), versions=(-1,)),
    StateEntry("mask", (2, 2), "bool", "mask", constant=np.tril(np.ones((2, 2), bool))),
    StateEntry("none", (0, 4), "float32", "none", constant=np.zeros((0, 4), np.float32)),
)


def test_a_state_dict_comes_back() -> None:
    written = msgspec.json.decode(msgspec.json.encode(module_entries(STATE)), type=tuple[ModuleEntry, ...])
    found = state_entries(written, ["layer.weight"])
    for one, other in zip(found, STATE, strict=True):
        assert repr(one) == repr(other)
        if other.constant is not None and one.constant is not None:
            assert one.constant.dtype == other.constant.dtype and np.array_equal(one.constant, other.constant)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"constant": "!"}, "the numbers of 'steps' in its manifest are damaged"),
        ({"shape": (2,)}, "are damaged"),
        ({"kind": "object"}, "are damaged"),
        ({"kind": "nothing"}, "are damaged"),
        ({"shape": (1 << 40,)}, "are damaged"),
        ({"parameter": "other", "kind": ""}, "from 'other', which is not there"),
    ],
)
def test_damage_is_said(changed: dict[str, object], says: str) -> None:
    (entry,) = module_entries(STATE[2:3])
    with pytest.raises(CheckpointError, match=says):
        state_entries([msgspec.structs.replace(entry, **changed)], ["layer.weight"])


def test_constants_that_are_too_large_leave_all_names_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_names, "MOST_TEXT", 8)
    assert module_entries(STATE[:2]) and not module_entries(STATE)
