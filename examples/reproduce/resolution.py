"""Training by increasing resolution: digits of 8, 16 and 32 pixels, against 32 pixels from the start.

    python -m examples.reproduce.resolution [SEEDS]    (two processes, two minutes; 5 seeds if not given)

Scikit-learn's digits are turned, sheared, scaled and moved, and seen through noise, at 32 x 32 pixels.
Smaller pictures are their means over equal squares. Three layers of filters with batch normalisation are
pooled over all places, so that the parameters are the same at each resolution. The learning rate falls along
half a cosine wave at full resolution, whether smaller pictures came before or not.

Since the rate falls to 0 at the end of a run, a point of a curve of accuracy over time is a run of its own.
Each seed is trained by resolution for three lengths of time, at 32 pixels alone for three, and, as an
ablation, by resolution with parameters that are drawn anew in each phase. The phases were chosen from
five on seed 100; the best three also on seed 101.
The time to an accuracy is read from the curve of the means over seeds, along straight lines between runs: so
both are compared at exactly the same accuracy. Seconds are of processor time, without evaluations.

A picture is drawn. The program ends with an error where training by resolution is not faster to an accuracy,
with all seeds or without any one of them, or where the ablation is as accurate.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy.ndimage import affine_transform, zoom
from sklearn.datasets import load_digits

from partita.engine import Adam, Cosine, LinearWarmup, Run, Session, evaluate, shrink_pictures
from partita.engine.view.curves import Curve, Panel, draw_curves
from partita.layers import (
    Activation,
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Plan, partition

FULL, BATCH, RATE = 32, 64, 0.01
TRAINED, HELD_OUT = 3_000, 1_000
Phases = dict[int, int]
"""Epochs at each resolution, one after the other."""
BY_RESOLUTION: Sequence[Phases] = ({8: 2, 16: 4, FULL: 3}, {8: 4, 16: 8, FULL: 5}, {8: 6, 16: 12, FULL: 7})
AT_ONCE: Sequence[Phases] = ({FULL: 4}, {FULL: 7}, {FULL: 12})
NOT_CARRIED = BY_RESOLUTION[1]
ACCURACIES = (0.90, 0.91, 0.915)
PICTURE = Path("docs/pictures/resolution.svg")


class Pictures(NamedTuple):
    """Pictures `[example, 32, 32, 1]` and labels, to train on and held out."""

    training: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray


class Result(NamedTuple):
    """Processor seconds of all steps, and the accuracy on held-out pictures of 32 pixels."""

    seconds: float
    accuracy: float

    def __str__(self) -> str:
        return f"{self.seconds:10.1f} s {self.accuracy:5.3f}"


def moved(images: np.ndarray, count: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws pictures of digits that are turned, sheared, scaled, moved and noisy.

    Args:
        images: `[image, 64, 64]`, with the digit in the 32 x 32 pixels of the middle.
        count: pictures to draw.
        draw: random numbers.

    Returns:
        `[count, 32, 32, 1]`, and the numbers of their images.
    """
    chosen, found = draw.integers(0, len(images), count), np.empty((count, FULL, FULL), np.float32)
    for one, image in zip(found, images[chosen], strict=True):
        angle, shear = draw.uniform(-0.3, 0.3), draw.uniform(-0.2, 0.2)
        turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        to_image = np.array([[1, 0], [shear, 1]]) @ turned / np.exp(draw.uniform(-1.05, -0.22))
        middle = (FULL - 1) / 2 + draw.uniform(-5, 5, 2)
        affine_transform(image, to_image, 31.5 - to_image @ middle, one.shape, one, order=1)
    return (found + draw.normal(0, 0.1, found.shape).astype(np.float32))[..., None], chosen


