"""A training of the digits on a pool, as a program.

Arguments: POOL DRIVER FOLDER WORKERS [resume] [LENGTH]; LENGTH is the number of epochs or iterations. A line
is printed for each record of the metrics, with its time, so that a test sees how long a fault lasts.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from examples.digits import data, network
from partita.engine import SGD, AllReduce, Downpour, GradientDescent, Pool, Sandblaster, evaluate, train
from partita.engine.run.metrics import Record
from partita.partitioner import Cluster, partition

LENGTHS = {"downpour": 120, "all-reduce": 60, "sandblaster": 100}


def main() -> None:
    """Trains, saves, and prints the accuracy and a digest of the parameters."""
    pool, name, folder, workers, *rest = sys.argv[1:]
    length = int(rest[-1]) if rest and rest[-1].isdigit() else LENGTHS[name]
    drivers: dict[str, Any] = {
        "downpour": Downpour(replicas=2, shards=2, optimizer=SGD(0.1)),
        "all-reduce": AllReduce(replicas=2, optimizer=SGD(0.1)),
        "sandblaster": Sandblaster(
            method=GradientDescent(gtol=0.0, ftol=0.0, max_iterations=length), replicas=2, shards=2
        ),
    }
    plan = partition(network(), Cluster.local(machines=2), batch=32, strategy="balanced")
    training, held_out = data()
    run = train(
        plan,
        training,
        driver=drivers[name],
        epochs=None if name == "sandblaster" else length,
        checkpoints=folder,
        checkpoint_every_s=2.0,
        resume="resume" in rest,
        show="lines",
        on=Pool(pool, keys="/tmp/keys", workers=int(workers)),
        on_record=shown,
    )
    digest = hashlib.sha256(b"".join(values.tobytes() for _, values in sorted(run.parameters.items())))
    print(f"bits {digest.hexdigest()[:16]}", flush=True)
    print(f"saved {run.save(Path(folder) / 'saved.safetensors')}", flush=True)
    print(f"accuracy {evaluate(run, held_out).accuracy:.3f}", flush=True)


def shown(record: Record) -> None:
    """Prints a record: time, replica, step."""
    print(f"record {time.monotonic():.3f} {record.replica} {record.step}", flush=True)


if __name__ == "__main__":
    main()
