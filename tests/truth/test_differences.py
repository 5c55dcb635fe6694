"""Every row of the table of differences from PyTorch, the equal ones too, against the installed torch."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import (
    LARS,
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Cosine,
    LinearWarmup,
    Momentum,
    Optimizer,
    RMSProp,
    Session,
    StepDecay,
)
from partita.engine.parameters import UpdateContext
from partita.engine.parameters.initial_values import initial_range
from partita.engine.parameters.optimizers.optimizer import clip_factor
from partita.layers import (
    L2,
    Activation,
    AveragePool2D,
    BatchNorm,
    BinaryCrossEntropy,
    Conv2D,
    Dense,
    Embedding,
    FeedForward,
    GroupNorm,
    HalfSquaredError,
    Huber,
    KLDivergence,
    L2Pool2D,
    Layer,
    LayerNorm,
    Linear,
    Loss,
    MaxPool2D,
    Network,
    OneVsRest,
    Parameter,
    RMSNorm,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, partition
from tests.docs.pages import ROOT
from tests.kernels.cases import case, play

N, BATCH = 5, 4
Check = Callable[[], bool]
CHECKS: dict[str, Check] = {}


def row(what: str) -> Callable[[Check], Check]:
    """Registers the check of a row: whether Partita does as PyTorch does."""

    def register(check: Check) -> Check:
        CHECKS[what] = check
        return check

    return register


def rows() -> dict[str, bool]:
    """Whether each row of the page says "same"."""
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (.*?) \| .* \| (same|differs) \|$", text, flags=re.MULTILINE)
    return {what: last == "same" for what, last in found}


def test_every_row_is_checked() -> None:
    assert list(rows()) == list(CHECKS)


@pytest.mark.parametrize("what", CHECKS)
def test_a_row_says_what_is(what: str) -> None:
    assert CHECKS[what]() is rows()[what]


def drawn(layer: Layer, shape: tuple[int, ...], n: int) -> np.ndarray[Any, Any]:
    """The first values of a layer's parameter number `n`."""
    parameter = case(layer, shape, batch=1).grid.parameters[n]
    return initial_range(parameter, 0, start=0, stop=parameter.size)


def is_bound(values: Any, bound: float) -> bool:
    """Whether values fill the interval from -bound to bound and do not leave it."""
    return bool(0.9 * bound < np.abs(values).max() <= bound * (1 + 1e-6))


def bounds_agree(layer: Layer, shape: tuple[int, ...], theirs: torch.nn.Module, fan_in: int, n: int) -> bool:
    """Whether two layers begin within the same bound; PyTorch's must be the one on the page."""
    bound = 1 / math.sqrt(fan_in)
    assert is_bound([*theirs.parameters()][n].detach().numpy(), bound)
    return is_bound(drawn(layer, shape, n), bound)


@row("first weights of `Dense`")
def _() -> bool:
    assert is_bound(drawn(Dense(300), (400,), 0), math.sqrt(6 / 700))
    return bounds_agree(Dense(300), (400,), torch.nn.Linear(400, 300), 400, 0)


@row("first weights of `Conv2D`")
def _() -> bool:
    assert Conv2D(64, 3).initialiser == "glorot"
    return bounds_agree(Conv2D(64, 3), (9, 9, 16), torch.nn.Conv2d(16, 64, 3), 144, 0)


@row("first biases")
def _() -> bool:
    assert not drawn(Dense(300), (40,), 1).any()
    assert not drawn(Conv2D(300, 3), (9, 9, 16), 1).any()
    assert not bounds_agree(Conv2D(300, 3), (9, 9, 16), torch.nn.Conv2d(16, 300, 3), 144, 1)
    return bounds_agree(Dense(300), (40,), torch.nn.Linear(40, 300), 40, 1)


@row('"glorot"')
def _() -> bool:
    theirs = torch.nn.init.xavier_uniform_(torch.empty(300, 400)).numpy()
    bound = math.sqrt(6 / 700)
    return is_bound(theirs, bound) and is_bound(drawn(Dense(300), (400,), 0), bound)


