"""Training by increasing resolution: digits of 8, 16 and 32 pixels, against 32 pixels from the start.

    python -m examples.reproduce.resolution [SEEDS]        (three minutes; 5 seeds if not given)

Scikit-learn's digits are turned, sheared, scaled and moved, and seen through noise, at 32 x 32 pixels.
Smaller pictures are their means over equal squares. Three layers of filters with batch normalisation are
pooled over all places, so that the parameters are the same at each resolution. The learning rate falls along
half a cosine wave at full resolution, whether smaller pictures came before or not.

Each seed is trained in four ways: by resolution; at 32 pixels alone, as long as that takes to be as accurate;
at 32 pixels alone for as many epochs as the time of the first allows; and, as an ablation, by resolution with
parameters that are drawn anew in each phase. Seconds are of processor time, without evaluations. The program
ends with an error where training by resolution is not as accurate as the control, or not faster, or where one
of the two others is as accurate.
"""

from __future__ import annotations

import sys
import time
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.ndimage import affine_transform, zoom
from sklearn.datasets import load_digits

from partita.engine import Adam, Cosine, LinearWarmup, Run, Session, evaluate, shrink_pictures
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
PHASES = {8: 4, 16: 8, FULL: 5}
"""Epochs at each resolution."""
CONTROL, SAME_TIME = {FULL: 12}, {FULL: 7}
TOLERANCE = 0.01
"""Difference of mean accuracies up to which two ways of training count as equally accurate."""


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


def trained(pictures: Pictures, phases: dict[int, int], seed: int, *, carried: bool = True) -> Result:
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


def mean(results: list[Result]) -> Result:
    """Means over the seeds."""
    return Result(fmean(one.seconds for one in results), fmean(one.accuracy for one in results))


def check(results: dict[str, list[Result]]) -> None:
    """Raises SystemExit where a claim does not hold in the means over the seeds."""
    means = {name: mean(found) for name, found in results.items()}
    staged, control = means["by resolution"], means["control"]
    if staged.accuracy < control.accuracy - TOLERANCE or staged.seconds >= control.seconds:
        raise SystemExit("training by resolution is less accurate than the control, or not faster")
    for name, less in (("same time", 0.0), ("not carried", TOLERANCE)):
        if means[name].accuracy >= staged.accuracy - less:
            raise SystemExit(f"'{name}' is as accurate as training by resolution, and should not be")


def main() -> None:
    """Trains in all ways for each seed, in turn, and prints the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ways = {"by resolution": PHASES, "control": CONTROL, "same time": SAME_TIME, "not carried": PHASES}
    trained(digits(0), dict.fromkeys(PHASES, 1), 0)  # compiles
    print(f"processor seconds, and accuracy at {FULL} pixels")
    print("seed" + "".join(f"{name:>18}" for name in ways) + "   control / by resolution")
    results: dict[str, list[Result]] = {name: [] for name in ways}
    for seed in range(seeds):
        pictures = digits(seed)
        for name, phases in ways.items():
            results[name].append(trained(pictures, phases, seed, carried=name != "not carried"))
        row = "".join(str(found[-1]) for found in results.values())
        ratio = results["control"][-1].seconds / results["by resolution"][-1].seconds
        print(f"{seed:4}{row}   {ratio:.2f}", flush=True)
    means = "".join(str(mean(found)) for found in results.values())
    ratios = [
        slow.seconds / fast.seconds
        for slow, fast in zip(results["control"], results["by resolution"], strict=True)
    ]
    print(f"mean{means}   {fmean(ratios):.2f} ± {stdev(ratios) if seeds > 1 else 0.0:.2f}")
    check(results)


if __name__ == "__main__":
    main()
