"""Jobs of several ranks: every process runs the same command, as srun, mpirun, torchrun or Kubernetes start
it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks._namespaces import GBIT, network, why_not
from tests.faults import toy
from tests.launch.pool.helpers import Program

SOON_S = 10.0
SECRET = "a secret that is long enough for a job"
SCRIPT = """
    from partita.engine import SGD, Downpour, evaluate, train
    from partita.partitioner import Cluster, partition
    from tests.faults import toy

    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    driver = Downpour(shards=1, optimizer=SGD(0.05))
    run = train(plan, toy.data(), driver=driver, epochs=20, on="env", show="nothing")
    again = train(plan, toy.data(), driver=driver, epochs=5, on="env", initial=run.parameters, show="nothing")
    print("accuracy", evaluate(again, toy.data(), hosts="env").accuracy, flush=True)
"""
pytestmark = pytest.mark.slow


def slurm(size: int, job: str) -> list[dict[str, str]]:
    """The variables of `srun --ntasks=SIZE --nodes=1`."""
    shared = {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_NODEID": "0",
    }
    return [shared | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(size)]


def arguments(tmp_path: Path, *more: str, epochs: int = 20) -> list[str]:
    own = ["train", str(Path(toy.__file__)), "--on", "env", "--batch", "8", "--machines", "2"]
    own += ["--strategy", "balanced", "--epochs", str(epochs), "--checkpoints", str(tmp_path / "kept")]
    return [*own, *more]


@contextmanager
def ranks(
    command: Sequence[str],
    environs: Sequence[Mapping[str, str]],
    inside: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[list[Program]]:
    with ExitStack() as stack:
        started = []
        for rank, environ in enumerate(environs):
            place = (inside or {}).get(rank, ())
            started.append(stack.enter_context(Program(*command, env=dict(environ), inside=place)))
        yield started


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / f"partita-{os.geteuid()}"


def test_ranks_of_slurm_train_and_end_together(tmp_path: Path, runtime: Path) -> None:
    with ranks(arguments(tmp_path), slurm(3, "1")) as started:
        first, *others = started
        assert [one.end() for one in started] == [0, 0, 0], [one.output for one in started]
        assert "trained" in first.output and "worker rank 0: " in first.output
        for one in others:
            assert "was drained and ends" in one.output and "trained" not in one.output
    assert not list(runtime.iterdir())


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun; install openmpi-bin")
def test_mpirun_needs_no_keys_on_one_machine(tmp_path: Path) -> None:
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command += [sys.executable, "-m", "partita.engine.cli", *arguments(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2 (Open MPI)" in done.stdout and "worker 'rank 1' was drained" in done.stdout


def test_a_script_of_torchrun_is_written_as_for_one_process(tmp_path: Path) -> None:
    """Two trainings and an evaluation on the ranks, and the last lines once."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("accuracy") == 1 and "rank 0 of 2 (torchrun)" in done.stdout
    assert float(done.stdout.split("accuracy ")[1].split()[0]) > 0.9
    assert done.stdout.count("hosts for a run of 'toy' by Downpour") >= 2


def test_ranks_that_are_missing_are_named(tmp_path: Path) -> None:
    environs = slurm(3, "2")
    with ranks(arguments(tmp_path), environs[:2]) as [first, _]:
        first.wait_for("rank 0 of 3 (Slurm) serves its job")
        first.wait_for("worker 'rank 1' joined")
        first.wait_for("waits for 1 of 3 ranks: rank 2 (localhost, 127.0.0.1)", within_s=2 * SOON_S)
        with Program(*arguments(tmp_path), env=environs[2]) as late:
            assert [late.end(), first.end()] == [0, 0], first.output
    with ranks(arguments(tmp_path), environs[2:]) as [lonely]:
        lonely.wait_for("rank 2 of 3 waits for rank 0 (localhost): it looks at the file", within_s=3 * SOON_S)


def test_the_others_end_where_rank_0_cannot_train(tmp_path: Path) -> None:
    with ranks(arguments(tmp_path, "--resume", "--overwrite"), slurm(2, "3")) as [first, second]:
        assert first.end() == 1 and "exclude each other" in first.output
        assert second.end() == 0 and "was drained" in second.output


def test_a_rank_that_is_killed_is_replaced_by_another(tmp_path: Path) -> None:
    more = ["--checkpoint-every", "0.5"]
    with ranks(arguments(tmp_path, *more, epochs=4000), slurm(4, "4")) as started:
        first = started[0]
        first.wait_for("staleness")
        victim = next(one for one in started[1:] if "part 0.1" in one.hosts())
        victim.signal(signal.SIGKILL)
        first.wait_for("is gone (silent for", within_s=2 * SOON_S)
        before = len(first.said)
        until = time.monotonic() + 60.0
        while not any("staleness" in line for line in first.said[before:]):
            assert time.monotonic() < until, first.output
            first.wait_for("staleness")
            first.read(0.2)
        first.signal(signal.SIGINT)
        assert first.end() == 130, first.output
        for one in started[1:]:
            if one is not victim:
                assert one.end() == 0, one.output


@pytest.mark.netns
def test_machines_with_a_secret_alone_find_one_another(tmp_path: Path) -> None:
    """Kubernetes' way: neither a folder of keys nor a file of addresses, a name of rank 0, one secret."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(2, bits_per_s=GBIT) as net:
        shared = {
            "WORLD_SIZE": "3",
            "MASTER_ADDR": net.listen.removeprefix("tcp://").rpartition(":")[0],
            "PARTITA_JOB_ID": "pods",
            "PARTITA_JOB_SECRET": SECRET,
        }
        environs = [shared | {"JOB_COMPLETION_INDEX": str(rank)} for rank in range(3)]
        inside = {rank: net.places[rank - 1].command for rank in (1, 2)}
        with ranks(arguments(tmp_path), environs, inside) as started:
            assert [one.end() for one in started] == [0, 0, 0], [one.output for one in started]
            for rank in (1, 2):
                assert (
                    f"rank {rank} of 3 at {net.places[rank - 1].address} joins rank 0" in started[rank].output
                )
            assert SECRET not in "".join(one.output for one in started)
        environs[2]["PARTITA_JOB_SECRET"] = "another secret, which is as long as the first one"
        with ranks(arguments(tmp_path, "--overwrite"), environs, inside) as [first, _, stranger]:
            stranger.wait_for("rank 2 of 3 waits for rank 0", ", port 2", within_s=4 * SOON_S)
            first.wait_for("waits for 1 of 3 ranks: rank 2", within_s=4 * SOON_S)