@row('"he"')
def _() -> bool:
    theirs = torch.nn.init.kaiming_normal_(torch.empty(300, 400), nonlinearity="relu").numpy()
    ours = drawn(Dense(300, initialiser="he"), (400,), 0)
    np.testing.assert_allclose(theirs.std(), math.sqrt(2 / 400), rtol=0.02)
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.02))


@row('"glorot_normal"')
def _() -> bool:
    theirs = torch.nn.init.xavier_normal_(torch.empty(300, 400)).numpy()
    ours = drawn(Dense(300, initialiser="xavier_normal"), (400,), 0)
    assert abs(ours).max() > 3 * ours.std() and abs(theirs).max() > 3 * theirs.std()
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.02))


@row('"normal"')
def _() -> bool:
    theirs = torch.nn.init.normal_(torch.empty(300, 400)).numpy()
    ours = initial_range(Parameter("w", (300, 400), "normal"), 0, start=0, stop=120_000)
    np.testing.assert_allclose([ours.std(), theirs.std()], [0.05, 1], rtol=0.02)
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.02))


@row("relu's slope at 0")
def _() -> bool:
    given_case = case(Activation("relu"), (1,), batch=1)
    given_case.inputs[0][...] = 0
    x = torch.zeros(1, requires_grad=True)
    torch.relu(x).backward()
    assert x.grad is not None
    return bool(play(given_case).errors[0].item() == x.grad.item())


@row("padding of `Conv2D` by default")
def _() -> bool:
    ours = case(Conv2D(2, 3), (9, 7, 1), batch=1).grid.shape[:2]
    return ours == tuple(torch.nn.Conv2d(1, 2, 3)(torch.zeros(1, 1, 9, 7)).shape[2:])


@row('"same" for an even kernel')
def _() -> bool:
    given_case = case(Conv2D(1, 2, padding="same", use_bias=False), (4, 4, 1), batch=1)
    theirs = torch.nn.Conv2d(1, 1, 2, padding="same", bias=False).double()
    weight = torch.from_numpy(given_case.parameters[0]).permute(0, 3, 1, 2)
    theirs.weight = torch.nn.Parameter(weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same'")  # it may copy
        return agree(given_case, theirs)


def agree(given_case: Any, theirs: torch.nn.Module) -> bool:
    """Whether a layer of torch gives the same for the inputs of a case."""
    with torch.no_grad():
        found = theirs(torch.from_numpy(given_case.inputs[0].transpose(3, 2, 0, 1).copy())).numpy()
    return bool(np.allclose(play(given_case).state.transpose(3, 2, 0, 1), found, rtol=1e-10, atol=1e-12))


@row("`GroupNorm`'s epsilon and scale by default")
def _() -> bool:
    ours, theirs = GroupNorm(2), torch.nn.GroupNorm(2, 4)
    return (ours.epsilon, ours.scale) == (theirs.eps, theirs.affine)


@row("`LayerNorm`'s epsilon by default")
def _() -> bool:
    return LayerNorm().epsilon == torch.nn.LayerNorm(4).eps


@row("`RMSNorm`'s epsilon by default")
def _() -> bool:
    theirs = torch.nn.RMSNorm(4)
    tiny = torch.full((1, 4), 1e-4)
    unit = torch.finfo(torch.float32).eps
    assert theirs.eps is None
    torch.testing.assert_close(theirs(tiny), tiny / (tiny.square().mean() + unit).sqrt())
    return RMSNorm().epsilon == unit


@row("activation of `FeedForward` by default")
def _() -> bool:
    theirs = torch.nn.TransformerEncoderLayer(4, 2).activation
    assert theirs is torch.nn.functional.relu
    return FeedForward(8).activation == "relu"


@row("`BatchNorm`'s momentum, epsilon and scale by default")
def _() -> bool:
    ours, theirs = BatchNorm(), torch.nn.BatchNorm2d(4)
    return (ours.momentum, ours.epsilon, ours.scale) == (theirs.momentum, theirs.eps, theirs.affine)


@row("`BatchNorm` with momentum `None`")
def _() -> bool:
    none: Any = None
    with pytest.raises(ValueError, match="BatchNorm: the momentum is None"):
        BatchNorm(momentum=none)
    return torch.nn.BatchNorm2d(4, momentum=none).momentum is not None


@row("`BatchNorm` that is called twice in a step")
def _() -> bool:
    x = np.random.default_rng(0).normal(3.0, size=(BATCH, 4)).astype(np.float32)
    net, norm, theirs = Network("twice"), BatchNorm(name="norm"), torch.nn.BatchNorm1d(4)
    net.loss = HalfSquaredError()(norm(norm(net.input("x", shape=4))), net.target("y"))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH)
    with Session(plan, 0, train=True, optimizer=SGD(0.1), hosts="inline") as session:
        step = session.step({"x": x, "y": x}, collect=("parameters",))
    theirs(theirs(torch.tensor(x)))
    assert theirs.running_mean is not None
    mean = 0.1 * x.mean(axis=0)
    np.testing.assert_allclose(theirs.running_mean, 0.9 * mean, rtol=1e-3)
    np.testing.assert_allclose(step.vectors["parameters"]["norm.running_mean"], mean, rtol=1e-3)
    return False


