"""A run with a log that its test kills: `python -m tests.faults.logged FOLDER LIFE`."""

from __future__ import annotations

import sys
from pathlib import Path

from partita.engine import SGD, Downpour, Log, train
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.oracle import Oracle


def main(folder: Path, life: int, *, sync: str = "disk", checkpoint_every_s: float = 0.7) -> None:
    logs = folder / f"life {life}"
    logs.mkdir()
    Oracle.watching(logs)
    plan = partition(toy.network(), Cluster.local(machines=1), batch=8)
    run = train(
        plan,
        toy.data(),
        driver=Downpour(replicas=2, shards=2, optimizer=SGD(0.05), durability=Log(sync=sync)),  # type: ignore[arg-type]
        epochs=300,
        checkpoints=folder / "runs",
        checkpoint_every_s=checkpoint_every_s,
        resume=life > 0,
    )
    (folder / "steps").write_text(f"{sum(run.steps)} {run.lost_pushes}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), checkpoint_every_s=float(sys.argv[3]))
