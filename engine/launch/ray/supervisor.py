"""Keeps an actor in each bundle of a reservation: starts it, lets its worker in, and starts another after it.

Ray gives the bundle of a dead node another node when it knows of the death, and the actor that waits for the
bundle begins there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from partita.engine.launch.ray.actor import BundleWorker, Introduction, Said
from partita.engine.launch.ray.bundles import Bundle
from partita.engine.launch.ray.introduced import IntroducedKeys
from partita.engine.launch.ray.reservation import Reservation
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.messages import Peer

AGAIN_S: Final = 1.0
"""Seconds between the starts of two actors of a bundle."""

_LOOK_S: Final = 0.25


@dataclass(slots=True, eq=False)
class _Seat:
    """A bundle, its actor, and the call that waits for the actor's answer."""

    name: str
    bundle: Bundle
    index: int
    actor: Any = None
    call: Any = None
    is_lost: bool = False  # another actor is to be started
    again_at: float = 0.0  # where no call waits: not before this time, monotonic
    trouble: str = field(default="", repr=False)  # the last one that was shown


class Supervisor:
    """The actors of one run."""

    def __init__(
        self,
        reservation: Reservation,
        pool: Peer,
        keys: IntroducedKeys,
        *,
        log: Callable[[str], object],
    ) -> None:
        """Starts an actor in each bundle.

        Args:
            reservation: the bundles.
            pool: the registry of the run.
            keys: gets the actors' public keys.
            log: shows a line.
        """
        self._group, self._pool, self._keys, self._log = reservation.group, pool, keys, log
        self._seats = [
            _Seat(f"bundle {number}", bundle, index)
            for number, (bundle, index) in enumerate(
                zip(reservation.bundles, reservation.indices, strict=True)
            )
        ]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="ray actors", daemon=True)
        for seat in self._seats:
            self._start(seat)

    def introduce_all(self, wait_s: float) -> None:
        """Waits until every actor runs and its worker may come in; from then on supervises them on a thread.

        Raises:
            RunFailed: an actor cannot run, or does not within so many seconds.
        """
        until = time.monotonic() + wait_s
        for seat in self._seats:
            try:
                self._introduced(seat, ray.get(seat.call, timeout=max(until - time.monotonic(), 0.0)))
            except ray.exceptions.GetTimeoutError:
                raise RunFailed(f"the Ray actor of {seat.name} does not run after {wait_s:g} s") from None
            except ray.exceptions.RayError as error:
                raise RunFailed(f"the Ray actor of {seat.name} cannot run: {_worded(error)}") from None
        self._thread.start()

    def close(self) -> None:
        """Ends every actor at once."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        for seat in self._seats:
            ray.kill(seat.actor)

    def _start(self, seat: _Seat) -> None:
        amounts = dict(seat.bundle)
        seat.is_lost = False
        seat.actor = _ACTOR.options(
            num_cpus=amounts.pop("CPU", 0.0),
            num_gpus=amounts.pop("GPU", 0.0),
            memory=amounts.pop("memory", None),
            resources=amounts,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=seat.index
            ),
        ).remote()
        seat.call = seat.actor.introduce.remote(self._pool.endpoint)

    def _introduced(self, seat: _Seat, found: Introduction) -> None:
        if found.ray != ray.__version__:
            raise RunFailed(
                f"Ray is {found.ray} at {found.address} ({seat.name}) and must be {ray.__version__}, as here"
            )
        self._keys.introduce(seat.name, found.public_key)
        seat.actor.work.remote(self._pool, seat.name, dict(seat.bundle))
        seat.call = seat.actor.said.remote()

    # The thread.

    def _supervise(self) -> None:
        try:
            while not self._stopped.is_set():
                self._look()
        except Exception as error:  # noqa: BLE001 - the run goes on with the workers that it has
            self._log(f"Ray actors that die are not started again any more: {error!r}")

    def _look(self) -> None:
        """Starts what is to be started, and receives answers for a while."""
        for seat in self._seats:
            if seat.call is None and time.monotonic() >= seat.again_at:
                self._call_again(seat)
        calls = {seat.call: seat for seat in self._seats if seat.call is not None}
        if not calls:
            self._stopped.wait(_LOOK_S)
            return
        ready, _ = ray.wait(list(calls), timeout=_LOOK_S)
        for call in ready:
            if not self._stopped.is_set():
                self._answered(calls[call])

    def _call_again(self, seat: _Seat) -> None:
        if not seat.is_lost:
            seat.call = seat.actor.said.remote()
            return
        try:
            self._start(seat)
        except (ray.exceptions.RayError, ValueError) as error:  # somebody has removed the group
            seat.is_lost, seat.again_at = True, float("inf")
            self._log(f"no other Ray actor can be started in {seat.name}: {_worded(error)}")

    def _answered(self, seat: _Seat) -> None:
        call, seat.call, seat.again_at = seat.call, None, time.monotonic() + AGAIN_S
        try:
            match ray.get(call):
                case Introduction() as found:
                    self._introduced(seat, found)
                    seat.trouble = ""
                case Said(lines=lines, ended=ended):
                    for line in lines:
                        self._log(f"{seat.name}: {line}")
                    seat.is_lost = ended
                    if ended:
                        ray.kill(seat.actor)
                    else:
                        seat.call = seat.actor.said.remote()
        except ray.exceptions.ActorUnavailableError:
            pass  # it may come back, and is asked again
        except (ray.exceptions.RayError, RunFailed) as error:
            seat.is_lost = True
            text = f"{_worded(error)}; another is started when Ray has a node for it"
            if text != seat.trouble:
                seat.trouble = text
                self._log(f"the Ray actor of {seat.name} is gone: {text}")


_ACTOR: Final = ray.remote(max_restarts=0, max_concurrency=4)(BundleWorker)


def _worded(error: BaseException) -> str:
    """Words an error of Ray in one line: the one that gives a reason, or its last one."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    reasons = [line for line in lines if " because " in line]
    return (reasons or lines or [type(error).__name__])[-1].rstrip(".")