@row("weight of an `Embedding` as that of a `Linear`")
def _() -> bool:
    table, net = Embedding(9, 4), Network("tied")
    scores = Linear(9, weight=table.weight)(table(net.input("words", shape=3, classes=9)))
    theirs = torch.nn.Linear(4, 9)
    theirs.weight = torch.nn.Embedding(9, 4).weight
    return net.graph().parameters["embedding.weight"].shape == theirs.weight.shape and scores.shape == (3, 9)


@row("stride of a pool by default")
def _() -> bool:
    pairs = (MaxPool2D(3), torch.nn.MaxPool2d(3)), (AveragePool2D(3), torch.nn.AvgPool2d(3))
    more = ((L2Pool2D(3), torch.nn.LPPool2d(2, 3)),)
    return all(agree(case(ours, (9, 8, 2), batch=2), theirs) for ours, theirs in (*pairs, *more))


@row("padding of `MaxPool2D`")
def _() -> bool:
    given_case = case(MaxPool2D(3, padding=1), (7, 7, 1), batch=2)
    given_case.inputs[0][...] -= 9
    return agree(given_case, torch.nn.MaxPool2d(3, padding=1))


@row("padding of `AveragePool2D`")
def _() -> bool:
    def one(**settings: Any) -> bool:
        given_case = case(AveragePool2D(3, padding=1, **settings), (7, 7, 1), batch=2)
        return agree(given_case, torch.nn.AvgPool2d(3, padding=1, **settings))

    return one() and one(count_include_pad=False)


@row("`ceil_mode` of `MaxPool2D`, and of `AveragePool2D` without counted padding")
def _() -> bool:
    off = not MaxPool2D(2).ceil_mode and not torch.nn.MaxPool2d(2).ceil_mode
    pairs: list[tuple[Layer, torch.nn.Module]] = [
        (MaxPool2D(3, padding=1, ceil_mode=True), torch.nn.MaxPool2d(3, padding=1, ceil_mode=True)),
        (AveragePool2D(3, ceil_mode=True), torch.nn.AvgPool2d(3, ceil_mode=True)),
    ]
    return off and all(agree(case(layer, (8, 7, 1), batch=2), module) for layer, module in pairs)


@row("`ceil_mode` of `AveragePool2D` with counted padding")
def _() -> bool:
    module = torch.nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True)
    corner = module(torch.ones(1, 1, 4, 4))[0, 0, -1, -1]
    assert torch.isclose(corner, torch.tensor(1 / 4)), "two by two of them count: the picture and its padding"
    with pytest.raises(ValueError, match="what lies there does not count"):
        AveragePool2D(3, stride=2, padding=1, ceil_mode=True)
    return False


@row("`ceil_mode` of `L2Pool2D`")
def _() -> bool:
    full, kept = (
        torch.nn.LPPool2d(2, 2, ceil_mode=True),
        case(L2Pool2D(2, ceil_mode=True), (3, 3, 1), batch=1),
    )
    kept.inputs[0][...] = 1
    assert full(torch.ones(1, 1, 3, 3))[0, 0, -1, -1] == 2
    assert play(kept).state[-1, -1] == 1
    return agree(kept, full)


