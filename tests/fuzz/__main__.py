"""`python -m tests.fuzz`: feeds frames to everything that reads what others send, and prints what came of it.

Ends with an error if anything is uncaught, does not return within a minute, takes no right message any more,
or takes more and more memory. A failure names its target and seed, from which it can be played again.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable
from random import Random
from typing import Annotated, Final

import psutil
from typer import Option, Typer

from tests.fuzz.listeners import (
    MemberAtMailbox,
    StrangersAtMailbox,
    StrangersAtRendezvous,
    StrangersAtStream,
    VisitorsAtPool,
)
from tests.fuzz.machines import Coordinators, Hosts
from tests.fuzz.readers import Decoders, Member, Registry, Stream, Target

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "decoders": Decoders,
    "member": Member,
    "hosts": Hosts,
    "coordinators": Coordinators,
    "stream": Stream,
    "registry": Registry,
    "strangers-at-mailbox": StrangersAtMailbox,
    "member-at-mailbox": MemberAtMailbox,
    "strangers-at-stream": StrangersAtStream,
    "visitors-at-pool": VisitorsAtPool,
    "strangers-at-rendezvous": StrangersAtRendezvous,
}

MOST_GROWTH: Final = 64 << 20
"""Bytes by which a process may grow after the first tenth of the frames."""

_HUNG_S: Final = 60.0

app: Final = Typer(add_completion=False)


def play(name: str, *, frames: int, seed: int) -> int:
    """Feeds frames to a target, and checks it.

    Returns:
        The bytes by which this process has grown after the first tenth of the frames.

    Raises:
        AssertionError: a right message is not taken any more, or memory grows.
        Exception: whatever the target did not catch.
    """
    random, sent, before = Random(f"{name} {seed}"), 0, 0
    process = psutil.Process()
    target = TARGETS[name]()
    try:
        while sent < frames:
            faulthandler.dump_traceback_later(_HUNG_S, exit=True)
            sent += target.feed(random)
            if not before and sent >= frames // 10:
                before = process.memory_info().rss
        target.check()
    except BaseException as error:
        error.add_note(f"target {name}, seed {seed}, after {sent:,} frames")
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()
        target.close()
    growth = int(process.memory_info().rss - before)
    assert growth < MOST_GROWTH, f"{name} took {growth >> 20} MiB more, seed {seed}"
    return growth


@app.command()
def main(
    frames: Annotated[int, Option(help="Frames for each target.")] = 1_000_000,
    seed: Annotated[int, Option(help="Of what is drawn.")] = 0,
    only: Annotated[str | None, Option(help="One target alone.")] = None,
) -> None:
    """Feeds frames to every target."""
    print(f"{'target':<24} {'frames':>10} {'seconds':>8} {'memory':>8}")
    for name in TARGETS if only is None else [only]:
        begun = time.monotonic()
        growth = play(name, frames=frames, seed=seed)
        seconds = time.monotonic() - begun
        print(f"{name:<24} {frames:>10,} {seconds:>8.1f} {growth >> 20:>4} MiB", flush=True)


if __name__ == "__main__":
    app()
