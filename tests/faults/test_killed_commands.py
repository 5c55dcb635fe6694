"""SIGKILL of a command and of its hosts at drawn moments, many times: it ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults import toy
from tests.faults.helpers import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OPTIONS = (
    *("train", str(Path(toy.__file__)), "--driver", "sandblaster", "--batch", "8", "--replicas", "2"),
    *("--shards", "2", "--max-iterations", "400", "--ftol", "0", "--gtol", "0", "--checkpoint-every", "0.5"),
    *("--save", "net.safetensors", "--strategy", "balanced", "--resume"),
)


def ends(folder: Path) -> bytes:
    with Command(*OPTIONS, folder=folder) as command:
        code, _ = command.end()
        assert code == 0, command.said
    return (folder / "net.safetensors").read_bytes()


def has_said_more(command: Command, lines: int) -> bool:
    """Waits for so many lines of progress; says whether the command was not over before."""
    for line in command.lines():
        lines -= "iteration " in line
        if not lines:
            return True
    return False


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_drawn_moments_cost_no_bit(tmp_path: Path, seed: int) -> None:
    """Eight deaths of the coordinator and up to sixteen of hosts; each command is given again as it was."""
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    straight, folder, random = ends(tmp_path / "straight"), tmp_path / "killed", Random(seed)
    kills = 0
    for _ in range(8):
        with Command(*OPTIONS, folder=folder) as command:
            for _ in range(random.randrange(3)):
                hosts = command.hosts if has_said_more(command, random.randrange(1, 4)) else {}
                if hosts:
                    hosts[random.choice(sorted(hosts))].kill()
            kills += has_said_more(command, 1)
            command.kill()
            command.end()
    assert kills >= 3, "it was over before it could be killed"
    assert ends(folder) == straight
    assert not list((folder / "tmp").glob("partita-*")), "what the killed ones left is removed"
