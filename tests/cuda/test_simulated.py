"""Everything that needs a GPU, but for its speed, on one that Numba simulates: the tests beside this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.on_device import SIMULATED

HERE = Path(__file__).parent
WITH_A_DEVICE = ("test_compiled_kernels.py", "test_parts.py", "test_optimizers.py")


@pytest.mark.slow
def test_the_tests_of_a_gpu_pass_on_a_simulated_one() -> None:
    """Runs in a process of its own, because Numba chooses the simulator when it is imported."""
    assert not SIMULATED, "this test starts the simulator itself"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not slow"]
    simulated = subprocess.run(
        [*command, *(str(HERE / name) for name in WITH_A_DEVICE)],
        cwd=HERE.parent.parent,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert simulated.returncode == 0, simulated.stdout[-20_000:] + simulated.stderr
    found = re.search(r"(\d+) passed", simulated.stdout)
    assert found is not None and int(found[1]) >= 30, simulated.stdout
    assert "skipped" not in simulated.stdout, simulated.stdout
