"""A session of the digits example's network and its first step, in a process of its own: seconds, as JSON."""

from __future__ import annotations

import json
import time


def main() -> None:
    """Imports, opens, plays one step, and says how long each took."""
    began = time.perf_counter()
    from examples.digits import data, network  # imports are what is measured first
    from partita.engine import Adagrad, Session
    from partita.engine.parameters import initialise
    from partita.partitioner import Cluster, partition

    imported = time.perf_counter()
    training, _ = data()
    batch = {name: array[:32] for name, array in training.items()}
    begun = time.perf_counter()
    plan = partition(network(), Cluster.local(machines=1), batch=32)
    parameters = initialise(plan.graph.parameters.values(), 0)
    with Session(plan, parameters, train=True, optimizer=Adagrad(0.05)) as session:
        opened = time.perf_counter()
        session.step(batch)
        stepped = time.perf_counter()
    seconds = {"imports_s": imported - began, "session_s": opened - begun, "step_s": stepped - opened}
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
