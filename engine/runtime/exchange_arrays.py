"""The vectors of a part that exchanges them with other replicas: sums, copies, updates and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from partita.engine.parameters.compression.kept_state import name_of, own_name
from partita.engine.parameters.snapshot import StateAlone
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Persist, Span
from partita.engine.protocol.exchange import AddChunk, CopyChunk
from partita.engine.protocol.program_effects import (
    Applied,
    ApplyUpdate,
    CombineVectors,
    CommitMessages,
    CopyVector,
    DecodeMessages,
    DotsRead,
    EncodeMessage,
    MeasureDots,
    MeasureNorms,
    ReadDots,
    StateReceived,
)
from partita.engine.runtime.message_coding import MessageCoding
from partita.engine.runtime.part_body import Arrays
from partita.engine.runtime.program_vectors import PARAMETERS, ProgramVectors
from partita.engine.runtime.state_files import StateFiles
from partita.engine.runtime.step_runner import NotFinite
from partita.engine.transport.payload import Payload, PayloadLike


@dataclass(frozen=True)
class OwnState:
    """The state that a replica alone has, and that checkpoints have of each one.

    Args:
        names: of the vectors of its compressor.
        held: those to begin with, `[n]` each of the part.
        apart: its parameters and its optimizer's state are not those of the others.
        kind: of what is compressed, see `Driver.unsent`.
    """

    names: tuple[str, ...]
    held: Mapping[str, Vector]
    apart: bool = False
    kind: str = ""


class ExchangeArrays(Arrays):
    """Carries out the effects of exchanges, updates and checkpoints.

    Attributes:
        vectors: that are exchanged.
        step: that was computed last.
    """

    def __init__(
        self,
        vectors: ProgramVectors,
        files: StateFiles,
        *,
        place: tuple[int, int],
        updates_before: int,
        writes: bool,
        own: OwnState | None = None,
    ) -> None:
        """Takes over vectors that hold the first state.

        Args:
            vectors: of the part.
            files: of checkpoints.
            place: replica and machine of the part.
            updates_before: updates of the parameters before the first step of the run.
            writes: whether the part writes all of its numbers before its first update, since what was loaded
                is whole; then it writes the ranges of its last update.
            own: what each replica writes, beside what those of the first one write; None: nothing.
        """
        self.vectors, self._files, self._updates_before = vectors, files, updates_before
        self.step = 0
        self._replica, self._machine = place
        self._own_state = own
        self._coding = MessageCoding(vectors.dtype, held=None if own is None else own.held)
        self._own: tuple[Span, ...] = (Span(PARAMETERS, 0, vectors.size),) * writes

    def carry_out(self, effect: Any) -> Applied | DotsRead | None:
        """Carries out one effect of the part's machine."""
        match effect:
            case AddChunk(span=span, payload=payload, divisor=divisor):
                assert isinstance(payload, Payload)
                self.vectors.add(span, payload, divisor=divisor)
            case CopyChunk(span=span, payload=payload):
                assert isinstance(payload, Payload)
                self.vectors.replace(span, payload)
            case CopyVector(source=source, target=target):
                self.vectors.copy(source, target)
            case CombineVectors(span=span, terms=terms, unlearned=unlearned):
                self.vectors.combine(span, terms, unlearned)
            case MeasureDots(pairs=pairs, spans=ranges, place=place, size=size):
                self.vectors.measure_dots(pairs, ranges, place=place, size=size)
            case ReadDots(number=number, size=size):
                return DotsRead(number, self.vectors.dots(size))
            case MeasureNorms(spans=spans):
                updates = self.step + self._updates_before
                self.vectors.measure(spans, replica=self._replica, machine=self._machine, updates=updates)
            case ApplyUpdate():
                return self._apply(effect)
            case Persist():
                self._persist(effect)
            case EncodeMessage():
                self._coding.encode(effect, self.vectors.of)
            case DecodeMessages():
                self._coding.decode(effect, self.vectors.of)
            case CommitMessages(step=step):
                self._coding.commit(step)
            case StateReceived(step=step):
                # The vectors were replaced where they lie. Who sent them has used this part's last message.
                self._coding.commit(step - 1)
            case _:
                raise AssertionError(effect)
        return None

    def payload(self, span: Span) -> PayloadLike:
        """Returns the numbers of a range."""
        return self.vectors.of(span)

    def finished(self) -> Iterator[Any]:
        """Yields the results of files since the last call."""
        return self._files.finished()

    def close(self) -> None:
        """Waits for a file that is being written."""
        self._files.close()

    def _apply(self, effect: ApplyUpdate) -> Applied:
        of_parameters = all(span.vector == PARAMETERS for span in effect.spans)
        if of_parameters:
            self._own = effect.spans
        before = effect.updates + self._updates_before * of_parameters
        if not self.vectors.update(
            effect.spans, updates=before, scale=effect.scale, gradient=effect.gradient
        ):
            raise NotFinite(
                f"the gradient of all replicas is not finite in step {effect.updates}; lower the learning "
                "rate, clip the gradients, or look at the data of this step"
            )
        return Applied()

    def _persist(self, order: Persist) -> None:
        """Writes the parameters that this part updates, with their state, as they are now."""
        order = replace(order, updates=order.updates + self._updates_before, finite=True)
        snapshot, slots = self.vectors.snapshot(self._own), self.vectors.slots(self._own)
        if self._own_state is not None:
            whole = (Span(PARAMETERS, 0, self.vectors.size),)
            slots, named = self.vectors.slots(whole), self._named(self._own_state, whole)
            first = self._replica == 0
            snapshot = replace(snapshot, state={**snapshot.state, **named}) if first else StateAlone(named)
        self._files.start(order, slots, snapshot)

    def _named(self, own: OwnState, whole: tuple[Span, ...]) -> dict[str, Vector]:
        """Returns copies of what the replica alone has, by their names in a checkpoint."""
        unsent = self._coding.state(own.names, self.vectors.size)
        named = {name_of(own.kind + name, self._replica): vector for name, vector in unsent.items()}
        if own.apart and self._replica:
            found = self.vectors.snapshot(whole)
            state = {name: found.state[name] for name in self.vectors.names_of_optimizer}
            apart = {PARAMETERS: found.values, **state}
            named |= {own_name(name, self._replica): vector for name, vector in apart.items()}
        return named
