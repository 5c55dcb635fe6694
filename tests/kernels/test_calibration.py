"""Measurements are made once, kept for the machine that made them, and outlive damage to the file."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partita.engine import cli
from partita.engine.kernels.products import calibration
from partita.engine.kernels.products.calibration_file import CalibrationFile, Library, Measurement, Shape

PRODUCT = Shape(m=300, k=200, n=100, layout="NT", precision="float32", threads=2)
OF_ONE_THREAD = Shape(m=300, k=200, n=100, layout="NN", precision="float32", threads=1)
OTHER = Shape(m=300, k=200, n=100, layout="NN", precision="float32", threads=2)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "partita"


class Stopwatch:
    """Measures as it was told, and counts how often."""

    def __init__(self, numpy_s: float = 2.0, torch_s: float = 1.0, tiles_s: float = 3.0) -> None:
        self.answer: dict[Library, float] = {"numpy": numpy_s, "torch": torch_s, "tiles": tiles_s}
        self.asked = 0

    def __call__(self, product: Shape) -> dict[Library, float]:
        self.asked += 1
        return self.answer


def test_a_product_is_measured_once() -> None:
    watch = Stopwatch()
    assert [calibration.choose(PRODUCT, watch) for _ in range(3)] == ["torch"] * 3
    assert watch.asked == 1
    assert calibration.measured() == (
        Measurement(
            machine=calibration.signature(),
            product=PRODUCT,
            seconds={"numpy": 2.0, "torch": 1.0, "tiles": 3.0},
            chosen="torch",
        ),
    )


@pytest.mark.parametrize(
    ("numpy_s", "tiles_s", "torch_s", "chosen"),
    [
        (1, 2, 2, "numpy"),
        (1, 1, 1, "numpy"),
        (1, 0.96, 0.96, "numpy"),
        (1, 2, 0.94, "torch"),
        (1, 0.94, 2, "tiles"),
        (1, 0.94, 0.9, "tiles"),
        (1, 0.94, 0.89, "torch"),
    ],
)
def test_who_costs_more_must_be_worth_it(numpy_s: float, tiles_s: float, torch_s: float, chosen: str) -> None:
    assert calibration.choose(OF_ONE_THREAD, Stopwatch(numpy_s, torch_s, tiles_s)) == chosen


@pytest.mark.parametrize(
    ("numpy_s", "tiles_s", "torch_s", "chosen"),
    [
        (1, 1.9, 1, "tiles"),
        (1, 2.1, 1, "numpy"),
        (1, 2.1, 0.96, "numpy"),
        (1, 2.1, 0.94, "torch"),
        (2, 2.1, 1, "torch"),
    ],
)
def test_of_several_threads_those_of_blas_must_be_worth_what_they_cost_the_others(
    numpy_s: float, tiles_s: float, torch_s: float, chosen: str
) -> None:
    assert calibration.choose(PRODUCT, Stopwatch(numpy_s, torch_s, tiles_s)) == chosen


def test_a_library_that_was_not_measured_is_not_chosen() -> None:
    assert calibration.choose(PRODUCT, lambda _: {"numpy": 2.0, "tiles": 1.0}) == "tiles"


def test_another_product_is_measured_too_and_the_first_is_kept() -> None:
    watch = Stopwatch()
    for product in (PRODUCT, OTHER, PRODUCT):
        calibration.choose(product, watch)
    assert watch.asked == 2
    assert [found.product for found in calibration.measured()] == [PRODUCT, OTHER]


def test_with_other_settings_of_blas_it_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    calibration.choose(PRODUCT, Stopwatch(1.0, 2.0))
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Zen")
    assert calibration.measured() == ()
    assert calibration.choose(PRODUCT, Stopwatch(2.0, 1.0)) == "torch"
    assert "OPENBLAS_CORETYPE=Zen" in calibration.signature()
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert calibration.choose(PRODUCT, Stopwatch(2.0, 1.0)) == "numpy"


def test_what_libraries_set_when_they_are_imported_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KMP_DUPLICATE_LIB_OK", raising=False)
    before = calibration.signature()
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")
    assert calibration.signature() == before


def test_what_is_forgotten_is_measured_again() -> None:
    watch = Stopwatch()
    assert not calibration.forget()
    calibration.choose(PRODUCT, watch)
    assert calibration.forget()
    assert calibration.measured() == ()
    calibration.choose(PRODUCT, watch)
    assert watch.asked == 2


NO_TABLES = [
    b"",
    b"\xff\x00 not JSON",
    b"[]",
    b'{"version": 99, "measurements": [], "more": 1}',
    b'{"version": 1, "measurements": []}',
    b'{"version": 2, "measurements": [{"machine": "m"}]}',
    b'{"version": 2, "measurements": [], "more": 1}',
]


@pytest.mark.parametrize("content", NO_TABLES)
def test_a_file_of_another_form_is_told_and_written_anew(folder: Path, content: bytes) -> None:
    assert calibration.trouble() is None
    (folder / "kernels.json").write_bytes(content)
    told = calibration.trouble()
    assert (
        told is not None
        and told.startswith(f"{folder / 'kernels.json'} cannot be used (")
        and "\n" not in told
    )
    assert calibration.measured() == ()
    assert calibration.choose(PRODUCT, Stopwatch()) == "torch"
    assert calibration.trouble() is None
    assert len(calibration.measured()) == 1


def test_where_nothing_can_be_kept_it_is_numpy_without_a_measurement(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    watch = Stopwatch()
    assert calibration.choose(PRODUCT, watch) == "numpy"
    assert watch.asked == 0


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration.choose(PRODUCT, Stopwatch())
    before = (folder / "kernels.json").read_bytes()

    def full(source: object, target: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    assert calibration.choose(OTHER, Stopwatch()) == "numpy"
    assert (folder / "kernels.json").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"kernels.json", "kernels.lock"}


def test_of_many_at_once_one_measures() -> None:
    watch, start = Stopwatch(), threading.Barrier(6)
    found: list[str] = []

    def ask() -> None:
        start.wait()
        found.append(calibration.choose(PRODUCT, watch))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["torch"] * 6
    assert watch.asked == 1


HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    file = CalibrationFile(tmp_path / "kernels.json")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "kernels.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(TimeoutError, match="another process has held"), file.locked(wait_s=0):
            pytest.fail("two hold one lock")
        holder.kill()
        holder.wait()
        with file.locked(wait_s=0):
            pass


class Clock:
    """Stands still, but for the calls, which take as long as they were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.played = 0.0, ""
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def call(self, name: str, *seconds: float) -> calibration.Call:
        """Takes the last of these times again and again."""
        left = list(seconds)

        def play() -> None:
            self.played += name
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return play


