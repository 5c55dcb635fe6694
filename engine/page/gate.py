"""The gate in front of the page: who has the token may look, and nobody may change anything.

It stands before every route, those of libraries included, as a plain ASGI application: no route can be added
that it does not guard. It knows neither the page nor its server.

- The first visit brings the token in the address, and is sent on to the same address without it; from then on
  a cookie has it, which scripts cannot read and other sites cannot send.
- Programs send the token as `Authorization: Bearer TOKEN`.
- Hosts and origins other than loopback are refused, so that no other site's script reaches the page by a name
  that resolves to this machine.
- Methods other than GET and HEAD are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_ALWAYS: Final = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class Gate:
    """Lets through to an application whoever has its token."""

    def __init__(self, app: App, *, token: str, port: int) -> None:
        """Guards `app`, which is served at a port of this machine."""
        self._app, self._token = app, token
        self._cookie: Final = f"partita-{port}"  # cookies of a machine are shared by its ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request or a connection, or hands it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        by_address = b"token=" in scope["query_string"]
        if refusal is None and by_address and scope["type"] == "http" and scope["path"] != "/metrics":
            await self._sent_on(scope, send)
            return
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, *refusal)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        """Returns status and sentence of a refusal; None for whoever may pass."""
        if _name_of(f"//{headers.get(b'host', '')}") not in _LOOPBACK:
            return 403, "This page is served to this machine alone; open it at 127.0.0.1."
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != headers.get(b"host"):
            return 403, "This page is not read by other sites."
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"}:
            return 405, "This page only shows; it takes GET and HEAD."
        if not any(
            compare_digest(given.encode(), self._token.encode()) for given in self._given(scope, headers)
        ):
            return 401, "The token is missing or wrong; open the address that the run has printed."
        return None

    def _given(self, scope: Scope, headers: dict[bytes, str]) -> list[str]:
        """Returns the tokens that a request brings: in its address, its cookie, its header."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        found = [value for name, value in query if name == "token"]
        try:
            cookie = SimpleCookie(headers.get(b"cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        found += [cookie.value] if cookie else []
        scheme, _, value = headers.get(b"authorization", "").partition(" ")
        return [*found, value.strip()] if scheme.lower() == "bearer" else found

    async def _sent_on(self, scope: Scope, send: Send) -> None:
        """Sets the cookie, and sends the browser to the address without the token."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        to = quote("/" + scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
        cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", to.encode("latin-1")), (b"set-cookie", cookie.encode("latin-1")), *_ALWAYS]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _name_of(address: str) -> str:
    """Returns the name of the host in an address; nothing if it has none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


async def _answer(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_ALWAYS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode() + b"\n"})