@row("gradient of `L2Pool2D` where its patch is zero")
def _() -> bool:
    given_case = case(L2Pool2D(2), (2, 2, 1), batch=1)
    given_case.inputs[0][...] = 0
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    torch.nn.LPPool2d(2, 2)(x).sum().backward()
    assert x.grad is not None and not play(given_case).errors[0].any()
    return not x.grad.any()


def losses(
    loss: Loss, target: Any, theirs: torch.nn.Module, their_target: torch.Tensor
) -> tuple[float, float]:
    """The mean loss of the examples, ours and torch's."""
    given_case = case(loss, (N,), batch=BATCH, target=target)
    ours = given_case.reference.forward(given_case.inputs).mean()
    return float(ours), float(theirs(torch.from_numpy(given_case.inputs[0].T.copy()), their_target))


LABELS = np.array([[1, 0, 4, 2]])
NUMBERS = np.random.default_rng(0).uniform(size=(N, BATCH))


def one_by_one(loss: Loss, target: Any, theirs: torch.nn.Module, wanted: torch.Tensor, scale: float) -> bool:
    """Whether two losses are the same; if not, the page's scale must lie between them."""
    ours, found = losses(loss, target, theirs, wanted)
    np.testing.assert_allclose(ours, scale * found, rtol=1e-10)
    return math.isclose(ours, found, rel_tol=1e-6)


@row("`SoftmaxCrossEntropy`")
def _() -> bool:
    theirs, wanted = torch.nn.CrossEntropyLoss(), torch.from_numpy(LABELS[0])
    return one_by_one(SoftmaxCrossEntropy(), LABELS, theirs, wanted, 1)


WEIGHT = (0.5, 1.0, 2.0, 1.0, 3.0)


@row("`SoftmaxCrossEntropy` with `weight` or `ignore_index`")
def _() -> bool:
    wanted = torch.from_numpy(LABELS[0])
    weighted = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHT).double())
    share = sum(WEIGHT[label] for label in LABELS[0]) / BATCH
    same = one_by_one(SoftmaxCrossEntropy(WEIGHT), LABELS, weighted, wanted, share)
    ignoring = torch.nn.CrossEntropyLoss(ignore_index=4)
    return same or one_by_one(SoftmaxCrossEntropy(ignore_index=4), LABELS, ignoring, wanted, 1 - 1 / BATCH)


@row("`label_smoothing` of `SoftmaxCrossEntropy`")
def _() -> bool:
    theirs, wanted = torch.nn.CrossEntropyLoss(label_smoothing=0.2), torch.from_numpy(LABELS[0])
    assert inspect.signature(torch.nn.CrossEntropyLoss).parameters["label_smoothing"].default == 0
    return one_by_one(SoftmaxCrossEntropy(label_smoothing=0.2), LABELS, theirs, wanted, 1)


@row("`ignore_index` by default")
def _() -> bool:
    assert inspect.signature(torch.nn.CrossEntropyLoss).parameters["ignore_index"].default == -100
    return SoftmaxCrossEntropy().ignore_index == -100


@row("`KLDivergence`")
def _() -> bool:
    target = NUMBERS / NUMBERS.sum(axis=0)
    theirs, wanted = torch.nn.KLDivLoss(reduction="batchmean"), torch.from_numpy(target.T.copy())
    scores = case(KLDivergence(), (N,), batch=BATCH, target=target).inputs[0].T.copy()
    ours, found = losses(KLDivergence(), target, theirs, wanted)
    logs = float(theirs(torch.from_numpy(scores).log_softmax(1), wanted))
    np.testing.assert_allclose(ours, logs, rtol=1e-10)
    return math.isclose(ours, found, rel_tol=1e-6)


@row("`Huber`")
def _() -> bool:
    wanted = torch.from_numpy(NUMBERS.T.copy())
    assert inspect.signature(torch.nn.HuberLoss).parameters["delta"].default == Huber().delta
    return one_by_one(Huber(0.3), NUMBERS, torch.nn.HuberLoss(delta=0.3), wanted, N)


