"""The ways to start hosts beyond this process: the values of `train(on=)`, `Session(hosts=)` and `--on`.

`ON` has a row for each way. A row's class is what users give in Python; its text is what they write on a
command line, and may write in Python too. To add a way, write its class and its `opened` function in a
module of its own, and add a row here, in `On`, and in the docstrings of `train` and `OnOptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from partita.engine.launch.own_pool import launch_on
from partita.engine.launch.pool.pool import Pool
from partita.engine.launch.ray.opening import opened_ray
from partita.engine.launch.ray.settings import Ray
from partita.engine.launch.remote_workers import RSH, HostFile, opened_hosts
from partita.engine.launch.request import Launching, Log, Opening
from partita.engine.launch.symmetric.environment import Environment, begin_job, end_job, opened_job

On: TypeAlias = Pool | Environment | HostFile | Ray
"""The classes of all ways."""


@dataclass(frozen=True)
class OnOptions:
    """Options that go with a way to start hosts that is written as a text.

    Args:
        on: where hosts are started: at the workers of a pool, tcp://HOST:PORT; at the ranks of the job that
            srun, mpirun, torchrun or Kubernetes has started, env; on the machines of a hostfile, by ssh,
            hostfile:PATH; on a Ray cluster, ray or for example ray:STRICT_SPREAD; processes of this machine
            if not given.
        keys: folder of keys; the user's own if not given.
        pool_workers: with --on tcp://HOST:PORT, workers for which the run waits.
        port: with --on env, the port of rank 0; a chosen one if not given.
        interface: with --on env or hostfile:PATH, the network interface of this machine on which others
            reach it.
        rsh: with --on hostfile:PATH, the command that runs another one on a machine.
        remote_python: with --on hostfile:PATH, Python on the machines; the path of this one if not given.
    """

    on: str | None = None
    keys: Path | None = None
    pool_workers: int = 1
    port: int | None = None
    interface: str | None = None
    rsh: str = RSH
    remote_python: str | None = None


@dataclass(frozen=True)
class OnWay:
    """A way to start hosts.

    Args:
        written: how its text is written, for messages.
        kind: the class of its settings.
        parse: returns the settings that a text and the options beside it mean, or None where the text means
            another way.
        opened: opens it for runs; its arguments are the settings and how to show a line.
        begin: is called with the settings before a run is prepared. A process that is not to prepare the
            run at all, but to serve it, does so here, and ends with SystemExit.
        end: is called when a command ends, and ends what lasts longer than a run.
    """

    written: str
    kind: type
    parse: Callable[[str, OnOptions], Any]
    opened: Callable[[Any, Log], Opening]
    begin: Callable[[Any], None] = lambda settings: None
    end: Callable[[], None] = lambda: None


def _pool_of(text: str, options: OnOptions) -> Pool | None:
    if not text.startswith("tcp://"):
        return None
    return Pool(text, keys=options.keys, workers=options.pool_workers)


@contextmanager
def _opened_pool(pool: Pool, log: Log) -> Iterator[Launching]:
    yield partial(launch_on, pool)


def _environment_of(text: str, options: OnOptions) -> Environment | None:
    if text != "env":
        return None
    return Environment(keys=options.keys, port=options.port, interface=options.interface)


def _ray_of(text: str, options: OnOptions) -> Ray | None:
    name, _, strategy = text.partition(":")
    if name != "ray":
        return None
    return Ray(strategy=strategy) if strategy else Ray()  # type: ignore[arg-type] # checked there


def _hostfile_of(text: str, options: OnOptions) -> HostFile | None:
    kind, _, path = text.partition(":")
    if kind != "hostfile":
        return None
    if not path:
        raise ValueError("hostfile: has no path; write hostfile:PATH")
    return HostFile(path, rsh=options.rsh, python=options.remote_python, interface=options.interface)


ON: Final = (
    OnWay("tcp://HOST:PORT", Pool, _pool_of, _opened_pool),
    OnWay("env", Environment, _environment_of, opened_job, begin_job, end_job),
    OnWay("ray", Ray, _ray_of, opened_ray),
    OnWay("hostfile:PATH", HostFile, _hostfile_of, opened_hosts),
)
"""All ways; the first whose text or class fits is taken."""


def on_of(value: object, options: OnOptions | None = None, *, what: str = "on is", others: str = "") -> On:
    """Returns the settings that a value of `on=` means.

    Args:
        value: settings, or a text.
        options: go with a text.
        what: begin of the message.
        others: what else the argument may be, for the message.

    Raises:
        ValueError: it means no way to start hosts, or a setting is out of range.
    """
    if isinstance(value, str):
        for way in ON:
            found = way.parse(value, options or OnOptions())
            if found is not None:
                return cast(On, found)
    elif isinstance(value, tuple(way.kind for way in ON)):
        return cast(On, value)
    texts = ", ".join(f"'{way.written}'" for way in ON)
    classes = ", ".join(f"{way.kind.__name__}(...)" for way in ON)
    raise ValueError(f"{what} {value!r}; give one of {others}{texts}, {classes}")


def begin(settings: On) -> None:
    """Is called before a run is prepared; does not return where this process serves the run instead.

    Raises:
        SystemExit: it has served, see `OnWay`.
    """
    _way_of(settings).begin(settings)


def end(settings: On) -> None:
    """Is called when this process needs no hosts any more; otherwise the same happens when it ends."""
    _way_of(settings).end()


def opened(settings: On, log: Log) -> Opening:
    """Opens a way to start hosts, as a context manager that yields a function from request to launcher.

    Raises:
        RunFailed: there are no hosts to be had.
        FileNotFoundError, ValueError, InsecureKeyFile, MalformedKeyFile: a key cannot be read.
        OSError: an address cannot be used.
    """
    return _way_of(settings).opened(settings, log)


def _way_of(settings: On) -> OnWay:
    return next(way for way in ON if isinstance(settings, way.kind))