def digits(seed: int) -> Pictures:
    """Pictures of scikit-learn's digits; those of a fifth of the digits are held out."""
    found, draw = load_digits(), np.random.default_rng(seed)
    order = draw.permutation(len(found.target))
    images = np.pad(zoom(found.images[order] / 16, (1, 4, 4), order=3), ((0, 0), (16, 16), (16, 16)))
    images, labels, fifth = images.astype(np.float32), found.target[order], len(order) // 5
    training, chosen = moved(images[fifth:], TRAINED, draw)
    held_out, others = moved(images[:fifth], HELD_OUT, draw)
    return Pictures(training, labels[fifth:][chosen], held_out, labels[:fifth][others])


def plan(size: int) -> Plan:
    """Three layers of filters, and the means of the last one's maps over all places."""
    net = Network("sizes")
    maps = net.input("picture", shape=(size, size, 1))
    for number, filters in enumerate((16, 24, 32), 1):
        maps = Conv2D(filters, 3, padding="same", name=f"filters{number}")(maps)
        maps = Activation("relu", name=f"active{number}")(BatchNorm(name=f"normal{number}")(maps))
        if number < 3:
            maps = MaxPool2D(2, name=f"pool{number}")(maps)
    scores = Dense(10, name="scores")(GlobalAveragePool(name="pooled")(maps))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("label"))
    return partition(net, Cluster.local(), batch=BATCH)


def optimizer(size: int, epochs: int, *, first: bool) -> Adam:
    """Adam, whose learning rate rises in the first epoch of all, and falls at full resolution."""
    steps, warm = TRAINED // BATCH * epochs, TRAINED // BATCH if first else 0
    rate = Cosine(RATE, steps - warm) if size == FULL else RATE
    return Adam(LinearWarmup(warm, rate) if first else rate)


def trained(pictures: Pictures, phases: Phases, seed: int, *, carried: bool = True) -> Result:
    """Trains in phases.

    Args:
        pictures: the data.
        phases: epochs by resolution; the last one is full.
        seed: of the first parameters, and of the order.
        carried: whether a phase begins with the parameters of the one before; drawn anew if not.
    """
    draw, seconds, parameters = np.random.default_rng(seed), 0.0, seed
    for size, epochs in phases.items():
        one, training = plan(size), shrink_pictures(pictures.training, size)
        learning, start = optimizer(size, epochs, first=size == min(phases)), parameters if carried else seed
        with Session(one, start, train=True, optimizer=learning, hosts="inline") as session:
            for _ in range(epochs):
                order, began = draw.permutation(TRAINED), time.process_time()
                for first in range(0, TRAINED - BATCH + 1, BATCH):
                    some = order[first : first + BATCH]
                    collect = ("parameters",) if first + 2 * BATCH > TRAINED else ()
                    batch = {"picture": training[some], "label": pictures.labels[some]}
                    step = session.step(batch, collect=collect)
                seconds += time.process_time() - began
        parameters = step.vectors["parameters"]
    held_out = {"picture": pictures.held_out, "label": pictures.held_out_labels}
    found = evaluate(Run(one, parameters), held_out, hosts="inline", show="nothing")
    assert found.accuracy is not None
    return Result(seconds, found.accuracy)


class Found(NamedTuple):
    """The results of a seed, by length; and that of the ablation."""

    by_resolution: tuple[Result, ...]
    at_once: tuple[Result, ...]
    not_carried: Result


def found(seed: int) -> Found:
    """Trains a seed in all ways."""
    pictures = digits(seed)
    trained(pictures, dict.fromkeys(BY_RESOLUTION[0], 1), seed)  # compiles
    pairs = [
        (trained(pictures, phases, seed), trained(pictures, control, seed))
        for phases, control in zip(BY_RESOLUTION, AT_ONCE, strict=True)
    ]
    by_resolution, at_once = zip(*pairs, strict=True)
    return Found(by_resolution, at_once, trained(pictures, NOT_CARRIED, seed, carried=False))


def means(curves: Sequence[Sequence[Result]]) -> list[Result]:
    """Returns the curve of the means over seeds."""
    return [
        Result(fmean(one.seconds for one in runs), fmean(one.accuracy for one in runs))
        for runs in zip(*curves, strict=True)
    ]


