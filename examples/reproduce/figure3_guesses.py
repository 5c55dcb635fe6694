"""Sensitivity of the simulated Figure 3 to each number that `figure3.py`, beside this file, assumes: halved
and doubled.

    python -m examples.reproduce.figure3_guesses            (some minutes; trains nothing)

prints the speed-ups of the same four networks, without variance.
"""

from __future__ import annotations

from dataclasses import replace

from examples.reproduce.figure3 import Assumed, image, plan_of, speech
from partita.partitioner import Plan

FEW = (1, 2, 4, 8, 16, 32, 81)
"""Numbers of machines among which the speech network's highest speed-up is found."""
GUESSES = {
    "a core's arithmetic": "core_flops_per_s",
    "memory's bandwidth": "memory_bytes_per_s",
    "an instruction's overhead": "instruction_s",
    "a link's latency": "latency_s",
    "a link's bandwidth": "link_bytes_per_s",
    "a message's overhead": "message_s",
    "packing": "packing_bytes_per_s",
}
Plans = dict[tuple[int, int], Plan]


def main() -> None:
    """Plans once for each minibatch, and plays the same programs on other machines and links."""
    print("                                 speech                  images at 81")
    print("                                 highest  at  then at 81    98M    338M  1,564M", flush=True)
    assumed = Assumed()
    plans = planned(assumed)
    show("as assumed", plans, assumed)
    for words, field in GUESSES.items():
        for factor in (0.5, 2):
            changed = replace(assumed, **{field: getattr(assumed, field) * factor})
            show(f"{words} x {factor}", plans, changed)
    show("no cores for messages alone", plans, replace(assumed, spare_cores=0))
    for batch in (50, 200):
        changed = replace(assumed, batch=batch)
        show(f"{batch} examples in a minibatch", planned(changed), changed)


def planned(assumed: Assumed) -> Plans:
    """A plan for each network and number of machines."""
    images = {(filters, n): plan_of(image(filters), n, assumed) for filters in (8, 16, 36) for n in (1, 81)}
    found = {(0, n): plan_of(speech(), n, assumed) for n in FEW} | images
    assert all(plan.programs for plan in found.values())  # made here, once, for every cluster
    return found


def show(words: str, plans: Plans, assumed: Assumed) -> None:
    """A row of the table."""
    steps = {key: plan.on(assumed.cluster(key[1])).predicted_step_s for key, plan in plans.items()}
    ups = {(network, n): steps[network, 1] / step for (network, n), step in steps.items()}
    peak = max(FEW, key=lambda n: ups[0, n])
    images = "".join(f"{ups[filters, 81]:7.1f}x" for filters in (8, 16, 36))
    print(f"{words:32} {ups[0, peak]:6.2f}x {peak:3} {ups[0, 81]:10.2f}x{images}", flush=True)


if __name__ == "__main__":
    main()
