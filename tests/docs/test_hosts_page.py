"""The files that docs/hosts.md shows: an sbatch file, a hostfile and the objects of Kubernetes."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from partita.engine import cli
from partita.engine.launch.hostfile import hosts_of
from partita.engine.launch.on import OnOptions, on_of
from partita.engine.launch.symmetric import Environment
from partita.engine.launch.symmetric.job import job_of
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")


def block(begin: str) -> str:
    found = re.search(rf"^```\w+\n({re.escape(begin)}.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, begin
    return found[1]


def check_command(words: list[str]) -> None:
    """Parses `partita ...` as the command itself does."""
    name, *rest = words[words.index("partita") + 1 :]
    context = typer.main.get_command(cli.app_of(name)).commands[name].make_context(name, rest)  # type: ignore[attr-defined]
    assert on_of(context.params["on"], OnOptions()) == Environment()


def test_the_hostfile_can_be_read() -> None:
    assert [host.name for host in hosts_of(block("# hosts"), "hosts")] == ["node1", "node2", "me@node3"]


def test_the_command_of_the_sbatch_file_and_of_mpirun() -> None:
    [line] = [line for line in block("#!/bin/bash").splitlines() if line.startswith("srun ")]
    check_command(shlex.split(line))
    check_command(shlex.split(block("mpirun").splitlines()[0]))


def test_the_pods_of_the_kubernetes_job_find_one_another() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(block("apiVersion"))
    spec, name = job["spec"], job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    [container] = pod["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    [mount] = container["volumeMounts"]
    assert environ["PARTITA_JOB_SECRET_FILE"].startswith(f"{mount['mountPath']}/")
    for index in range(spec["completions"]):
        host = f"{name}-{index}.{pod['subdomain']}.default.svc.cluster.local"
        found = job_of(environ | {"JOB_COMPLETION_INDEX": str(index)}, host)
        assert (found.rank, found.size, found.port) == (index, spec["completions"], 7077)
        assert found.address == f"{name}-0.{pod['subdomain']}"
    check_command(container["command"])
