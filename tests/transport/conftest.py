from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from partita.engine.transport import KeyPair, ZmqMailbox
from tests.transport.helpers import Hosts


def _descriptors() -> set[str]:
    with os.scandir("/proc/self/fd") as entries:
        return {entry.name for entry in entries}


@pytest.fixture(scope="session", autouse=True)
def _library_is_warm() -> None:
    ZmqMailbox(KeyPair.generate()).close()  # the random numbers of libsodium keep one descriptor for ever


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test after which a file descriptor or a thread is left over."""
    threads, descriptors = threading.active_count(), len(_descriptors())
    yield
    assert len(_descriptors()) <= descriptors, "a file descriptor was left open"
    assert threading.active_count() <= threads, "a thread was left running"


@pytest.fixture(params=["zeromq", "shared memory", "in-process"])
def hosts(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Hosts]:
    made = Hosts(request.param)
    yield made
    made.close()


@pytest.fixture
def zmq_hosts(nothing_left: None) -> Iterator[Hosts]:
    made = Hosts("zeromq")
    yield made
    made.close()
