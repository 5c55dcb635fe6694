"""Plays layers on a picture, each network in a process of its own, and compares states with NumPy in float64.

    python -m tests.truth.pictures LOG local:relu conv:linear local:relu+conv:linear

writes down in a file what it compiles (see `symbols`), and plays three networks one after another; the last
has two layers, which share their input. Only the public face is used, and the processes share what they
compile by the user's cache alone. Prints where the engine lies.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita import engine
from partita.engine import Session
from partita.layers import Conv2D, LocallyConnected2D, Network
from partita.partitioner import Cluster, partition
from tests.truth.symbols import record

Array = npt.NDArray[Any]

BATCH: Final = 16
KERNEL: Final = 3
LAYERS: Final = {"local": LocallyConnected2D, "conv": Conv2D}
FUNCTIONS: Final = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def main() -> None:
    """Forks a process for each network, before anything is compiled here, and waits for it."""
    record(Path(sys.argv[1]))
    print(engine.__file__, flush=True)
    for names in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                check(names.split("+"))
                code = 0
            except BaseException:  # noqa: BLE001 - printed, as Python does at the end of a process
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{names} is wrong")


def check(names: list[str]) -> None:
    """Plays a network of these layers side by side."""
    net = Network("pictures")
    image = net.input("image", shape=(6, 5, 2))
    for name in names:
        kind, function = name.split(":")
        LAYERS[kind](4, KERNEL, activation=function, name=f"{kind}_{function}")(image)
    plan = partition(net, Cluster.local(machines=1), batch=BATCH)
    draw = np.random.default_rng(0)
    parameters = {name: draw.normal(size=p.shape) for name, p in plan.graph.parameters.items()}
    batch = {"image": draw.normal(size=(BATCH, 6, 5, 2))}
    called = tuple(name.replace(":", "_") for name in names)
    with Session(plan, parameters, hosts="inline") as session:
        states = session.step(batch, collect=called).collected
    for name in called:
        kind, function = name.split("_")
        sums = true_sums(kind, batch["image"], parameters[f"{name}.weight"])
        expected = FUNCTIONS[function](sums + parameters[f"{name}.bias"][..., None])
        np.testing.assert_allclose(states[name], expected, rtol=0, atol=1e-4, err_msg=name)


def true_sums(kind: str, image: Array, weight: Array) -> Array:
    """Weighted sums of patches `[height, width, filter, example]`, in float64."""
    patches = np.lib.stride_tricks.sliding_window_view(image, (KERNEL, KERNEL), (1, 2))
    of_each = "hw" if kind == "local" else ""
    kernels = weight.reshape(*weight.shape[: len(of_each) + 1], KERNEL, KERNEL, -1)
    return np.einsum(f"{of_each}fyxc,bhwcyx->hwfb", kernels, patches)


if __name__ == "__main__":
    main()
