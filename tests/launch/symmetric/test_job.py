"""The table of those who start ranks, with variables as each of them sets them."""

import pytest

from partita.engine.launch.symmetric.job import STARTERS, Job, job_of

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[01-03]",
    "SLURM_JOB_NODELIST": "gpu[01-04]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_PROCID": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1948975105",
    "PMIX_RANK": "1",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
HYDRA_IN_SLURM = SLURM | {"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALNRANKS": "2", "PARTITA_JOB_ID": "mine"}
PODS = ("digits-0.pods.lab.svc.cluster.local", "digits-1.pods.lab.svc.cluster.local")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (SLURM, Job("Slurm", 2, 3, 1, 8, "4711.0", "gpu01", 0, ("gpu01", "gpu02", "gpu03"))),
        (OPEN_MPI, Job("Open MPI", 1, 2, 2, 0, "1948975105", "", 0, ("", ""))),
        (OPEN_MPI | SLURM, Job("Open MPI", 1, 2, 2, 0, "1948975105", "", 0, ("", ""))),
        (TORCHRUN, Job("torchrun", 3, 4, 2, 0, "none.first.29500", "first", 0, ("first", "", "", ""))),
        (
            TORCHRUN | SLURM,
            Job("torchrun", 3, 4, 2, 0, "none.first.29500", "first", 0, ("first", "", "", "")),
        ),
        (MPICH, Job("PMI (MPICH, Intel MPI)", 0, 2, 2, 0, "", "", 0, ("", ""))),
        (HYDRA_IN_SLURM, Job("PMI (MPICH, Intel MPI)", 5, 6, 2, 0, "mine", "", 0, ("",) * 6)),
        (
            SLURM | {"PMI_RANK": "2", "PMI_SIZE": "3"},
            Job("Slurm", 2, 3, 1, 8, "4711.0", "gpu01", 0, ("gpu01", "gpu02", "gpu03")),
        ),
        (
            SLURM | {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "1(x2),4"},
            Job("Slurm", 2, 6, 4, 8, "4711.0", "gpu01", 0, ("gpu01", "", "", "", "", "")),
        ),
        (
            {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_PORT": "7077"},
            Job("Kubernetes", 1, 2, 0, 0, PODS[0], PODS[0], 7077, PODS),
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7077"},
            Job("RANK and WORLD_SIZE", 0, 2, 0, 0, "10.0.0.1.7077", "10.0.0.1", 7077, ("10.0.0.1", "")),
        ),
    ],
)
def test_each_starter_says_which_rank_this_is(environ: dict[str, str], expected: Job) -> None:
    assert job_of(environ, PODS[1]) == expected


def test_every_row_has_a_source_and_is_found_by_its_marks_alone() -> None:
    for starter in STARTERS:
        assert starter.source.startswith("https://")
        numbers = dict.fromkeys((*starter.marks, *starter.rank, *starter.size[:1]), "0") | {"WORLD_SIZE": "1"}
        numbers |= dict.fromkeys(starter.size, "1")
        assert job_of(numbers, "somewhere").starter == starter.name


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {},
            "with srun, mpirun or torchrun, in an indexed Kubernetes job, or set RANK and WORLD_SIZE",
        ),
        ({"JOB_COMPLETION_INDEX": "1"}, "Kubernetes started this process, but WORLD_SIZE is not set"),
        (SLURM | {"SLURM_PROCID": "first"}, "SLURM_PROCID is 'first', and not a number"),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[01-"}, "is not a list of nodes"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "this is rank 2 of 2; ranks begin at 0"),
        # Slurm's batch script itself, outside of srun, is no rank.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, "start it with srun"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        job_of(environ, "here")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "local"),
    [(OPEN_MPI, True), (TORCHRUN, False), (TORCHRUN | {"MASTER_ADDR": "localhost"}, True), (SLURM, False)],
)
def test_ranks_on_one_machine_are_known_to_be_there(environ: dict[str, str], local: bool) -> None:
    assert job_of(environ, "here").is_local == local
