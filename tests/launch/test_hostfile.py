"""Hostfiles, and the commands by which workers are started on their machines."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import HostFile
from partita.engine.launch.hostfile import Host, hosts_of
from partita.engine.protocol.pool.resources import Resources

GIB = 1 << 30


def test_the_forms_of_open_mpi_mpich_and_our_own() -> None:
    text = """
    # machines of the lab
    node1 slots=4            # Open MPI's form
    node2:8
    me@node3 cpu=16 gpu=2 memory=64GiB
    node4 slots=2 max_slots=4
    node-5.example.org
    node1 slots=4
    """
    assert hosts_of(text, "hosts") == (
        Host("node1", Resources(cpu=8)),
        Host("node2", Resources(cpu=8)),
        Host("me@node3", Resources(cpu=16, gpu=2, memory=64 * GIB)),
        Host("node4", Resources(cpu=2)),
        Host("node-5.example.org", Resources()),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts names no machine; write a line for each"),
        ("# node1\n\n", "hosts names no machine"),
        ("node1\n-oProxyCommand=evil", "hosts, line 2: '-oProxyCommand=evil' is not the name of a machine"),
        ("-oProxyCommand=evil@node1", "hosts, line 1: '-oProxyCommand=evil@node1' is not the name"),
        ("-l@1", "hosts, line 1: '-l@1' is not the name of a machine"),
        ("node1;rm", "hosts, line 1: 'node1;rm' is not the name"),
        ("node1 slots=many", "hosts, line 1: 'cpu=many' is not a resource"),
        ("node1 disk=4", "hosts, line 1: 'disk=4' is not a resource"),
        ("node1:4 slots=4", "hosts, line 1: cpu (or slots) is given twice"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        hosts_of(text, "hosts")
    assert message in str(refused.value)


@given(st.text("node1:@ =#slotscpu-\n.", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        found = hosts_of(text, "hosts")
    except ValueError:
        return
    assert found and all(one.name and not one.name.startswith("-") for one in found)


def test_the_command_that_runs_there_is_one_word_of_ssh() -> None:
    """Nothing of it is secret: other users of the machine can read command lines."""
    command = HostFile("hosts", python="/opt/my python").command(Host("me@node3", Resources()))
    assert command[:4] == ["ssh", "-o", "BatchMode=yes", "me@node3"]
    assert command[4:] == ["'/opt/my python' -m partita.engine.cli worker --stdin"]
    with pytest.raises(ValueError, match="rsh is ''; give a command"):
        HostFile(Path("hosts"), rsh="")
