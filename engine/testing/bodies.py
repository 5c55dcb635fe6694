"""The simulated body of a part: a few vectors of its machine's numbers."""

from __future__ import annotations

from typing import Any, Final

from partita.engine.protocol.events import Send, Span
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.names import part_indices
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.program_effects import StuckOn
from partita.engine.testing.host import Numbers, SimulatedBody, SimulatedHost
from partita.engine.testing.schedule import Schedule

RETRY_S: Final = 1.0


class PartBody(SimulatedBody):
    """A part: vectors of its machine's numbers."""

    schedule: Schedule

    def __init__(self, schedule: Schedule, host: SimulatedHost) -> None:
        super().__init__(host)
        self.schedule = schedule
        self.name, self.incarnation, self.id = host.name, host.incarnation, host.id
        self.world, self.later = host.world, host.later
        indices = part_indices(self.name)
        assert indices is not None
        self.replica, self.machine = indices
        self.spans = self.schedule.layout.of_machine[self.machine]
        n = sum(stop - start for _, start, stop in self.spans)
        names = ("parameters", "staged", "accumulated", "in_flight")
        self.vectors = {name: [0.0] * n for name in names}

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.host.alive

    def raises(self) -> bool:
        """Whether the user's function raises now, which ends the part's work."""
        raises = self.schedule.raises(self.name)
        if raises:
            self.host.fail("the user's function raised")
        return raises

    def payload(self, send: Send) -> Numbers:
        """Returns the numbers of a gradient in flight."""
        assert send.payload is not None, send
        return Numbers(self.vectors[send.payload.vector][send.payload.start : send.payload.stop])

    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out an effect that the machines of all parts have."""
        match effect:
            case Stage(span=Span(start=start, stop=stop), payload=Numbers() as numbers):
                self.vectors["staged"][start:stop] = numbers
            case Install(span=Span(start=start, stop=stop)):
                self.vectors["parameters"][start:stop] = self.vectors["staged"][start:stop]
            case SwapBuffers(span=Span(start=start, stop=stop)):
                self.vectors["in_flight"][start:stop] = self.vectors["accumulated"][start:stop]
                self.vectors["accumulated"][start:stop] = [0.0] * (stop - start)
            case LookForWaits():
                return StuckOn(0, ())
            case _:
                raise AssertionError(effect)
        return None
