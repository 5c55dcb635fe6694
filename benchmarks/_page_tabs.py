"""Open tabs of a live page as a process: argument ADDRESS, with its token.

A tab does what a browser's does, but draws nothing: it fetches the page once, holds one WebSocket, answers
its pings, and acknowledges what it has received. It offers compression, as browsers do.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, build_opener
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect

from benchmarks._worker import serve

_ACKNOWLEDGES_S: Final = 5.0
_UPDATE: Final = '42["update"'
_KEPT: Final = 200
"""Updates that are kept for `await_text`."""


class Tabs:
    """Tabs of one page, on a thread of their own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._open: list[Future[None]] = []
        self._updates = self._n_bytes = 0
        self._news = threading.Condition()
        self._newest: list[tuple[float, str]] = []  # when updates came, and their text

    def open(self, number: int) -> None:
        """Opens so many tabs, and returns when each has its page."""
        here = f"http://{urlsplit(self._address).netloc}"
        for _ in range(number):
            opener = build_opener(cookies := HTTPCookieProcessor())
            with opener.open(self._address, timeout=60.0) as answer:
                page = answer.read().decode()
            cookie = "; ".join(f"{one.name}={one.value}" for one in cookies.cookiejar)
            tab = self._tab(here, cookie, _query(page))
            self._open.append(asyncio.run_coroutine_threadsafe(tab, self._loop))

    def close(self) -> None:
        """Closes all tabs."""
        for tab in self._open:
            tab.cancel()
        self._open.clear()

    def await_text(self, text: str, *, since: float, timeout_s: float = 30.0) -> float:
        """Waits until a tab receives an update that has a text, and returns when (monotonic seconds).

        Raises:
            TimeoutError: no tab has received it within `timeout_s` seconds.
        """

        def found() -> float | None:
            return next((at for at, update in self._newest if at >= since and text in update), None)

        with self._news:
            at = self._news.wait_for(found, timeout_s)
            self._newest.clear()
        if at is None:
            raise TimeoutError(f"no tab has received {text!r} within {timeout_s:g} s")
        return at

    def counted(self) -> dict[str, float]:
        """Returns the updates and the bytes that all tabs have received, and this process's processor time.

        Raises:
            RuntimeError: a tab was closed by the server.
        """
        for tab in self._open:
            if tab.done():
                raise RuntimeError("the server has closed a tab") from tab.exception()
        return {"updates": self._updates, "n_bytes": self._n_bytes, "busy_s": time.process_time()}

    async def _tab(self, here: str, cookie: str, query: dict[str, str]) -> None:
        address = f"ws{here[4:]}/_nicegui_ws/socket.io/?{urlencode(query)}"
        headers = {"Cookie": cookie}
        async with connect(address, additional_headers=headers, origin=here, max_size=None) as socket:  # type: ignore[arg-type]
            await socket.recv()
            await socket.send("40")
            acknowledges = asyncio.create_task(_acknowledge(socket, query))
            try:
                async for message in socket:
                    assert isinstance(message, str)
                    await self._received(socket, message)
            finally:
                acknowledges.cancel()

    async def _received(self, socket: ClientConnection, message: str) -> None:
        self._n_bytes += len(message)
        if message.startswith(_UPDATE):
            self._updates += 1
            with self._news:
                self._newest = [*self._newest[-_KEPT:], (time.monotonic(), message)]
                self._news.notify_all()
        if message == "2":
            await socket.send("3")
        elif message.startswith("44"):
            raise RuntimeError(f"the server refuses a tab: {message}")


async def _acknowledge(socket: ClientConnection, query: dict[str, str]) -> None:
    """Sends now and then that all messages have come, so that the server does not keep them."""
    while True:
        await asyncio.sleep(_ACKNOWLEDGES_S)
        news: dict[str, Any] = {"client_id": query["client_id"], "next_message_id": 0}
        await socket.send("42" + json.dumps(["ack", news]))


def _query(page: str) -> dict[str, str]:
    """Returns what the script of a page sends to open its WebSocket."""
    found = re.search(r"query: (\{.*?\}),\n", page)
    assert found is not None, "the page does not say how its WebSocket is opened"
    given = ast.literal_eval(found[1])
    own = {"document_id": str(uuid4()), "tab_id": str(uuid4()), "EIO": "4", "transport": "websocket"}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (given | own).items()
    }


if __name__ == "__main__":
    serve(lambda: Tabs(sys.argv[1]))
