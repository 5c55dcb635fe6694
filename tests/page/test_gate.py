"""Who has the token may look, nobody may change anything, and no other site gets anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from partita.engine.page.gate import Gate

TOKEN, PORT = "a-token_of-24-letters", 4711
COOKIE = f"partita-{PORT}={TOKEN}".encode()
HERE = f"127.0.0.1:{PORT}".encode()


def ask(
    path: str = "/",
    query: str = "",
    *,
    method: str = "GET",
    kind: str = "http",
    host: bytes = HERE,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> tuple[bool, list[MutableMapping[str, Any]]]:
    """Returns whether the application behind the gate was reached, and what was answered."""
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is read of a request")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", host), *headers],
    }
    if kind == "http":
        scope["method"] = method
    asyncio.run(Gate(app, token=TOKEN, port=PORT)(scope, receive, send))
    return bool(reached), sent


def refused(answer: tuple[bool, list[MutableMapping[str, Any]]]) -> int:
    reached, sent = answer
    assert not reached
    if sent[0]["type"] == "websocket.close":
        return int(sent[0]["code"])
    assert dict(sent[0]["headers"])[b"cache-control"] == b"no-store"
    assert TOKEN.encode() not in b"".join(message.get("body", b"") for message in sent)
    return int(sent[0]["status"])


@pytest.mark.parametrize("path", ["/", "/metrics", "/all", "/_nicegui/3/static/vue.js", "/none"])
@pytest.mark.parametrize("query", ["", "token=", "token=wrong", f"token={TOKEN}x", "tokens=" + TOKEN])
def test_nothing_is_reached_without_the_token(path: str, query: str) -> None:
    assert refused(ask(path, query)) == 401
    assert refused(ask(path, query, kind="websocket")) == 1008


def test_the_first_visit_is_sent_on_without_the_token_in_the_address() -> None:
    reached, sent = ask("/", f"token={TOKEN}&replica=1")
    headers = dict(sent[0]["headers"])
    assert not reached and sent[0]["status"] == 303 and headers[b"location"] == b"/?replica=1"
    cookie = headers[b"set-cookie"]
    assert cookie.startswith(COOKIE) and b"HttpOnly" in cookie and b"SameSite=Strict" in cookie
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert ask("/", headers=((b"cookie", cookie.partition(b";")[0]),)) == (True, [])


def test_an_address_that_leads_elsewhere_stays_here() -> None:
    _, sent = ask("//elsewhere.example/", f"token={TOKEN}")
    assert dict(sent[0]["headers"])[b"location"] == b"/elsewhere.example/"


def test_programs_bring_the_token_as_a_header_or_for_metrics_in_the_address() -> None:
    bearer = ((b"authorization", f"Bearer {TOKEN}".encode()),)
    assert ask("/metrics", headers=bearer) == (True, [])
    assert ask("/metrics", f"token={TOKEN}") == (True, [])
    assert refused(ask("/metrics", headers=((b"authorization", f"Basic {TOKEN}".encode()),))) == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    assert refused(ask("/", method=method, headers=((b"cookie", COOKIE),))) == 405


@pytest.mark.parametrize("host", [b"evil.example", b"127.0.0.1.evil.example:4711", b"", b"[::1", b"10.0.0.1"])
def test_a_name_that_resolves_to_this_machine_does_not_help_another_site(host: bytes) -> None:
    assert refused(ask(headers=((b"cookie", COOKIE),), host=host)) == 403


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_another_origin_is_refused_even_with_the_cookie(kind: str) -> None:
    for origin in (b"http://127.0.0.1:1", b"https://evil.example", b"null"):
        answer = ask(kind=kind, headers=((b"cookie", COOKIE), (b"origin", origin)))
        assert refused(answer) in (403, 1008)
    assert ask(kind=kind, headers=((b"cookie", COOKIE), (b"origin", b"http://" + HERE)))[0]


def test_a_cookie_that_is_none_is_refused() -> None:
    assert refused(ask(headers=((b"cookie", b"\x00=;;;\xff"),))) == 401
    assert refused(ask(headers=((b"cookie", f"partita-1={TOKEN}".encode()),))) == 401
