"""Modules that return their own loss: networks with that loss, equal to PyTorch's, on any number of parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, pad

from partita.engine import Run, Session, TopK, evaluate, from_torch
from partita.engine.parameters import initialise
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads, on_threads  # noqa: F401 - a fixture
from tests.pytorch.own_losses import Compared, Nano, Padded, Shifted
from tests.pytorch.steps import BATCH, check_own

WORDS = torch.randint(0, 9, (BATCH, 6), generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 9, (BATCH, 6), generator=torch.Generator().manual_seed(2))

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "machines"),
    [
        (Shifted, 2),
        (Padded, 2),
        *(pytest.param(make, 1, marks=SLOW) for make in (Nano, Shifted, Padded)),
        *(pytest.param(make, 3, marks=SLOW) for make in (Nano, Shifted, Padded)),
    ],
)
def test_a_language_model_with_labels(make: Any, machines: int) -> None:
    torch.manual_seed(3)
    net = check_own(make(), (WORDS, LABELS), machines=machines)
    assert [one.name for one in net.graph().targets] == ["y"]
    assert net.graph().targets[0].shape == (6,)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_ignored_labels_count_in_a_mean_of_losses(machines: int) -> None:
    """They are 0 in the mean of the losses of all positions, padded ones, too."""

    def mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = pad(y, (0, 1), value=-100)[:, 1:]
        return cross_entropy(x, moved, reduction="none").mean()

    labels = LABELS.clone()
    labels[1, 2] = -100
    check_own(Alone(mean), (WORDS, labels), machines=machines)


@pytest.mark.parametrize("machines", [pytest.param(1, marks=SLOW), 2])
def test_a_sum_of_losses(machines: int) -> None:
    torch.manual_seed(3)
    y = torch.rand(BATCH, 6).softmax(-1)
    check_own(Compared(), (torch.randn(BATCH, 5), y, torch.arange(BATCH)), machines=machines)


class Alone(Nano):
    """A loss of its own of scores `[example, position, class]` and labels."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.loss(self.head(self.table(x)).transpose(1, 2), y)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda x, y: cross_entropy(x, y, reduction="sum"), "cross_entropy_loss is summed over the examples"),
        (
            lambda x, y: cross_entropy(x, y, ignore_index=0),
            "divides by the labels of the minibatch that are not 0",
        ),
        pytest.param(
            lambda x, y: cross_entropy(x, y, weight=torch.ones(9)),
            "divides by the weights of the labels",
            marks=SLOW,
        ),
        pytest.param(
            lambda x, y: cross_entropy(x, y * 2),
            "its labels are computed by mul, at .*test_own_loss.py",
            marks=SLOW,
        ),
        pytest.param(
            lambda x, y: x.logsumexp(1).mean(),
            "there is no loss for logsumexp, at .*test_own_loss.py",
            marks=SLOW,
        ),
        pytest.param(lambda x, y: cross_entropy(x, y).exp(), "there is no loss for exp", marks=SLOW),
    ],
)
def test_what_is_no_loss_of_a_network_is_refused(loss: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_torch(Alone(loss), (WORDS, LABELS))


def test_ignored_labels_of_a_mean_are_refused_in_the_data() -> None:
    """PyTorch divides by those of the minibatch that count, which no part of it knows."""
    labels = LABELS.clone()
    labels[1, 0] = -1
    net = from_torch(Nano(), (WORDS, LABELS))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH, strategy="balanced")
    with (
        Session(plan, 0, train=True) as session,
        pytest.raises(ValueError, match="'y' names a class that is none in example 1"),
    ):
        session.step({"x": WORDS.numpy(), "y": labels.numpy()})


@pytest.mark.parametrize("machines", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_metrics_of_labels_that_the_module_moves(machines: int, on_threads: WatchedThreads) -> None:  # noqa: F811
    """Accuracy and the share among the largest two, of the positions that have a label alone."""
    torch.manual_seed(3)
    module = Shifted()
    net = from_torch(module, (WORDS, LABELS))
    assert net.loss[0].name.startswith("next_cross_entropy")
    plan = partition(net, Cluster.local(machines=machines), batch=BATCH, strategy="balanced")
    draw = torch.Generator().manual_seed(4)
    words, labels = (torch.randint(0, 9, (3 * BATCH - 1, *WORDS.shape[1:]), generator=draw) for _ in "xy")
    run = Run(plan, initialise(plan.graph.parameters.values(), 0))
    given = {"x": words.numpy(), "y": labels.numpy()}
    found = evaluate(run, given, metrics=(TopK(2), TopK(9)), show="nothing")
    with torch.no_grad():
        scores, wanted = module.head(torch.tanh(module.table(words)))[:, :-1], labels[:, 1:]
        loss = module(words, labels)
    best = scores.topk(2).indices == wanted[..., None]
    assert found.accuracy == pytest.approx(float(best[..., 0].float().mean()))
    assert found.metrics["top_2"] == pytest.approx(float(best.any(-1).float().mean()))
    assert found.metrics["top_9"] == 1
    assert found.loss == pytest.approx(float(loss), rel=1e-5)
