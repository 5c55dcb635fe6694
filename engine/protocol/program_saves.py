"""The files of a part's state: at the step that the coordinator names, or refused where that is over."""

from __future__ import annotations

from typing import Any, Final

from partita.engine.protocol.checkpoint_messages import Save, Saved, SaveFailed
from partita.engine.protocol.events import NotPersisted, Persist, Persisted, Send
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import COORDINATOR


class Saves:
    """The newest file that the coordinator has asked for, in one process of a part."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation: Final = incarnation
        self._asked: Save | None = None
        self._writes = False  # the body writes it
        self._answer: Saved | SaveFailed | None = None

    def ask(self, save: Save, step: int | None) -> list[Any]:
        """Notes what is asked for; `step`: steps in the part's state. Answers a repeat from memory."""
        if self._asked is not None and save.checkpoint <= self._asked.checkpoint:
            known = save.checkpoint == self._asked.checkpoint and self._answer is not None
            return [Send(COORDINATOR, self._answer)] if known and self._answer is not None else []
        self._asked, self._writes, self._answer = save, False, None
        if step is None or step <= save.step:
            return []
        reason = f"it has done step {step} already, and was asked for the state after {save.step}"
        return self._fail(reason, late=True)

    def at(self, step: int, loss_scale: ScaleState | None = None) -> list[Any]:
        """Returns the effects of a state after so many steps, with its loss scale."""
        asked = self._asked
        if asked is None or self._writes or self._answer is not None or step < asked.step:
            return []
        if step > asked.step:  # the state came from another replica
            reason = f"it has the state after step {step}, and not the one after {asked.step}"
            return self._fail(reason, late=True)
        self._writes = True
        return [Persist(asked.checkpoint, self._incarnation, step, step, loss_scale=loss_scale)]

    def written(self, event: Persisted | NotPersisted) -> list[Any]:
        """Answers the coordinator, unless it has asked for another file meanwhile."""
        asked = self._asked
        if asked is None or event.checkpoint != asked.checkpoint or self._answer is not None:
            return []
        if isinstance(event, NotPersisted):
            return self._fail(event.reason)
        self._answer = Saved(asked.checkpoint, self._incarnation, event.version, event.file, event.sha256)
        return [Send(COORDINATOR, self._answer)]

    def _fail(self, reason: str, *, late: bool = False) -> list[Any]:
        assert self._asked is not None
        self._answer = SaveFailed(self._asked.checkpoint, self._incarnation, reason, late)
        return [Send(COORDINATOR, self._answer)]