@row("`BinaryCrossEntropy`")
def _() -> bool:
    theirs, wanted = torch.nn.BCEWithLogitsLoss(), torch.from_numpy(NUMBERS.T.copy())
    return one_by_one(BinaryCrossEntropy(), NUMBERS, theirs, wanted, N)


@row("`OneVsRest`")
def _() -> bool:
    wanted = torch.nn.functional.one_hot(torch.from_numpy(LABELS[0]), N).double()
    return one_by_one(OneVsRest(), LABELS, torch.nn.BCEWithLogitsLoss(), wanted, N)


@row("`HalfSquaredError`")
def _() -> bool:
    theirs, wanted = torch.nn.MSELoss(), torch.from_numpy(NUMBERS.T.copy())
    return one_by_one(HalfSquaredError(), NUMBERS, theirs, wanted, N / 2)


@row("learning rate by default")
def _() -> bool:
    optim = torch.optim
    slow, fast = (optim.SGD, optim.Adam, optim.AdamW), (optim.Adagrad, optim.RMSprop)
    assert [inspect.signature(kind).parameters["lr"].default for kind in slow] == [1e-3] * 3
    assert [inspect.signature(kind).parameters["lr"].default for kind in fast] == [1e-2] * 2
    first, *_ = dataclasses.fields(SGD)
    return first.default is not dataclasses.MISSING


def steps_agree(optimizer: Optimizer, theirs: Callable[..., torch.optim.Optimizer]) -> bool:
    """Whether five updates by ordinary, tiny and zero gradients lead to the same values."""
    draw = np.random.default_rng(1)
    values = draw.normal(size=6)
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    reference, state = theirs([parameter]), optimizer.state(6, np.float64)
    for t in range(5):
        gradient = draw.normal(size=6) * [1, 1, 1, 1, 1e-9, 0]
        optimizer.bind(values, gradient, state)(UpdateContext(t))
        parameter.grad = torch.from_numpy(gradient)
        reference.step()
    return bool(np.allclose(values, parameter.detach().numpy(), rtol=1e-12, atol=1e-15))


@row("form of `Momentum`")
def _() -> bool:
    return steps_agree(Momentum(0.1, 0.8), lambda p: torch.optim.SGD(p, 0.1, momentum=0.8))


