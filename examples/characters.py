"""A recurrent network learns a text by heart, a character at a time, with a layer on each of two machines.

    python -m examples.characters          or: partita train examples/characters.py --machines 2

The text is "The Zen of Python", which Python has in its module `this`. The command prints the layers and
where they are, trains for about a quarter of a minute, and ends with what the network writes by itself:

    Beautiful is better than ugly. Explicit is better than implicit. ...
"""

from __future__ import annotations

import codecs
import contextlib
import io

import numpy as np

from partita.engine import Adam, AllReduce, Run, Session, train
from partita.layers import GRU, LSTM, Embedding, Linear, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, Whole, partition

with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = " ".join(codecs.decode(this.s, "rot13").split())
CHARACTERS = sorted(set(TEXT))
LENGTH = 24
BEGINNING = "The Zen of Python, by Tim Peters "


def network() -> Network:
    """Two recurrent layers over a window of characters, and scores for the character after each."""
    net = Network("characters")
    window = net.input("window", shape=LENGTH, classes=len(CHARACTERS))
    embedded = Embedding(len(CHARACTERS), 16, initialiser="he", name="table")(window)
    first = LSTM(96, return_sequences=True, name="first")(embedded)
    second = GRU(96, return_sequences=True, name="second")(first)
    scores = Linear(len(CHARACTERS), name="scores")(second)
    net.loss = SoftmaxCrossEntropy(name="loss")(scores, net.target("following"))
    return net


def data() -> dict[str, np.ndarray]:
    """Every window of the text, and the characters that follow those in it."""
    numbers = np.array([CHARACTERS.index(character) for character in TEXT])
    windows = np.lib.stride_tricks.sliding_window_view(numbers, LENGTH + 1)
    return {"window": windows[:, :-1].copy(), "following": windows[:, 1:].copy()}


def two_machines() -> Plan:
    """A recurrent layer stays whole: one on each machine, which overlap by micro-batches."""
    cuts = {name: Whole(0) for name in ("table", "first")}
    cuts |= {name: Whole(1) for name in ("second", "scores", "loss")}
    return partition(network(), Cluster.local(machines=2), batch=64, cuts=cuts, micro_batches=2)


def written(run: Run, length: int = 120) -> str:
    """What the network writes after the beginning: at each place the character with the largest score."""
    plan, text = partition(network(), Cluster.local(), batch=1), BEGINNING
    with Session(plan, run.parameters, train=False, hosts="inline") as session:
        for _ in range(length):
            window = np.array([[CHARACTERS.index(character) for character in text[-LENGTH:]]])
            batch = {"window": window, "following": np.zeros_like(window)}
            scores = session.step(batch, collect=("scores",)).collected["scores"]
            text += CHARACTERS[int(scores[-1, :, 0].argmax())]
    return text[len(BEGINNING) :]


def main() -> None:
    """Cuts, trains, and lets the network write."""
    plan = two_machines()
    print(plan.summary().text(width=100))
    run = train(plan, data(), driver=AllReduce(optimizer=Adam(0.004)), epochs=25)
    found = written(run)
    print(f"\nit writes: {found}")
    if not TEXT.removeprefix(BEGINNING).startswith(found[:60]):
        raise SystemExit("that is not the text that it was to learn")


if __name__ == "__main__":
    main()
