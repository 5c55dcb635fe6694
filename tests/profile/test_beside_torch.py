"""PyTorch's own cuts of a module: where they are, that they train as the module does, and their figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from partita.engine import SGD, Session
from partita.engine.profile import Profile, profile_network
from partita.engine.profile.beside import Beside, beside_text
from partita.engine.profile.beside_torch import beside_torch, staged_job
from partita.engine.profile.measure import RATE, drawn_batch
from partita.engine.profile.report import Report
from partita.engine.profile.torch_cuts import linear_pairs, split_point
from partita.engine.profile.torch_group import TorchFailed
from partita.engine.profile.torch_player import Eager, TorchJob
from partita.engine.pytorch.torch_module import TorchModule
from partita.partitioner import Cluster, partition
from tests.profile.torch_file import Words

INPUTS = (torch.zeros((2, 5), dtype=torch.int64), torch.zeros((2, 5, 6)))


def words() -> TorchModule:
    torch.manual_seed(0)
    return TorchModule(Words(), INPUTS, target="next", name="words")


def test_eager_mode_learns_what_the_network_learns() -> None:
    """The losses of three steps, of the same numbers and examples."""
    given = words()
    plan = partition(given.network, Cluster.local(machines=1), batch=4)
    batch = drawn_batch(plan.graph, batch=4, precision="float32")
    with Session(plan, 0, train=True, optimizer=SGD(RATE), hosts="inline") as session:
        ours = [session.step(batch).loss for _ in range(3)]
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    job = TorchJob(given.module, (tensors["words"], tensors["bias"]), tensors["next"], "cross-entropy", RATE)
    found = Eager(job, 0).steps(3)
    np.testing.assert_allclose(found["losses"], ours, rtol=1e-6)


def test_the_squared_error_is_that_of_the_layer() -> None:
    """Half the sum, and the mean over the examples."""
    given, target = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    job = TorchJob(nn.Identity(), (given,), target, "squared-error", 0.1)
    assert job.loss_of(given, target).item() == (1 + 0 + 4 + 16) / 2 / 2


def test_pairs_have_only_functions_of_each_number_between() -> None:
    assert linear_pairs(words().module, INPUTS) == [("wide", "narrow")]
    tied = Words(width=6)
    tied.narrow.weight = tied.wide.weight
    assert linear_pairs(tied, INPUTS) == []
    norm = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert linear_pairs(norm, (torch.zeros(2, 4),)) == [("2", "3")]


def test_a_pipeline_is_cut_where_half_of_the_work_is_done() -> None:
    layers = [nn.Linear(8, 8) for _ in range(6)]
    deep = nn.Sequential(nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:]))
    assert split_point(deep, (torch.zeros(2, 8),)) == "1"
    with pytest.raises(ValueError, match="the module has no parts that are called once"):
        split_point(layers[0], (torch.zeros(2, 8),))


def test_a_pipeline_does_not_train_a_tied_weight_apart() -> None:
    module = Words(width=20)
    module.scores.weight = module.table.weight
    job = TorchJob(module, INPUTS, None, "cross-entropy", RATE)
    with pytest.raises(TorchFailed, match=r"table\.weight and scores\.weight are one parameter"):
        staged_job(job)


def test_figures_are_a_table_and_reasons_stand_below() -> None:
    found = (
        Beside("PyTorch, 1 thread", 0.002, 1.0, 1.0, 1.0, 2.5),
        Beside("PyTorch, pipelining", note="it has no parts"),
    )
    text = beside_text(found)
    assert [line.split() for line in text[2:3]] == [
        ["PyTorch,", "1", "thread", "2", "ms", "1.00x", "1.00", "to", "1.00", "2.5"]
    ]
    assert text[-1] == "  PyTorch, pipelining: it has no parts"


def test_a_report_keeps_them(profile: Profile) -> None:
    """In its text, in JSON that can be read back, and on the page."""
    figures = (Beside("PyTorch, 1 thread", 0.002, 1.0, 1.0, 1.0, 2.5),)
    report = replace(profile, beside=figures, remarks=("the loss is a stand-in",)).report()
    assert Report.from_json(report.to_json()) == report
    assert "remark: the loss is a stand-in" in str(report) and "PyTorch, 1 thread" in str(report)
    assert json.loads(report.to_json())["beside"][0]["gain"] == 1.0


def test_two_machines_and_a_precision_of_pytorch_are_needed(profile: Profile) -> None:
    module = TorchModule(nn.Identity(), ())
    with pytest.raises(ValueError, match="let 2 be among the numbers of machines"):
        beside_torch(module, replace(profile, points=profile.points[:1]))
    points = tuple(replace(p, plan=replace(p.plan, precision="bfloat16")) for p in profile.points)
    with pytest.raises(ValueError, match="measured in float32 and float64, not in bfloat16"):
        beside_torch(module, replace(profile, points=points))


@pytest.mark.slow
def test_all_ways_train_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over gloo: pipelining, tensor parallelism, and ours; a form that fails is a reason, and no failure."""
    given = words()
    profiled = profile_network(given.network, (1, 2), batch=8, calibrated=False, steps=1, hosts="threads")
    found = beside_torch(given, profiled, rounds=2, hosts="threads")
    assert [one.name for one in found][2:4] == ["PyTorch, pipelining", "PyTorch, tensor parallelism"]
    losses = [one.loss for one in found]
    assert all(loss is not None and math.isclose(loss, losses[0] or 0.0, rel_tol=1e-4) for loss in losses)
    assert all(one.gain and one.lowest and one.highest and one.gain <= one.highest for one in found)


@pytest.mark.slow
def test_a_module_that_pytorch_cannot_cut_says_why() -> None:
    torch.manual_seed(0)
    given = TorchModule(nn.Linear(4, 3), (torch.zeros(2, 4),))
    profiled = profile_network(given.network, (1, 2), batch=8, calibrated=False, steps=1, hosts="threads")
    found = {one.name: one for one in beside_torch(given, profiled, rounds=1, hosts="threads")}
    assert found["PyTorch, pipelining"].note == "the module has no parts that are called once"
    assert "no two linear layers follow one another" in found["PyTorch, tensor parallelism"].note
    assert found["PyTorch, 1 thread"].gain == 1.0