@row("factor of `Momentum` by default")
def _() -> bool:
    assert steps_agree(SGD(0.1), lambda p: torch.optim.SGD(p, 0.1))
    assert steps_agree(Momentum(0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    return steps_agree(Momentum(0.1), lambda p: torch.optim.SGD(p, 0.1))


@row("`nesterov` by default")
def _() -> bool:
    theirs = inspect.signature(torch.optim.SGD).parameters["nesterov"].default
    return theirs is Momentum(0.1).nesterov


@row("optimizers of a sparse gradient")
def _() -> bool:
    def takes(optimizer: Callable[..., Any], **settings: Any) -> bool:
        weight = torch.nn.Parameter(torch.ones(3, 2))
        with torch.sparse.check_sparse_tensor_invariants(enable=True):
            torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
            try:
                optimizer([weight], lr=0.1, **settings).step()
            except RuntimeError:
                return False
        return True

    assert takes(torch.optim.SGD) and takes(torch.optim.Adagrad) and takes(torch.optim.SparseAdam)
    assert SGD(0.1).supports_sparse and Adagrad(0.1).supports_sparse
    assert not takes(torch.optim.Adam) and not Adam(0.1).supports_sparse
    return takes(torch.optim.SGD, momentum=0.9) is Momentum(0.1).supports_sparse


@row("weight decay of `SGD`, `Adam`, `Adagrad`, `RMSProp`")
def _() -> bool:
    optim = torch.optim
    pairs: list[tuple[Any, Any]] = [
        (SGD, optim.SGD),
        (Adam, optim.Adam),
        (Adagrad, optim.Adagrad),
        (RMSProp, optim.RMSprop),
    ]
    return all(
        steps_agree(ours(0.1, **decay), lambda p, theirs=theirs, decay=decay: theirs(p, 0.1, **decay))
        for ours, theirs in pairs
        for decay in ({}, {"weight_decay": 0.3})
    )


@row("`L2(b)` of a layer")
def _() -> bool:
    weight = torch.tensor([3.0, -2.0], requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, weight_decay=0.25)
    weight.grad = torch.zeros(2)
    optimizer.step()
    theirs = np.array([3.0, -2.0]) - weight.detach().numpy()
    term, ours = L2(0.25).term(np.array([3.0, -2.0]))
    assert term == 0.25 * 13 and (ours == 2 * theirs).all()
    return bool((ours == theirs).all())


@row("weight decay of `AdamW`")
def _() -> bool:
    return AdamW(0.1).weight_decay == 0.01 and steps_agree(AdamW(0.1), lambda p: torch.optim.AdamW(p, 0.1))


@row("`Adam`'s betas and epsilon")
def _() -> bool:
    adam = Adam(0.1)
    assert (*adam.betas, adam.epsilon) == (0.9, 0.999, 1e-8)
    return steps_agree(adam, lambda p: torch.optim.Adam(p, 0.1))


@row("`Adagrad`'s accumulator and epsilon")
def _() -> bool:
    adagrad = Adagrad(0.1)
    assert (adagrad.initial_accumulator, adagrad.epsilon) == (0, 1e-10)
    return steps_agree(adagrad, lambda p: torch.optim.Adagrad(p, 0.1))


@row("`RMSProp`'s alpha, epsilon, momentum and centering")
def _() -> bool:
    optimizer = RMSProp(0.1)
    assert (optimizer.alpha, optimizer.epsilon, optimizer.momentum, optimizer.centered) == (
        0.99,
        1e-8,
        0,
        False,
    )
    return steps_agree(optimizer, lambda p: torch.optim.RMSprop(p, 0.1))


@row("`LARS`")
def _() -> bool:
    assert LARS(0.1).momentum == 0.9
    return hasattr(torch.optim, "LARS")


@row("clipping a norm")
def _() -> bool:
    parameter = torch.nn.Parameter(torch.zeros(3).double())
    parameter.grad = torch.tensor([3e-6, 4e-6, 0.0]).double()
    torch.nn.utils.clip_grad_norm_([parameter], 1e-6)
    factor = clip_factor({"w": (0.0, 25e-12)}, 1e-6)
    return bool(np.allclose(parameter.grad.numpy(), factor * np.array([3e-6, 4e-6, 0]), rtol=1e-12))


def scheduled(scheduler: Callable[[torch.optim.Optimizer], Any], n: int) -> list[float]:
    """The rates that a scheduler of torch gives to updates, from 0.1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    schedule, found = scheduler(optimizer), []
    for _ in range(n):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


@row("`StepDecay`'s factor by default")
def _() -> bool:
    theirs = scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 3), 8)
    return bool(np.allclose([StepDecay(0.1, 3).at(t) for t in range(8)], theirs))


@row("`Cosine` after its last step")
def _() -> bool:
    theirs = scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4), 8)
    ours = [Cosine(0.1, 4).at(t) for t in range(8)]
    np.testing.assert_allclose(ours[:5], theirs[:5], atol=1e-12)
    assert ours[5] == 0 < theirs[5]
    return bool(np.allclose(ours, theirs))


@row("warm-up")
def _() -> bool:
    theirs = scheduled(torch.optim.lr_scheduler.LinearLR, 6)
    ours = [LinearWarmup(5, 0.1).at(t) for t in range(6)]
    np.testing.assert_allclose([theirs[0], theirs[5], ours[0], ours[5]], [0.1 / 3, 0.1, 0.1 / 6, 0.1])
    return bool(np.allclose(ours, theirs))


@row("pairs that `LBFGS` keeps by default")
def _() -> bool:
    theirs = inspect.signature(torch.optim.LBFGS).parameters["history_size"].default
    assert (theirs, LBFGS().history) == (100, 10)
    return theirs == LBFGS().history  # type: ignore[no-any-return]
