"""The example in which methods race on a virtual clock: real gradients, times that follow what is assumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from examples.reproduce import figure4
from examples.reproduce.race.clock import Ways
from examples.reproduce.race.contest import Choice, Contest, DownpourSGD, SandblasterLBFGS, Start
from examples.reproduce.race.digits import EXAMPLES, Digits
from examples.reproduce.race.downpour import Downpour
from examples.reproduce.race.machines import Fleet, Times
from examples.reproduce.race.sandblaster import Sandblaster
from examples.reproduce.race.setting import Run, Setting
from partita.engine import LBFGS, SGD, Adagrad
from partita.engine.parameters import Vector
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.runtime.feed import Sampler

COURSE = list[tuple[float, Vector]]


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    with Digits(batch=40) as digits:
        yield Setting(digits, Times(frames=25, pictures=40))


def played(run: Run, *, every_s: float = 1.0, until_s: float = 20.0) -> COURSE:
    """Observations of every poll, from the beginning to the end."""
    seen: COURSE = []

    def look(now: float, point: Vector) -> bool:
        seen.append((now, point.copy()))
        return False

    run.play(look, every_s=every_s, until_s=until_s)
    return seen


def same(left: COURSE, right: COURSE) -> bool:
    """Whether two runs have the same bits."""
    return len(left) == len(right) and all(
        a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(left, right, strict=True)
    )


def plain(setting: Setting, start: Vector, rate: float, steps: int, seed: int) -> Vector:
    """SGD as anybody would write it."""
    point, digits = start.copy(), setting.digits
    sampler = Sampler(examples=EXAMPLES, batch=digits.batch, seed=seed)
    for step in range(steps):
        point -= np.float32(rate) * digits.gradient(point, sampler.indices(step)).gradient
    return point


# Downpour.


def test_a_run_is_its_seeds(setting: Setting) -> None:
    start = setting.digits.start(0)
    one, again, other = (
        played(Downpour(setting, Fleet(1, 3, 2), Adagrad(0.05), start, seed=seed)) for seed in (1, 1, 2)
    )
    assert same(one, again)
    assert not np.array_equal(one[-1][1], other[-1][1])


@pytest.mark.parametrize("shards", [0, 2])
def test_a_replica_that_fetches_nothing_is_plain_sgd(setting: Setting, shards: int) -> None:
    start = setting.digits.start(0)
    run = Downpour(setting, Fleet(1, 1, shards), SGD(0.5), start, seed=3, fetch_every=10**6)
    played(run)
    assert run.steps > 5
    expected = plain(setting, start, 0.5, run.steps, 3)
    np.testing.assert_allclose(run.parts[0].vectors["parameters"], expected, rtol=1e-5, atol=1e-6)


def test_shards_hold_the_start_less_all_gradients_that_were_pushed(setting: Setting) -> None:
    start = setting.digits.start(0)
    run = Downpour(setting, Fleet(1, 2, 2), SGD(0.5), start)
    pushed = [np.zeros_like(start) for _ in run.servers]
    for server, total in zip(run.servers, pushed, strict=True):
        apply = server.updater.apply

        def added(span, pieces, updates, total=total, apply=apply) -> None:  # type: ignore[no-untyped-def]
            for gradient in pieces:
                total[: len(gradient)] += gradient
            apply(span, pieces, updates)

        server.updater.apply = added  # type: ignore[method-assign]
    played(run)
    ranges = [total[: server.updater.store.size] for server, total in zip(run.servers, pushed, strict=True)]
    np.testing.assert_allclose(run.point, start - 0.5 * np.concatenate(ranges), rtol=1e-4, atol=1e-5)
    assert run.staleness > 0
    assert sum(server.machine.version for server in run.servers) >= sum(p.links.pushes for p in run.parts)


# Sandblaster.


def iterations(setting: Setting, fleet: Fleet, *, seed: int = 0) -> Sandblaster:
    """Two of them, and the last evaluation."""
    run = Sandblaster(setting, fleet, LBFGS(max_iterations=2), setting.digits.start(0), seed=seed)
    played(run, every_s=10.0, until_s=5000.0)
    assert run.over
    return run


def points(done: Progress) -> dict[str, float]:
    """The figures of an iteration that do not depend on the fleet."""
    return {name: done.values[name] for name in ("loss", "gradient_norm", "step", "evaluations")}


def test_sandblaster_goes_through_the_same_points_on_any_fleet(setting: Setting) -> None:
    one, *others = (iterations(setting, fleet) for fleet in (Fleet(1, 1, 2), Fleet(1, 5, 2), Fleet(4, 3, 8)))
    first = [points(done) for _, done in one.advances]
    assert len(first) == 2 and first[1]["loss"] < first[0]["loss"]
    for other in others:
        assert [points(done) for _, done in other.advances] == first
        assert np.array_equal(other.point, one.point)
        assert other.advances[-1][0] < one.advances[-1][0]


def test_its_gradient_is_that_of_all_pictures(setting: Setting) -> None:
    start, digits = setting.digits.start(0), setting.digits
    order = np.arange(EXAMPLES).reshape(-1, digits.batch)
    gradient = np.mean([digits.gradient(start, rows).gradient for rows in order], axis=0, dtype=np.float64)
    run = Sandblaster(setting, Fleet(1, 3, 2), LBFGS(max_iterations=1), start)
    played(run, every_s=10.0, until_s=5000.0)
    (_, done) = run.advances[0]
    move = run.point - start  # along the steepest descent, the only direction there is at first
    np.testing.assert_allclose(
        move / np.linalg.norm(move), -gradient / np.linalg.norm(gradient), rtol=1e-3, atol=1e-5
    )
    assert done.values["evaluations"] >= 2


def test_more_replicas_take_less_time_until_the_shards_are_the_limit(setting: Setting) -> None:
    took = [iterations(setting, Fleet(1, n, 2)).advances[-1][0] for n in (1, 4, 16)]
    assert took == sorted(took, reverse=True)
    assert took[0] / took[1] > 2 > took[1] / took[2]  # two shards take in what 4 send, and not what 16 do
    assert iterations(setting, Fleet(1, 16, 32)).advances[-1][0] < 0.7 * took[2]


# The clock.


def test_a_link_carries_one_message_at_a_time() -> None:
    ways = Ways(2, 4, 100.0)
    assert [ways.lane(n) for n in range(4)] == [0, 0, 1, 1]
    first, second = ways.out
    assert first.taken(1.0, 50.0) == (1.0, 1.5)
    assert first.taken(1.0, 50.0) == (1.5, 2.0)
    assert second.taken(1.0, 50.0) == (1.0, 1.5)


def test_a_replica_alone_is_fastest_on_eight_machines(setting: Setting) -> None:
    assert setting.times.best_size(16) == 8
    assert setting.times.best_size(5) == 4


# The contest.


def test_a_choice_is_the_fastest_on_the_pictures_to_learn_from(setting: Setting) -> None:
    contest = Contest(setting, 0.3)
    start = Start(setting.digits.start(0), 0.0, 0)
    method = DownpourSGD("Downpour", (0.05, 1.0))
    choice = contest.chosen(method, 8, start, 1.0)
    assert choice is not None and choice.fleet == Fleet(4, 1, 2)
    took = {
        rate: method.trial_s(contest, Choice(choice.fleet, rate), start, until_s=500) for rate in method.rates
    }
    assert took[choice.rate] == min(took.values()) < max(took.values())


def test_fleets_leave_nobody_out_who_could_help(setting: Setting) -> None:
    times, sandblaster = setting.times, SandblasterLBFGS("L-BFGS")
    assert sandblaster.fleets(1, times) == []
    assert all(fleet.machines <= 64 for fleet in sandblaster.fleets(64, times))
    assert Fleet(1, 48, 16) in sandblaster.fleets(64, times)
    assert DownpourSGD("Downpour").fleets(64, times) == [Fleet(8, 6, 16)]


def drawn(out: Path, *arguments: str) -> str:
    """The words of the picture."""
    figure4.main([*arguments, "--out", str(out)])
    return " ".join(ElementTree.parse(out).getroot().itertext())


def test_the_picture_names_methods_and_axes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = drawn(tmp_path / "figure4.svg", "--machines", "4", "--target", "0.2")
    printed = capsys.readouterr().out
    for expected in ("SGD", "Downpour", "Downpour, Adagrad", "Sandblaster L-BFGS"):
        assert expected in words and expected in printed
    assert "machines, of 20 cores each" in words and "seconds, simulated" in words and "20%" in words
    assert "(3 x 1 + 1)" in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_distributed_methods_gain_from_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn(tmp_path / "figure4.svg", "--machines", "8,32,128")
    rows = [line.split(" s (")[:-1] for line in capsys.readouterr().out.splitlines() if " s (" in line]
    times = np.array([[float(cell.split()[-1].replace(",", "")) for cell in row] for row in rows])
    assert times.shape == (3, 4)
    assert (np.diff(times[:, 1:], axis=0) < 0).sum() >= 5  # of 6: rates come from a coarse grid
    assert (np.diff(times[:, 3]) < 0).all()
    assert (times[-1, 1:] < times[-1, 0]).all()
