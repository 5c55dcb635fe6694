"""Dynamic against periodic averaging on a stream of digits, whose concept changes half-way.

    python -m examples.reproduce.dynamic_averaging            (about two minutes; five seeds)

Ten learners see ten new pictures in each step, and their loss counts before they learn from them: so the sum
of losses is that of online learning. Half-way the labels are permuted. Each driver's own program is played,
all learners in step, and an exchange counts by the formula of its algorithm. Five digits are learned in a
stream of 4,000 steps; ten in one of 30,000, since how much is saved depends on how long nothing is left to be
learned. The deltas, and the length of the stream of ten digits, were chosen on seeds 100 and 101.

Source: Kamp and others, "Efficient decentralized deep learning by dynamic model averaging", 2018, section 5.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from examples.reproduce.two_functions import HIDDEN, first_parameters
from partita.engine import SGD, DynamicAveraging, LocalSGD, ParameterAveraging
from partita.engine.drivers import Driver
from partita.engine.parameters.optimizers import UpdateContext
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Numbers, bytes_sent
from partita.engine.protocol.exchange.algorithm import Phase
from partita.engine.protocol.program_kinds import phase_of
from partita.engine.protocol.replica_messages import View
from partita.engine.protocol.views import JoinedBatches, Member

SEEDS, LEARNERS, BATCH, WINDOWS = range(5), 10, 10, 10
RATE = SGD(0.5)
BASE: dict[str, Any] = {"replicas": LEARNERS, "optimizer": RATE}
FIVE, TEN = "01234", "0123456789"
SHORT, LONG = 4_000, 30_000
"""Steps of a stream."""


@dataclass(frozen=True)
class Unbalanced(DynamicAveraging):
    """The ablation: as soon as one learner violates its condition, all take part."""

    def _balanced(self, members: tuple[int, ...], me: Member) -> Generator[a.Action, Any, tuple[int, ...]]:
        return (yield from super()._balanced(tuple(range(me.replicas)) if members else (), me))


class Stream:
    """Pictures of some digits, drawn at random with their labels, which are permuted from the middle on.

    Attributes:
        steps: its length.
    """

    def __init__(self, digits: str, seed: int, steps: int) -> None:
        self.steps = steps
        found = load_digits()
        chosen = np.isin(found.target, [int(one) for one in digits])
        self._pixels, self._labels = (found.data[chosen] / 16).astype(np.float32), found.target[chosen]
        self._draw = np.random.default_rng([seed, 0])
        self._changed = np.random.default_rng([seed, 1]).permutation(10)

    def at(self, step: int) -> tuple[Any, Any]:
        """Returns pictures `[learner, example, pixel]` and labels `[learner, example]` of the next step."""
        drawn = self._draw.integers(len(self._labels), size=(LEARNERS, BATCH))
        labels = self._labels[drawn]
        return self._pixels[drawn], labels if step < self.steps // 2 else self._changed[labels]


def gradients(parameters: Any, pixels: Any, labels: Any) -> tuple[Any, Any]:
    """Returns each learner's loss `[learner]` and gradient `[learner, parameter]`."""
    ends = np.cumsum([64 * HIDDEN, HIDDEN, HIDDEN * 10])
    first, bias, second, scores = np.split(parameters, ends, axis=1)
    first, second = first.reshape(-1, 64, HIDDEN), second.reshape(-1, HIDDEN, 10)
    hidden = np.maximum(pixels @ first + bias[:, None], 0)
    found = hidden @ second + scores[:, None]
    powers = np.exp(found - found.max(axis=2, keepdims=True))
    error = powers / powers.sum(axis=2, keepdims=True)
    right = np.take_along_axis(error, labels[..., None], axis=2)
    np.put_along_axis(error, labels[..., None], right - 1, axis=2)
    error /= BATCH
    back = (error @ second.transpose(0, 2, 1)) * (hidden > 0)
    of_first, of_second = pixels.transpose(0, 2, 1) @ back, hidden.transpose(0, 2, 1) @ error
    parts = of_first.reshape(LEARNERS, -1), back.sum(1), of_second.reshape(LEARNERS, -1), error.sum(1)
    return -np.log(right[..., 0] + 1e-30).mean(axis=1), np.concatenate(parts, axis=1)


