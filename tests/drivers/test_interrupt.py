"""Signals: the first asks a run to stop, the second ends it, and either lets go of what is held."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.engine.run.interrupt import SIGNALS, ends_on_sigterm, stops_on_ctrl_c
from tests.faults.helpers import sigint


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Restores SIGINT, which a caller in the background may have ignored."""
    with sigint(signal.default_int_handler):
        yield


@pytest.mark.parametrize("second", SIGNALS)
@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_signal_leaves_no_folder(
    tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    before, asked = [signal.getsignal(number) for number in SIGNALS], []

    def run() -> None:
        with (
            ends_on_sigterm(),
            tempfile.TemporaryDirectory(dir=tmp_path),
            stops_on_ctrl_c(lambda: asked.append(first)),
        ):
            signal.raise_signal(first)
            assert asked == [first]
            signal.raise_signal(second)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert asked == [first] and not list(tmp_path.iterdir())
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_sigterm_before_the_run_ends_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ends_on_sigterm(), tempfile.TemporaryDirectory(dir=tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert not list(tmp_path.iterdir())


def test_what_is_ignored_stays_ignored() -> None:
    asked: list[int] = []
    with sigint(signal.SIG_IGN):
        with stops_on_ctrl_c(lambda: asked.append(1)):
            signal.raise_signal(signal.SIGINT)
            assert not asked and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with ends_on_sigterm(), stops_on_ctrl_c(lambda: asked.append(2)):
            signal.raise_signal(signal.SIGTERM)
        assert asked == [2] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_of_the_users_own_stays() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with ends_on_sigterm():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
