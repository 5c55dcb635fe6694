"""The example of characters: its plan, its data, a little training, and what it writes."""

from __future__ import annotations

import numpy as np
import pytest

from examples import characters
from partita.engine import Adam, AllReduce, evaluate, train


def test_windows_are_followed_by_what_follows_in_the_text() -> None:
    data = characters.data()
    shown = ["".join(characters.CHARACTERS[k] for k in window) for window in data["window"][[0, -1]]]
    assert characters.TEXT.startswith(shown[0]) and shown[1] == characters.TEXT[-25:-1]
    np.testing.assert_array_equal(data["window"][1:], data["following"][:-1])


def test_a_layer_on_each_machine() -> None:
    rows = {row.name: row.machines for row in characters.two_machines().summary().rows}
    assert (rows["first"], rows["second"]) == ("local0", "local1")


@pytest.mark.slow
def test_it_learns_and_writes(on_threads: object) -> None:
    """A few steps know more than the mean of the characters; it writes as many as it is asked for."""
    data = {name: array[:128] for name, array in characters.data().items()}
    plan = characters.two_machines()
    run = train(plan, data, driver=AllReduce(optimizer=Adam(0.02)), epochs=4, show="nothing", seed=1)
    assert evaluate(run, data).loss < np.log(len(characters.CHARACTERS)) - 0.5
    assert len(characters.written(run, 3)) == 3


@pytest.mark.slow
def test_the_example_writes_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    characters.main()
    assert "it writes: Beautiful is better than ugly." in capsys.readouterr().out