class Learners:
    """All learners at a driver's program, action by action.

    Attributes:
        losses: of each step, the sum over learners.
        n_bytes: sent by all of them in each step.
    """

    def __init__(self, driver: Driver, stream: Stream, seed: int) -> None:
        self._driver, self._stream, self._step = driver, stream, 0
        start = np.concatenate([values.ravel() for values in first_parameters(seed).values()])
        self._vectors: dict[str, Any] = {}
        for name in ("parameters", "gradient", *driver.kept_vectors, *driver.scratch_vectors):
            self._vectors[name] = np.repeat(start[None], LEARNERS, axis=0)
        self.losses, self.n_bytes = np.zeros(stream.steps), np.zeros(stream.steps)

    def play(self) -> None:
        """Plays all steps."""
        examples = self._stream.steps * LEARNERS * BATCH
        view, batches = View(1, (*range(LEARNERS),), 1, 0, 0, examples), JoinedBatches(examples, BATCH)
        programs = [self._driver.replica(Member(rank, 0, view, batches)) for rank in range(LEARNERS)]
        actions = [next(program) for program in programs]
        while actions[0] is not None:
            if combining := [rank for rank, one in enumerate(actions) if isinstance(one, a.Combine)]:
                self._combine(actions, combining)
                for rank in combining:
                    actions[rank] = next(programs[rank], None)
                continue
            result = self._together(actions[0])  # all others have the same action
            actions = [next(one, None) if result is None else one.send(result) for one in programs]

    def _combine(self, actions: list[Any], ranks: list[int]) -> None:
        """Combines vectors of some learners, of all at once where they do the same."""
        first = actions[ranks[0]]
        if len(ranks) == LEARNERS and all(one == first for one in actions):
            self._vectors[first.into][...] = self._combined(first, slice(None))
            return
        for rank in ranks:
            self._vectors[actions[rank].into][rank] = self._combined(actions[rank], rank)

    def _combined(self, action: a.Combine, rows: Any) -> Any:
        """Returns the linear combination of some learners' vectors."""
        return reduce(np.add, (np.float32(f) * self._vectors[name][rows] for name, f in action.terms.items()))

    def _together(self, action: a.Action) -> Any:
        """Carries out an action of all learners; returns its result."""
        if isinstance(action, a.Compute):
            self._step = action.step
            found = gradients(self._vectors["parameters"], *self._stream.at(action.step))
            self.losses[action.step], self._vectors["gradient"] = found[0].sum(), found[1]
        elif isinstance(action, a.Apply):
            parameters, gradient = self._vectors["parameters"].ravel(), self._vectors["gradient"].ravel()
            action.optimizer.bind(parameters, gradient, {})(UpdateContext(self._step))
        elif isinstance(action, a.Dots):
            self._count(action, LEARNERS, Numbers(LEARNERS * len(action.pairs), 8))
            products = (self._vectors[x] * self._vectors[y] for x, y in action.pairs)
            return tuple(zip(*(one.sum(axis=1, dtype=float).tolist() for one in products), strict=True))
        elif isinstance(action, a.AllReduce | a.ReduceScatter | a.AllGather):
            vector = self._vectors[action.vector]
            ranks = [*range(LEARNERS)] if action.among is None else [*action.among]
            self._count(action, len(ranks), Numbers(vector.shape[1]))
            if isinstance(action, a.AllReduce):
                vector[ranks] = vector[ranks].mean(axis=0) if action.mean else vector[ranks].sum(axis=0)
            elif isinstance(action, a.ReduceScatter):
                vector[ranks[action.by.root]] = vector[ranks].sum(axis=0)
            else:
                vector[ranks] = vector[ranks[action.by.root]]
        return None

    def _count(self, action: Any, members: int, numbers: Numbers) -> None:
        self.n_bytes[self._step] += _sent(action.by, phase_of(action), members, numbers)


@cache
def _sent(by: Algorithm, phase: Phase, members: int, numbers: Numbers) -> int:
    """Bytes that all members of an exchange send, by the formula of its algorithm."""
    labels = [f"learner {rank}" for rank in range(members)]
    ranks = range(members if members > 1 else 0)
    return sum(bytes_sent(by, rank, labels, numbers, phase=phase) for rank in ranks)


Rows = dict[str, tuple[float, float, Any, Any]]
"""By the name of a driver: loss, megabytes, and both in each window; means over the seeds."""


def course(driver: Driver, digits: str, steps: int, seed: int) -> tuple[Any, Any]:
    """Returns loss and megabytes of each window of steps."""
    learners = Learners(driver, Stream(digits, seed, steps), seed)
    learners.play()
    losses, sent = learners.losses / LEARNERS, learners.n_bytes / 1e6
    return losses.reshape(WINDOWS, -1).sum(axis=1), sent.reshape(WINDOWS, -1).sum(axis=1)


