"""The server of the page: a process of its own that follows a run's stream and shows it in browsers.

NiceGUI keeps browsers up to date: each has an element for each panel, and is sent those that changed. A panel
is rendered once for all browsers. The run is not asked for anything: it writes its stream as it always does,
so browsers cost it nothing but the processor time of this process, which steps back for others (`os.nice`),
and sends each of many browsers news less often, unless other hosts are waited for than before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

import psutil
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse
from nicegui import Client, ui

from partita.engine.page.follow import Follower
from partita.engine.page.frozen import freeze, frozen_page, script, style, title_of
from partita.engine.page.gate import Gate
from partita.engine.page.panels import PANELS, Panels
from partita.engine.page.turns import SHOW_EVERY_S, Turn
from partita.engine.transport.sockets import browser_listener
from partita.engine.watch.prometheus import CONTENT_TYPE, metrics_text
from partita.engine.watch.records import MalformedRecord

READ_EVERY_S: Final = 0.5
LAST_S: Final = 2.0
"""Seconds for which browsers can fetch the end of a run before its server ends."""
_NICE: Final = 10
"""Niceness of the process, by which it steps back for others."""


@dataclass(kw_only=True)
class Serving:
    """Settings of a server.

    Args:
        stream: file of the stream.
        port: of loopback; 0 for any free one.
        save: file of the frozen page; None for none.
        until_pid: process with which the server ends, once the page is frozen; None to serve until Ctrl-C.
        ready: called with the address when browsers may come.
        token: of this server.
    """

    stream: Path
    port: int = 0
    save: Path | None = None
    until_pid: int | None = None
    ready: Callable[[str], None] = print
    token: str = field(default_factory=lambda: token_urlsafe(24), repr=False)


class PageServer:
    """One run on one port."""

    def __init__(self, serving: Serving) -> None:
        """Opens the stream and binds the port, so that its number is known.

        Raises:
            OSError: the file cannot be read, or the port is taken.
        """
        self._serving = serving
        self._follower = Follower(serving.stream)
        self._panels = Panels(self._follower.state)
        self._socket = browser_listener(serving.port)
        self.port: Final[int] = self._socket.getsockname()[1]
        self._owner = None if serving.until_pid is None else psutil.Process(serving.until_pid)
        self._frozen = self._visited = False

    @property
    def address(self) -> str:
        """The address to be opened, with its token."""
        return f"http://127.0.0.1:{self.port}/?token={self._serving.token}"

    def serve(self) -> None:
        """Serves until Ctrl-C, or until the run's process has ended."""
        _step_back()
        app = self._app()
        gate = Gate(app, token=self._serving.token, port=self.port)
        quiet = {"access_log": False, "log_level": "error", "server_header": False, "date_header": False}
        # Compressing each browser's messages anew costs more than sending them over loopback.
        bare = {"ws_per_message_deflate": False}
        server = uvicorn.Server(uvicorn.Config(gate, **quiet, **bare, timeout_graceful_shutdown=2))
        self._server = server
        server.run(sockets=[self._socket])

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=self._lifespan)

        @app.get("/metrics")
        async def metrics() -> PlainTextResponse:
            return PlainTextResponse(metrics_text(self._follower.state), media_type=CONTENT_TYPE)

        @app.get("/all")
        async def everything() -> HTMLResponse:
            return HTMLResponse(frozen_page(self._follower.state))

        ui.page("/", title="Partita")(self._browser)
        ui.run_with(app, tailwind=False, show_welcome_message=False, reconnect_timeout=10.0)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Any) -> Any:
        self._read()
        following = asyncio.create_task(self._follow())
        self._serving.ready(self.address)
        yield
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following

    async def _follow(self) -> None:
        """Reads the stream; freezes the page when the run ends, or its process is gone."""
        while True:
            await asyncio.sleep(READ_EVERY_S)
            self._read()
            is_over = self._follower.state.is_over or self._is_alone()
            if is_over and not self._frozen:
                self._freeze()
                if self._owner is not None:
                    await asyncio.sleep(LAST_S if self._visited else 0.0)
                    self._server.should_exit = True

    def _is_alone(self) -> bool:
        """Returns whether the process of the run is gone."""
        try:
            return self._owner is not None and self._owner.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def _read(self) -> None:
        try:
            self._follower.read()
        except (OSError, MalformedRecord) as error:
            self._panels.note = f"The stream cannot be read: {error}"

    def _freeze(self) -> None:
        self._frozen = True
        if self._serving.save is None:
            return
        try:
            kept = freeze(self._follower.state, self._serving.save)
        except OSError as error:
            self._panels.note = f"The page was not kept: {error}"
        else:
            self._panels.note = f"This page is kept in {kept}, which needs no server."

    def _browser(self) -> None:
        """Builds the page of one browser."""
        self._visited = True
        ui.add_head_html(f"<style>{style()}</style>")
        ui.page_title(title_of(self._follower.state))
        shown = self._rendered()
        with ui.element("div").classes("panels"):
            places = {
                name: ui.html(shown[name], sanitize=False, tag="section")
                .props(f"id=panel-{name}")
                .classes("panel")
                for name in PANELS
            }
        ui.add_body_html(f"<script>addEventListener('load', () => {{{script()}}})</script>")

        turn = Turn()

        def refresh() -> None:
            waited_for = [wait.on for wait in self._follower.state.waits]
            browsers, is_over = len(Client.instances), self._frozen
            if not turn.is_now(time.monotonic(), browsers=browsers, waited_for=waited_for, is_over=is_over):
                return
            for name, html in self._rendered().items():
                if places[name].content != html:
                    places[name].set_content(html)

        ui.timer(SHOW_EVERY_S, refresh)

    def _rendered(self) -> dict[str, str]:
        if self._panels.state is not self._follower.state:  # another run writes the file
            self._panels, self._frozen = Panels(self._follower.state), False
        return self._panels.render(self._follower.now_s, silent_s=self._follower.silent_s)


def _step_back() -> None:
    """Lets other processes go first, also where Linux schedules a session's processes as one (autogroup)."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    if os.getsid(0) == os.getpid():  # a session of its own, as a run starts it
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_NICE), encoding="ascii")
