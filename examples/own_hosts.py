"""A pool of workers, as on several machines: each is a process of its own that joined by an authorised key.

    python own_hosts.py        (some seconds)

Here all of it is on this machine and on loopback. On machines of one's own, copy the folder of keys to each,
start `partita worker --join tcp://HOST:PORT --keys keys` there, and give `Pool` an address that they reach.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import numpy as np
from sklearn.datasets import load_digits

from partita.engine import Adagrad, Downpour, Pool, evaluate, train
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

PARTITA = (sys.executable, "-m", "partita.engine.cli")


def network() -> Network:
    """A dense layer over 64 pixels, and a score for each digit."""
    net = Network("digits")
    hidden = Dense(64, activation="relu")(net.input("pixels", shape=64))
    net.loss = SoftmaxCrossEntropy()(Dense(10)(hidden), net.target("digit"))
    return net


def data() -> dict[str, np.ndarray]:
    """Scikit-learn's digits."""
    digits = load_digits()
    return {"pixels": digits.data.astype(np.float32) / 16, "digit": digits.target}


def free_address() -> str:
    """An address on loopback at which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def main(epochs: int = 5) -> None:
    """Makes keys, starts two workers, trains two machines at them, and ends the workers."""
    with tempfile.TemporaryDirectory() as keys, ExitStack() as workers:
        subprocess.run([*PARTITA, "keys", "new", "--keys", keys], check=True, stdout=subprocess.DEVNULL)
        address = free_address()
        for name in ("first", "second"):
            joined = [*PARTITA, "worker", "--join", address, "--keys", keys, "--name", name]
            worker = workers.enter_context(subprocess.Popen([*joined, "--resources", "cpu=2"]))
            workers.callback(worker.terminate)
        plan = partition(network(), Cluster.local(machines=2), batch=32, strategy="balanced")
        pool = Pool(address, keys=keys, workers=2)
        run = train(plan, data(), driver=Downpour(optimizer=Adagrad(0.05)), epochs=epochs, on=pool)
        print(evaluate(run, data()))


if __name__ == "__main__":
    main()
