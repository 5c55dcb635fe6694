"""Early exits over devices, an edge and a cloud: digits seen by four devices, as DDNN has it.

    python -m examples.reproduce.ddnn            (two minutes or three; SEEDS, 5 if not given, as an argument)

Each device sees every digit through noise of its own, and with a part of it covered. It computes a few
features and scores; a gateway takes the largest scores of all devices, and ends what it is certain of. For
the rest, devices send their features to the cloud. The program prints, for several thresholds, the share of
examples that ended locally, the accuracy, and the bytes that a device sent for an example, measured and by
the formula 4 C + (1 - l) f o / 8: 4 bytes for each of C scores, and for the share 1 - l that goes on, f
features of o bits (here 32). Source: Teerapittayanon, McDanel and Kung 2017, sections III and IV.
"""

from __future__ import annotations

import sys
from statistics import fmean, stdev

import numpy as np
from sklearn.datasets import load_digits

from partita.engine import Adam, AllReduce, ExitPredictions, Run, choose_thresholds, predict_with_exits, train
from partita.layers import Concatenate, Conv2D, Dense, Maximum, MaxPool2D, Network
from partita.partitioner import Cluster, Machine, Plan, Whole, partition

DEVICES, CLASSES, FEATURES, BATCH = 4, 10, 3 * 3 * 4, 20
THRESHOLDS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
Data = dict[str, np.ndarray]


def network(*, local_weight: float = 1.0) -> Network:
    """Filters and scores on each device, a local exit at the gateway, and one in the cloud."""
    net, features, scores = Network("ddnn"), [], []
    for k in range(DEVICES):
        view = net.input(f"view{k}", shape=(8, 8, 1))
        maps = Conv2D(4, 3, activation="relu", name=f"conv{k}")(view)
        features.append(MaxPool2D(2, stride=2, name=f"features{k}")(maps))
        scores.append(Dense(CLASSES, name=f"scores{k}")(features[-1]))
    net.exit(Maximum(name="largest")(*scores), weight=local_weight, threshold=0.5, name="local")
    hidden = Dense(64, activation="relu", name="hidden")(Concatenate(name="joined")(*features))
    net.exit(Dense(CLASSES, name="cloud_scores")(hidden), name="cloud")
    return net


def placed(net: Network) -> Plan:
    """Each device with its own layers, a gateway that joins their scores, and a cloud."""
    cuts = {f"{layer}{k}": Whole(k) for layer in ("conv", "features", "scores") for k in range(DEVICES)}
    cuts |= {"largest": Whole(DEVICES), "local": Whole(DEVICES)}
    of_cloud = ("joined", "hidden", "cloud_scores", "cloud")
    cuts |= {layer: Whole(DEVICES + 1) for layer in of_cloud}
    names = [*(f"device{k}" for k in range(DEVICES)), "gateway", "cloud"]
    return partition(net, Cluster(tuple(map(Machine, names))), batch=BATCH, cuts=cuts)


def data(seed: int) -> tuple[Data, Data, Data]:
    """To train on, to choose thresholds on, and to test on: 1,077, 360 and 360 examples."""
    digits, draw = load_digits(), np.random.default_rng(seed)
    order = draw.permutation(len(digits.target))
    pictures, found = digits.images[order, :, :, None] / 16, {}
    for k in range(DEVICES):
        view = pictures + draw.normal(0, 0.15, pictures.shape)
        corners = draw.integers(0, 6, (len(view), 2))
        for one, (top, left) in zip(view, corners, strict=True):
            one[top : top + 3, left : left + 3] = 0
        found[f"view{k}"] = view.astype(np.float32)
    found["label"] = digits.target[order]
    parts = (slice(720, None), slice(360, 720), slice(360))
    first, second, third = ({name: array[part] for name, array in found.items()} for part in parts)
    return first, second, third


def trained(training: Data, seed: int, *, local_weight: float = 1.0) -> Run:
    """Trains on one machine; the parameters are those of every plan."""
    plan = partition(network(local_weight=local_weight), Cluster.local(), batch=32)
    driver = AllReduce(optimizer=Adam(0.005))
    run = train(plan, training, driver=driver, epochs=20, seed=seed, show="nothing")
    return Run(placed(network()), run.parameters)


def predicted(run: Run, views: Data, threshold: float, **settings: object) -> ExitPredictions:
    """Predictions whose local exit has a threshold."""
    given = {name: array for name, array in views.items() if name != "label"}
    return predict_with_exits(run, given, thresholds={"local": threshold}, show="nothing", **settings)


def by_formula(found: ExitPredictions) -> float:
    """Bytes of a device for an example; those that go on are sent in whole batches."""
    n = len(found.exit)
    onward = -(-int((found.exit > 0).sum()) // BATCH) * BATCH / n
    return 4 * CLASSES + onward * FEATURES * 32 / 8


def shown(values: list[float], digits: int = 3) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):.{digits}f} ± {stdev(values) if len(values) > 1 else 0:.{digits}f}"


def main() -> None:
    """Trains for each seed, and prints the tables."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    parts = [data(seed) for seed in seeds]
    joint = [trained(part[0], seed) for seed, part in zip(seeds, parts, strict=True)]
    print("threshold  ended locally  accuracy       bytes of a device for an example: measured, formula")
    for threshold in THRESHOLDS:
        found = [predicted(run, part[2], threshold) for run, part in zip(joint, parts, strict=True)]
        accuracy = [one.accuracy(part[2]["label"]) for one, part in zip(found, parts, strict=True)]
        measured = [one.sent_bytes("device0") / len(one.exit) for one in found]
        formula = [by_formula(one) for one in found]
        shares = [one.shares["local"] for one in found]
        sent = f"{fmean(measured):.1f} {fmean(formula):.1f}"
        print(f"{threshold:9.1f}  {shown(shares)}  {shown(accuracy)}  {sent}")
        if measured != formula:
            raise SystemExit("the bytes that were sent are not those of the formula")
    report(joint, parts)


def report(joint: list[Run], parts: list[tuple[Data, Data, Data]]) -> None:
    """Prints chosen thresholds, a lost device, and what separate training does to the local exit."""
    chosen, shares, lost, local, apart = [], [], [], [], []
    for seed, (run, (training, held_out, test)) in enumerate(zip(joint, parts, strict=True)):
        views = {name: array for name, array in held_out.items() if name != "label"}
        found = choose_thresholds(run, views, held_out["label"], shares={"local": 0.6}, show="nothing")
        ended = predicted(run, test, found["local"])
        chosen.append(ended.accuracy(test["label"]))
        shares.append(ended.shares["local"])
        others = predicted(run, test, found["local"], without=["device0"])
        lost.append(others.accuracy(test["label"]))
        local.append(predicted(run, test, 1.0).accuracy(test["label"]))
        last = trained(training, seed, local_weight=0.0)
        apart.append(predicted(last, test, 1.0).accuracy(test["label"]))
    raw = 8 * 8 * 4
    print(
        f"a threshold for 60%, chosen on held-out examples: {shown(shares)} end locally, "
        f"accuracy {shown(chosen)}"
    )
    print(f"the same without device 0: accuracy {shown(lost)}; a device's picture has {raw} bytes")
    print(f"all end locally: accuracy {shown(local)}; local exit not trained (weight 0): {shown(apart)}")
    if fmean(local) < fmean(apart) + 0.5:
        raise SystemExit("an exit that is not trained should not know the digits")


if __name__ == "__main__":
    main()
