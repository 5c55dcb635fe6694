"""Schedules against closed forms and torch's; and what may be written on a command line."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import (
    LARS,
    SGD,
    Adam,
    AdamW,
    Cosine,
    ExponentialDecay,
    InverseTime,
    LinearWarmup,
    Momentum,
    Optimizer,
    RMSProp,
    Schedule,
    StepDecay,
)
from partita.engine.parameters.optimizers.options import OPTIMIZERS, make_optimizer, parse_schedule

counts = st.integers(0, 10_000)


@given(count=counts)
def test_they_are_their_formulas(count: int) -> None:
    assert StepDecay(0.5, 100, 0.3).at(count) == pytest.approx(0.5 * 0.3 ** (count // 100))
    assert ExponentialDecay(0.5, 0.3, 1000).at(count) == pytest.approx(0.5 * 0.3 ** (count / 1000))
    assert InverseTime(0.5, 100).at(count) == pytest.approx(0.5 / (1 + count / 100))
    assert InverseTime(0.5, 100, 0.5).at(count) == pytest.approx(0.5 / math.sqrt(1 + count / 100))
    warm = LinearWarmup(9, 0.5).at(count)
    assert warm == pytest.approx(0.5 * min(1.0, (count + 1) / 10))


@pytest.mark.parametrize(
    ("schedule", "theirs", "arguments"),
    [
        (StepDecay(0.5, 3, 0.2), torch.optim.lr_scheduler.StepLR, {"step_size": 3, "gamma": 0.2}),
        (ExponentialDecay(0.5, 0.9), torch.optim.lr_scheduler.ExponentialLR, {"gamma": 0.9}),
        (Cosine(0.5, 20, 0.1), torch.optim.lr_scheduler.CosineAnnealingLR, {"T_max": 20, "eta_min": 0.1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_they_equal_those_of_torch(schedule: Schedule, theirs: Any, arguments: dict[str, Any]) -> None:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = theirs(optimiser, **arguments)
    for count in range(20):
        assert schedule.at(count) == pytest.approx(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()


@given(steps=st.integers(1, 50), count=counts)
def test_what_follows_a_warm_up_begins_when_it_is_over(steps: int, count: int) -> None:
    after = Cosine(0.5, 100)
    schedule = LinearWarmup(steps, after)
    assert schedule.at(steps + count) == after.at(count)
    rates = [schedule.at(n) for n in range(steps + 1)]
    assert rates == sorted(rates) and 0 < rates[0] <= rates[-1] == 0.5


def test_a_cosine_stays_at_its_end() -> None:
    assert [Cosine(1.0, 4, 0.25).at(count) for count in (0, 2, 4, 5, 400)] == [1.0, 0.625, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StepDecay(0, 3), "StepDecay: learning_rate is 0, not a finite number above 0"),
        (lambda: StepDecay(0.1, 0), "StepDecay: every is 0; write a whole number of at least 1"),
        (lambda: StepDecay(0.1, 3, 1.5), "StepDecay: factor is 1.5, not a number above 0 and below 1"),
        (lambda: ExponentialDecay(0.1, 0.0), "ExponentialDecay: factor is 0.0"),
        (lambda: InverseTime(0.1, 2.5), "InverseTime: steps is 2.5; write a whole number"),  # type: ignore[arg-type]
        (lambda: Cosine(0.1, 10, -0.1), "Cosine: end is -0.1, not 0 or a finite number above"),
        (
            lambda: LinearWarmup(3, 0.0),
            "LinearWarmup: then is 0.0, not a finite number above 0 or a schedule",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("written", "schedule"),
    [
        ("step:20", StepDecay(0.1, 20)),
        ("step:20:0.5", StepDecay(0.1, 20, 0.5)),
        ("exponential:100:0.5", ExponentialDecay(0.1, 0.5, 100)),
        ("inverse:100", InverseTime(0.1, 100)),
        ("inverse:100:0.5", InverseTime(0.1, 100, 0.5)),
        ("cosine:100", Cosine(0.1, 100)),
        ("cosine:100:1e-3", Cosine(0.1, 100, 1e-3)),
        ("warmup:5", LinearWarmup(5, 0.1)),
        ("warmup:5,cosine:100", LinearWarmup(5, Cosine(0.1, 100))),
    ],
)
def test_a_schedule_is_read(written: str, schedule: Schedule) -> None:
    assert parse_schedule(written, 0.1) == schedule


@pytest.mark.parametrize(
    "written",
    [
        "",
        "cosine",
        "cosine:",
        "cosine:1.5",
        "cosine:-3",
        "cosine:3:0.1:2",
        "exponential:3",
        "warmup:3:4",
        "warmup:3,",
        "cosine:3,warmup:3",
        "step:3,step:3",
        "linear:3",
        "step:x",
    ],
)
def test_what_is_no_schedule_is_refused_with_what_is(written: str) -> None:
    with pytest.raises(ValueError, match=r"is no schedule; write step:EVERY\[:FACTOR\], "):
        parse_schedule(written, 0.1)


@pytest.mark.parametrize(
    ("name", "settings", "optimizer"),
    [
        ("sgd", {}, SGD(0.05)),
        ("adam", {"clip_norm": 2.0, "momentum": None}, Adam(0.001, clip_norm=2.0)),
        ("adamw", {"learning_rate": 0.1, "weight_decay": 0.0}, AdamW(0.1, weight_decay=0.0)),
        ("rmsprop", {"momentum": 0.5}, RMSProp(0.001, momentum=0.5)),
        ("momentum", {"learning_rate": 1.0, "schedule": "step:3"}, Momentum(StepDecay(1.0, 3))),
        ("lars", {"weight_decay": None}, LARS(0.05)),
    ],
)
def test_an_optimizer_is_made_from_options(name: str, settings: dict[str, Any], optimizer: Optimizer) -> None:
    assert make_optimizer(name, **settings) == optimizer


def test_every_optimizer_has_a_name() -> None:
    assert {type(make_optimizer(name)) for name in OPTIMIZERS} == set(OPTIMIZERS.values())


def test_an_unknown_setting_of_an_optimizer_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"sgd has no momentum; leave it out, or use .*: momentum, rmsprop, l"
    ):
        make_optimizer("sgd", momentum=0.5)
    with pytest.raises(ValueError, match=r"LARS: clip_norm is 1\.0"):
        make_optimizer("lars", clip_norm=1.0)
