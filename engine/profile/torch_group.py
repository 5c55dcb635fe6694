"""Processes of PyTorch that train a module, as the one that started them sees them."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from partita.engine.profile.torch_player import PARTS, Start

MOST_START_S: Final = 300.0
MOST_TURN_S: Final = 300.0


class TorchFailed(Exception):
    """A form could not be run, and why."""


class TorchGroup:
    """One process in eager mode, or two that train together. Use it as a context manager.

    Args:
        folder: for files; with the job's in it.
        form: see `Start`.
        threads: of each process.
    """

    def __init__(self, folder: Path, form: str, *, threads: int = 1) -> None:
        self.form, self._folder, self._threads = form, folder, threads
        self._errors = folder / f"{form}, {threads}.errors"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Starts the processes. Raises TorchFailed if one cannot prepare its part."""
        try:
            for rank in range(1 if self.form == "eager" else PARTS):
                self._start(rank)
            self._answers(MOST_START_S)
        except BaseException:
            self._end()
            raise
        return self

    def _start(self, rank: int) -> None:
        meeting, job = self._folder / f"{self.form}.meeting", self._folder / "job"
        start = Start(str(job), self.form, self._threads, rank, str(meeting), sys.path)
        command = [sys.executable, "-m", "partita.engine.profile.torch_player"]
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        self._processes.append(process)
        self._tell(process, json.dumps(asdict(start)))

    def play(self, steps: int) -> tuple[list[float], list[float]]:
        """Plays steps, and returns the seconds and the losses. Raises TorchFailed if a process fails."""
        for process in self._processes:
            self._tell(process, str(steps))
        answers = self._answers(MOST_TURN_S)
        losses = next(one["losses"] for one in answers if one["losses"] is not None)
        return answers[0]["seconds"], losses

    def _tell(self, process: subprocess.Popen[bytes], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            raise TorchFailed(self._reason()) from None

    def _answers(self, most_s: float) -> list[dict[str, Any]]:
        """A line of each process, in their order."""
        found: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + most_s
        with selectors.DefaultSelector() as waiting:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                waiting.register(process.stdout, selectors.EVENT_READ, rank)
            while len(found) < len(self._processes):
                ready = waiting.select(max(until - time.monotonic(), 0.0))
                if not ready:
                    raise TorchFailed(f"no answer within {most_s:.0f} s")
                for key, _ in ready:
                    found[key.data] = self._answer(key.fileobj)
                    waiting.unregister(key.fileobj)
        return [found[rank] for rank in sorted(found)]

    def _answer(self, stream: Any) -> dict[str, Any]:
        line = stream.readline()
        if not line:
            raise TorchFailed(self._reason())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TorchFailed(answer["error"])
        return answer

    def _reason(self) -> str:
        """The last line that a process which ended wrote to standard error."""
        lines = self._errors.read_text(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return f"a process ended: {written[-1][:300]}" if written else "a process ended"

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
            process.wait()
        self._processes.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