def table(pool: Executor, drivers: Mapping[str, Driver], digits: str, steps: int) -> Rows:
    """Prints a row for each driver, and returns what it has."""
    found, of = {}, {}
    for name, driver in drivers.items():
        of[name] = [pool.submit(course, driver, digits, steps, seed) for seed in SEEDS]
    for name, courses in of.items():
        losses, bytes_of = np.mean([one.result() for one in courses], axis=0)
        found[name] = loss, sent, *_ = losses.sum(), bytes_of.sum(), losses, bytes_of
        print(f"{name:32} loss {loss:7.1f}   {sent:8.2f} MB", flush=True)
    return found


def fewer(found: Rows, name: str) -> float:
    """Returns how many times the bytes of a row periodic averaging sends at the same loss."""
    rows = sorted(row[:2] for other, row in found.items() if other.startswith("every"))
    assert rows[0][0] <= found[name][0] <= rows[-1][0], "no period has so low, or so high, a loss"
    at = np.interp(found[name][0], [loss for loss, _ in rows], [np.log(sent) for _, sent in rows])
    return float(np.exp(at) / found[name][1])


def compare(
    pool: Executor, digits: str, steps: int, *, periods: Sequence[int], deltas: Sequence[float]
) -> tuple[Rows, float]:
    """Prints periodic and dynamic averaging on a stream; returns the rows, and the least ratio of bytes."""
    print(f"digits {digits}, {steps:,} steps; the labels change half-way")
    periodic = {f"every {n}": LocalSGD(every=n, **BASE) for n in periods}
    dynamic = {f"delta {delta:g}": DynamicAveraging(every=1, delta=delta, **BASE) for delta in deltas}
    found = table(pool, periodic | dynamic, digits, steps)
    ratios = {name: fewer(found, name) for name in dynamic}
    print("periodic averaging sends at the same loss", end=" ")
    print(", ".join(f"{ratio:.1f} times as much as {name}" for name, ratio in ratios.items()))
    return found, min(ratios.values())


def print_windows(found: Rows, names: Sequence[str], steps: int) -> None:
    """Prints loss and bytes of each window of steps."""
    print(f"{steps // WINDOWS:,} steps after {steps // WINDOWS:,} steps")
    for name in names:
        for what, values in zip(("loss", "MB"), found[name][2:], strict=True):
            print(f"{name:10} {what:5}" + "".join(f"{value:7.2f}" for value in values))


def main(pool: Executor) -> None:
    """Prints losses and bytes; ends with an error where dynamic averaging does not send ten times less."""
    found, five = compare(pool, FIVE, SHORT, periods=(1, 2, 5, 20), deltas=(0.3, 1.0))
    print_windows(found, ("every 2", "delta 1"), SHORT)
    loss, sent, losses, bytes_of = found["delta 1"]
    static = max(1, round(found["every 1"][1] / sent))
    ablations = table(
        pool,
        {
            f"as few bytes: every {static}": LocalSGD(every=static, **BASE),
            "one mean at the end": ParameterAveraging(**BASE),
            "delta 1 without balancing": Unbalanced(every=1, delta=1.0, **BASE),
        },
        FIVE,
        SHORT,
    )
    _, short = compare(pool, TEN, SHORT, periods=(1, 2, 5), deltas=(0.3,))
    ten, long = compare(pool, TEN, LONG, periods=(1, 2, 5), deltas=(0.3,))
    print_windows(ten, ("every 1", "every 2", "delta 0.3"), LONG)
    half = WINDOWS // 2
    checks = {
        "five digits: ten times fewer bytes at the same loss": five >= 10,
        "ten digits: ten times fewer bytes at the same loss": long >= 10,
        "and not in a stream that ends while there is much to learn": short < 5,
        "communication rises where the concept changes": bytes_of[half] > 3 * bytes_of[half - 1],
        "and falls back": bytes_of[-1] < bytes_of[half] / 3,
        "the loss recovers": losses[-1] < losses[half] / 10,
        "as few bytes in fixed rounds are worse": all(
            one[0] > 1.1 * loss for one in [*ablations.values()][:2]
        ),
    }
    for name, holds in checks.items():
        print(f"{name}: {'yes' if holds else 'NO'}")
    if not all(checks.values()):
        raise SystemExit("dynamic averaging does not do what it should")


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as workers:
        main(workers)
