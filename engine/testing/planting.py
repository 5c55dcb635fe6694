"""Plays a user's driver, and plants faults to see that they are caught: a simulator that finds nothing
proves nothing. A fault replaces one method of a class for as long as it is switched on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.testing.downpour import play_downpour
from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program import play_programs
from partita.engine.testing.sandblaster import play_sandblaster


@dataclass(frozen=True)
class Fault:
    """A fault in a method of a machine, a body or a driver.

    Args:
        owner: the class.
        method: the name of one of its methods, or of a property.
        instead: called as `instead(method, self, *arguments)` with the real method.
    """

    owner: type
    method: str
    instead: Callable[..., Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Switches the fault on for as long as the block lasts."""
        inherited = self.method not in vars(self.owner)
        real, instead = getattr(self.owner, self.method), self.instead

        def broken(this: Any, *arguments: Any, **named: Any) -> Any:
            return instead(real, this, *arguments, **named)

        def broken_property(this: Any) -> Any:
            return instead(real.__get__, this)

        is_property = isinstance(real, property)
        setattr(self.owner, self.method, property(broken_property) if is_property else broken)
        try:
            yield
        finally:
            if inherited:
                delattr(self.owner, self.method)
            else:
                setattr(self.owner, self.method, real)


def play(
    driver: Any,
    seed: int,
    *,
    faults: Iterable[Fault] = (),
    machines: Iterable[type] = (),
    hostile: bool = False,
    keep_all: bool = False,
) -> Outcome:
    """Plays a driver's programs in the schedule of a seed, in the real machines of all hosts.

    The same seed gives the same outcome and trace, in any process. Not from several threads at once.

    Args:
        driver: has the programs `coordinator(run)` and `replica(me)`, and `replicas`, as every `Driver`; with
            None replicas the seed draws how many. With shards, replicas work on their own as `Downpour`'s do;
            one that is a `Sandblaster` evaluates.
        seed: any integer; it draws the hosts, the network, and what goes wrong.
        faults: that are planted meanwhile.
        machines: classes that are played in the place of the real ones that they are derived from.
        hostile: whether some members send what no correct one does, too.
        keep_all: whether the trace is the whole history, not the last events before a violation.

    Returns:
        The outcome; its `violation` names the invariant that is broken, and "program" what no driver may do.
    """
    with ExitStack() as planted:
        for fault in faults:
            planted.enter_context(fault.planted())
        if isinstance(driver, Sandblaster):
            return play_sandblaster(driver, seed, machines=machines, hostile=hostile, keep_all=keep_all)
        if isinstance(driver, Driver) and driver.shards:
            return play_downpour(driver, seed, machines=machines, hostile=hostile, keep_all=keep_all)
        return play_programs(driver, seed, machines=machines, hostile=hostile, keep_all=keep_all)
