"""The example of the belief net: a small share of it, and the whole beside scikit-learn's machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples import belief_net


def test_a_little_of_it_learns_and_dreams(on_threads: object, tmp_path: Path) -> None:
    """Two epochs of a few pictures restore better than the first weights; samples are probabilities."""
    pictures, _ = belief_net.data()
    run = belief_net.boltzmann(pictures[:160], epochs=2)
    assert not any(message.is_of_weights for message in run.plan.messages)
    error, score = belief_net.quality(run, pictures[:160])
    assert error < 0.2 and score > -38, "of the first weights: 0.25, and 64 log 0.5 = -44.4"
    draw, parameters = np.random.default_rng(0), {}
    for level in ("belief_1", "belief_2"):
        parameters[f"{level}.weight"] = draw.normal(size=(64, 64)) / 8
        parameters |= dict.fromkeys((f"{level}.bias", f"{level}_visible.bias"), np.zeros(64))
    samples = belief_net.dreams(parameters, count=4, steps=2)
    assert samples.shape == (4, 64) and (samples > 0).all() and (samples < 1).all()
    assert len(np.unique(samples, axis=0)) == 4
    pytest.importorskip("matplotlib", reason="draws a picture")
    belief_net.draw(tmp_path, {"samples": samples})
    assert (tmp_path / "belief_net.svg").stat().st_size > 1000


@pytest.mark.slow
def test_the_example_ends_where_scikit_learn_does(
    on_threads: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="draws a picture")
    belief_net.main(str(tmp_path))
    assert "scikit-learn  reconstruction error" in capsys.readouterr().out
