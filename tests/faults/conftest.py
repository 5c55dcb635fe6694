from __future__ import annotations

import pytest

from tests.faults.helpers import Witness


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    """Observer that every run of this test reports to."""
    made = Witness()
    monkeypatch.setattr("partita.engine.run.display.Display", made)
    return made
