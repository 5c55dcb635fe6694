"""Who multiplies matrices fastest here: measured once for a shape, and remembered.

A measurement holds for a machine, its versions of Partita and of what computes, and the environment variables
that a BLAS listens to; with others it is made again. They lie in the user's cache folder, in `kernels.json`.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

from partita.engine.kernels.kernel import Call
from partita.engine.kernels.products.calibration_file import CalibrationFile, Library, Measurement, Shape
from partita.engine.numerics.cache import cache_folder

Measure: TypeAlias = Callable[[Shape], dict[Library, float] | None]

_HEARD_BY_BLAS: Final = ("ATEN_", "BLIS_", "DNNL_", "GOTO_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")
_SET_BY_LIBRARIES: Final = {"KMP_DUPLICATE_LIB_OK"}  # when they are imported; it says nothing about speed
_BY_COST: Final[tuple[Library, ...]] = ("numpy", "tiles", "torch")
"""What they cost besides their time: NumPy nothing, tiles the loading of compiled code, and torch an import
of seconds and some 200 MB."""
_MUST_SAVE: Final = 0.05
"""Of the time of one that costs less, or it is not worth it."""
_BY_COST_TO_OTHERS: Final[tuple[Library, ...]] = ("tiles", "numpy", "torch")
"""Of several threads: those of a BLAS keep cores busy after a product, so tiles that come next take about
twice as long. What is mixed is no faster than a BLAS alone."""
_MUST_SAVE_OTHERS: Final = 0.5
"""Of the time of tiles, or a BLAS is not worth what it costs the others."""
_USUAL_S: Final = 0.1
_LONGEST_S: Final = 0.5
_LEAST_ROUNDS: Final = 3
_AGREE: Final = 1.1
"""How far apart the two least times of a call may lie. Where others use the machine too, calls of several
threads take anything up to a hundred times as long as alone."""
_WAIT_S: Final = 60.0


def choose(product: Shape, measure: Measure) -> Library:
    """Which library to use for a product; measured now if it never was.

    One process measures at a time; others wait, and read what it found. Where nothing can be remembered, or
    the wait is too long, it is NumPy, and nothing is measured. May be called from several threads.

    Args:
        product: which.
        measure: gives the seconds that each library takes; None if they cannot be told now. Then it is
            NumPy, until somebody asks again.
    """
    try:
        file = _file()
        found = _known(file, product)
        if found is None:
            with file.locked(wait_s=_WAIT_S):
                found = _known(file, product) or _found_out(file, product, measure)
    except OSError:
        return "numpy"
    return found


def measured() -> tuple[Measurement, ...]:
    """What is remembered of this machine with its present libraries and settings, in the order of the
    measurements.
    """
    machine = signature()
    return tuple(found for found in _file().read() if found.machine == machine)


def trouble() -> str | None:
    """In one sentence what is wrong with the file of measurements, if something is."""
    return _file().trouble()


def forget() -> bool:
    """Deletes all measurements, those of other settings too; says whether there were any.

    Raises:
        OSError: the file cannot be deleted.
    """
    return _file().delete()


def signature() -> str:
    """What measurements depend on, in a line: processor, cores, versions, environment variables."""
    heard = sorted(name for name in set(os.environ) - _SET_BY_LIBRARIES if name.startswith(_HEARD_BY_BLAS))
    return ", ".join([*_hardware_and_versions(), *(f"{name}={os.environ[name]}" for name in heard)])


def least_seconds(calls: Sequence[Call], *, rest_s: float = 0.0) -> list[float] | None:
    """The least time that each call took in several rounds, in which they take turns.

    Args:
        calls: what to measure.
        rest_s: if it is not 0, they take no turns: each is measured by itself, after so long a rest.

    Returns:
        Seconds; None where the two least times of a call are too far apart to mean anything.
    """
    if rest_s:
        return _one_by_one(calls, rest_s)
    for call in calls:
        call()  # what is done once (pages, threads, code) is not counted
    times: list[list[float]] = [[] for _ in calls]
    begin = time.perf_counter()
    while (spent := time.perf_counter() - begin) < _LONGEST_S or len(times[0]) < _LEAST_ROUNDS:
        if spent >= _USUAL_S and len(times[0]) >= _LEAST_ROUNDS and _agree(times):
            break
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times] if _agree(times) else None


def _one_by_one(calls: Sequence[Call], rest_s: float) -> list[float] | None:
    found: list[float] = []
    for call in calls:
        time.sleep(rest_s)
        if (alone := least_seconds([call])) is None:
            return None
        found += alone
    return found


def _agree(times: Sequence[Sequence[float]]) -> bool:
    return all(second <= _AGREE * least for least, second, *_ in map(sorted, times))


def _file() -> CalibrationFile:
    return CalibrationFile(cache_folder() / "kernels.json")


def _known(file: CalibrationFile, product: Shape) -> Library | None:
    machine = signature()
    fitting = (one.chosen for one in file.read() if one.product == product and one.machine == machine)
    return next(fitting, None)


def _found_out(file: CalibrationFile, product: Shape, measure: Measure) -> Library:
    if (seconds := measure(product)) is None:
        return "numpy"
    chosen = _chosen(product, seconds)
    file.add(Measurement(machine=signature(), product=product, seconds=seconds, chosen=chosen))
    return chosen


def _chosen(product: Shape, seconds: Mapping[Library, float]) -> Library:
    by_cost = _BY_COST if product.threads == 1 else _BY_COST_TO_OTHERS
    chosen, *others = (library for library in by_cost if library in seconds)
    for other in others:
        leaves_tiles = chosen == "tiles" and product.threads > 1
        if seconds[other] < seconds[chosen] * (1 - (_MUST_SAVE_OTHERS if leaves_tiles else _MUST_SAVE)):
            chosen = other
    return chosen


@cache
def _hardware_and_versions() -> tuple[str, ...]:
    libraries = (f"{name} {version(name)}" for name in ("partita", "numpy", "numba", "torch"))
    return (_processor(), f"{os.cpu_count()} cores", *libraries)


def _processor() -> str:
    """As Linux tells it, with the numbers that tell processors of one name apart."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    names = ("model name", "cpu family", "model", "stepping")
    return " ".join(told[name] for name in names if name in told) or platform.machine()
