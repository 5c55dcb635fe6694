"""The user's file: ordinary Python with a function `network()`, for training `data()`, perhaps a `driver()`.

`data()` returns a dictionary of arrays by the names of inputs and targets, or two of them, to train on and to
hold out; `driver()` a driver with its settings. An error of the user's own code is reported with the user's
own lines.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import cloudpickle

from partita import layers, partitioner
from partita.engine.cli.user_code_error import UserCodeError
from partita.engine.drivers import Driver
from partita.engine.protocol.failure import report_of
from partita.engine.run.data import Data
from partita.layers.network import Network


@dataclass(frozen=True)
class UserFile:
    """A file that was run as a module.

    Args:
        path: path as the user wrote it.
        module: the module.
    """

    path: Path
    module: ModuleType

    @classmethod
    def load(cls, path: Path) -> Self:
        """Runs a file. Its functions are sent to hosts by value, so hosts need not find the file.

        Raises:
            FileNotFoundError: the file is missing.
            ValueError: its name does not end in .py.
            UserCodeError: its code raised.
        """
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}; give the path of a Python file with network()")
        spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path.resolve())
        if spec is None or spec.loader is None:
            raise ValueError(f"{path} is not a Python file; its name must end in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, str(path.parent.resolve()))
        with _users_code(path, "the file"):
            spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)
        return cls(path, module)

    @property
    def has_data(self) -> bool:
        """Returns whether there is a function `data()`."""
        return callable(getattr(self.module, "data", None))

    def network(self) -> Network:
        """Returns the network of the file's `network()`.

        Raises:
            ValueError: there is no such function, or it returns something else.
            UserCodeError: it raised.
        """
        found = self._call("network")
        if not isinstance(found, Network):
            raise ValueError(
                f"network() in {self.path} returns a {type(found).__name__}; return a partita.layers.Network"
            )
        return found

    def data(self) -> tuple[Data, Data | None]:
        """Returns the data of the file's `data()`: to train on, and to hold out.

        Raises:
            ValueError: there is no such function, or it returns something else.
            UserCodeError: it raised.
        """
        given = self._call("data")
        if not isinstance(given, tuple | list):
            return given, None
        if len(given) != 2:
            raise ValueError(
                f"data() in {self.path} returns {len(given)} things; return one dictionary, or two"
            )
        return given[0], given[1]

    def driver(self) -> Driver | None:
        """Returns the driver of the file's `driver()`; None where there is no such function.

        Raises:
            ValueError: it returns something else.
            UserCodeError: it raised.
        """
        if not callable(getattr(self.module, "driver", None)):
            return None
        found = self._call("driver")
        if not isinstance(found, Driver) or not is_dataclass(type(found)):
            raise ValueError(
                f"driver() in {self.path} returns a {type(found).__name__}; return a driver, a dataclass "
                "with its settings"
            )
        return found

    def _call(self, name: str) -> Any:
        function = getattr(self.module, name, None)
        if not callable(function):
            raise ValueError(f"{self.path} has no function {name}(); define one")
        return self.called(function, f"{name}()")

    def called(self, function: Callable[[], Any], what: str) -> Any:
        """Calls a function of the file, which errors name so. Raises UserCodeError where it raises."""
        with _users_code(self.path, what):
            return function()

    def evaluated(self, expression: str) -> Any:
        """Returns the value of an expression that could stand at the end of the file.

        Raises:
            UserCodeError: it raises, or is no expression.
        """
        return self.called(lambda: eval(expression, vars(self.module)), expression)


@contextmanager
def _users_code(path: Path, what: str) -> Iterator[None]:
    """Reports an error of the user's code with the user's own lines, without Partita's above them."""
    try:
        yield
    except SyntaxError as error:
        raise UserCodeError(f"{error.filename}, line {error.lineno}: {error.msg}; correct it") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [n for n, frame in enumerate(frames) if Path(frame.filename) == path.resolve()]
        where = f"{path}, line {frames[own[-1]].lineno}" if own else str(path)
        if _is_ours(frames[-1].filename) and isinstance(error, ValueError | TypeError):
            # A mistake in a declaration, whose message names the next step.
            raise UserCodeError(f"{where}: {error}") from error
        failure = UserCodeError(f"{where}: {what} raised {report_of(error).reason}")
        failure.add_note("".join(traceback.format_list(frames[own[0] if own else 0 :])).rstrip())
        raise failure from error


def _is_ours(filename: str) -> bool:
    """Returns whether a file belongs to the packages in which networks are declared and cut."""
    found = Path(filename).resolve()
    return any(found.is_relative_to(Path(package.__path__[0]).resolve()) for package in (layers, partitioner))