def reached_s(curve: Sequence[Result], accuracy: float) -> float | None:
    """Returns when a curve comes to an accuracy, along straight lines; None: not between its runs."""
    for one, other in pairwise(curve):
        if one.accuracy <= accuracy <= other.accuracy:
            share = (accuracy - one.accuracy) / (other.accuracy - one.accuracy)
            return one.seconds + share * (other.seconds - one.seconds)
    return None


def gains(results: Sequence[Found]) -> dict[float, tuple[float, float]]:
    """Returns the seconds to each accuracy that both come to: by resolution, and at full resolution."""
    of_both = {}
    for accuracy in ACCURACIES:
        times = [
            reached_s(means([getattr(one, way) for one in results]), accuracy) for way in Found._fields[:2]
        ]
        if times[0] is not None and times[1] is not None:
            of_both[accuracy] = times[0], times[1]
    return of_both


def print_runs(results: Sequence[Found]) -> None:
    """Prints each length with its mean, and the accuracies of all seeds."""
    rows = [*zip(BY_RESOLUTION, zip(*(one.by_resolution for one in results), strict=True), strict=True)]
    rows += zip(AT_ONCE, zip(*(one.at_once for one in results), strict=True), strict=True)
    rows.append((NOT_CARRIED, tuple(one.not_carried for one in results)))
    for n, (phases, runs) in enumerate(rows, 1):
        epochs = " + ".join(f"{count} at {size}" for size, count in phases.items())
        epochs += ", drawn anew" if n == len(rows) else ""
        seconds, accuracy = (fmean(column) for column in zip(*runs, strict=True))
        each = " ".join(f"{one.accuracy:.3f}" for one in runs)
        print(f"{epochs:38}{seconds:6.1f} s  {accuracy:.3f}  {each}")


def check(results: Sequence[Found]) -> None:
    """Prints the seconds to each accuracy; raises SystemExit where a claim does not hold."""
    times, without = gains(results), [gains([*results[:n], *results[n + 1 :]]) for n in range(len(results))]
    print("accuracy   by resolution   at 32 pixels   times as long   without any one seed")
    for accuracy, (fast, slow) in times.items():
        ratios = sorted(one[accuracy][1] / one[accuracy][0] for one in without if accuracy in one)
        least, most = ratios[0], ratios[-1]
        print(f"{accuracy:8.3f}{fast:14.1f} s{slow:13.1f} s{slow / fast:16.2f}{least:15.2f} to {most:.2f}")
        if least <= 1:
            raise SystemExit("training by resolution is not faster to an accuracy")
    if len(times) < len(ACCURACIES):
        raise SystemExit(f"both should come to {ACCURACIES}, and come to {(*times,)}")
    carried = fmean(one.by_resolution[BY_RESOLUTION.index(NOT_CARRIED)].accuracy for one in results)
    if fmean(one.not_carried.accuracy for one in results) >= carried - 0.01:
        raise SystemExit("parameters that are drawn anew in each phase are as accurate, and should not be")


def draw(results: Sequence[Found]) -> None:
    """Draws both curves."""
    ways = (("by resolution", "by_resolution"), ("32 pixels from the start", "at_once"))
    runs = [(name, means([getattr(of, way) for of in results])) for name, way in ways]
    curves = [Curve(name, tuple((one.seconds, 1 - one.accuracy) for one in of)) for name, of in runs]
    axes, ticks = ("processor seconds", f"error at {FULL} pixels"), (0, 2, 4, 6, 8, 10, 12)
    title, about = "Error over time, by increasing resolution", f"digits · mean of {len(results)} seeds"
    PICTURE.write_text(draw_curves(title, about, [Panel(tuple(curves), axes, ticks)]), "utf-8")
    print(f"drawn: {PICTURE}")


def main() -> None:
    """Trains all seeds in all ways, prints the tables, and draws."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        results = [*pool.map(found, range(seeds))]
    print_runs(results)
    draw(results)
    check(results)


if __name__ == "__main__":
    main()