def test_the_least_of_several_rounds_counts_and_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    slow, quick = clock.call("s", 0.001, 0.3, 0.21, 0.2), clock.call("q", 9, 0.15, 0.1, 0.1)
    assert calibration.least_seconds([slow, quick]) == pytest.approx([0.2, 0.1])
    assert clock.played == "sq" * 4


def test_short_calls_are_repeated_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert calibration.least_seconds([clock.call("a", 0.003), clock.call("b", 0.002)]) is not None
    assert clock.now == pytest.approx(0.105)


def test_calls_that_disturb_each_other_are_measured_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rests: list[tuple[float, str]] = []
    monkeypatch.setattr("time.sleep", lambda seconds: rests.append((seconds, clock.played)))
    found = calibration.least_seconds([clock.call("a", 0.2), clock.call("b", 0.1)], rest_s=0.5)
    assert found == pytest.approx([0.2, 0.1])
    assert clock.played == "aaaabbbb"
    assert rests == [(0.5, ""), (0.5, "aaaa")]
    busy = clock.call("c", *(0.05 * 1.2**n for n in range(9)))
    assert calibration.least_seconds([busy, clock.call("d", 0.1)], rest_s=0.5) is None


def test_on_a_busy_machine_nothing_is_found_and_nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = [clock.call("a", *(0.05 * 1.2**n for n in range(9))), clock.call("b", 0.01)]
    watch = Stopwatch()
    seconds: dict[Library, float] = {"numpy": 2.0, "torch": 1.0}
    assert calibration.choose(PRODUCT, lambda _: calibration.least_seconds(calls) and seconds) == "numpy"
    assert clock.now > 0.5
    assert calibration.measured() == ()
    assert calibration.choose(PRODUCT, watch) == "torch"


def test_a_machine_that_becomes_quiet_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = [clock.call("a", 0.05, 0.09, 0.07, 0.06, 0.02, 0.02, 0.02), clock.call("b", 0.01)]
    assert calibration.least_seconds(calls) == pytest.approx([0.02, 0.01])


def test_the_command_shows_what_was_measured_and_forgets_it(folder: Path) -> None:
    calibration.choose(PRODUCT, Stopwatch(0.002, 0.001))
    calibration.choose(OTHER, Stopwatch(0.0015, 0.004, 0.001))
    run = CliRunner(env={"COLUMNS": "120"}).invoke
    shown = run(cli.app, ["kernels"])
    assert shown.exit_code == 0
    rows = [" ".join(line.replace("│", " ").split()) for line in shown.output.splitlines()]
    assert "gradient 300x200x100 float32 2 2.000 1.000 3000.000 torch" in rows
    assert "up 300x200x100 float32 2 1.500 4.000 1.000 tiles" in rows
    assert run(cli.app, ["kernels", "--forget"]).output == "forgotten\n"
    assert run(cli.app, ["kernels", "--forget"]).output == "nothing was remembered\n"
    (folder / "kernels.json").write_text("broken")
    assert "cannot be used" in run(cli.app, ["kernels"]).output
