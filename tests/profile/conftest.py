from __future__ import annotations

import pytest

from partita.engine.profile import Profile, profile_network
from tests.faults import toy

STEPS = 4


@pytest.fixture(scope="session")
def profile() -> Profile:
    """A toy network on 1, 2 and 4 machines, as if there were two cores: hosts are threads of this process."""
    return profile_network(
        toy.network(),
        (2, 4),
        batch=8,
        strategy="balanced",
        calibrated=False,
        data=toy.data(5),
        steps=STEPS,
        hosts="threads",
        cores=2,
    )
