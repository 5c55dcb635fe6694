"""The page in Chromium: all panels, nothing from elsewhere, light and dark, a telephone, keys, a stall."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from partita.engine.page.frozen import freeze
from partita.engine.page.panels import PANELS
from partita.engine.watch.records import Record, Waits, encode
from partita.engine.watch.state import State
from tests.page.conftest import served
from tests.watch.invented import Invented, digits_plan, stream

pytestmark = pytest.mark.slow
SIZES = [(1400, "light"), (1400, "dark"), (1000, "light"), (400, "light"), (400, "dark")]


def records(*, ends: bool = False) -> list[Record]:
    return list(stream(digits_plan(), Invented(seconds=50.0, ends=ends)))


def write(path: Path, found: list[Record], *, mode: str = "wb") -> Path:
    with path.open(mode) as file:
        file.write(b"".join(map(encode, found)))  # type: ignore[arg-type]
    return path


class Visit:
    """A page in a browser, with all that went wrong on it and all that it asked for."""

    def __init__(self, browser: Any, address: str, *, width: int = 1400, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.goto(address)
        self.page.locator("#panel-plan svg").first.wait_for()

    def check(self, host: str) -> None:
        assert self.faults == []
        assert {urlsplit(url).netloc for url in self.asked if not url.startswith("data:")} <= {host}
        wide, room = self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= room, f"{wide} px of page in a window of {room} px"
        self.context.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Any:
    path = write(tmp_path_factory.mktemp("stream") / "records-1.jsonl", records())
    with served(path) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_panel_is_there_and_fits(chromium: Any, address: str, width: int, scheme: str) -> None:
    visit = Visit(chromium, address, width=width, scheme=scheme)
    assert "token" not in visit.page.url
    for name in PANELS:
        assert visit.page.locator(f"#panel-{name}").is_visible()
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    paper = visit.page.evaluate("getComputedStyle(document.querySelector('#panel-lanes svg rect')).fill")
    channels = [int(one) for one in ground[4:-1].split(",")]
    assert (max(channels) < 60) == (scheme == "dark") and paper != "rgb(0, 0, 0)"
    visit.check(urlsplit(address).netloc)


def test_the_switch_turns_the_dark_on_and_stays(chromium: Any, address: str) -> None:
    visit = Visit(chromium, address)
    of_paper = "getComputedStyle(document.querySelector('#panel-lanes svg rect')).fill"
    light = visit.page.evaluate(of_paper)
    visit.page.locator("[data-theme]").click()
    dark = visit.page.evaluate(of_paper)
    assert dark != light
    visit.page.reload()
    visit.page.locator("#panel-lanes svg").first.wait_for()
    visit.page.wait_for_function(f"{of_paper} === '{dark}'")
    visit.check(urlsplit(address).netloc)


def test_keys_and_touch_reach_what_a_tooltip_says(chromium: Any, address: str) -> None:
    visit = Visit(chromium, address)
    page = visit.page
    page.locator("#panel-lanes svg[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    said = page.locator("#tip").inner_text()
    assert "local0: " in said and "from" in said
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip").inner_text() != said
    page.keyboard.press("Escape")
    assert page.locator("#tip").inner_text() == ""
    page.keyboard.press("+")
    wide = page.evaluate("document.querySelector('#panel-lanes .chart').scrollWidth")
    assert wide > 1.5 * page.evaluate("document.querySelector('#panel-lanes .chart').clientWidth")
    visit.check(urlsplit(address).netloc)


def test_a_stalled_host_is_named_in_a_page_that_is_open(chromium: Any, tmp_path: Path) -> None:
    found = records()
    waits = next(n for n, record in enumerate(found) if isinstance(record, Waits) and len(record.waits) > 1)
    path = write(tmp_path / "records-1.jsonl", found[:waits])
    with served(path) as here:
        visit = Visit(chromium, here)
        assert "holds up" not in visit.page.locator("#panel-waits").inner_text()
        stalled = found[waits]
        assert isinstance(stalled, Waits)
        began_s = min(wait.since_s for wait in stalled.waits if wait.on == "part 1.1")
        assert stalled.at_s - began_s <= 3.0  # two seconds are left for reading and showing
        write(path, [stalled], mode="ab")
        visit.page.get_by_text("holds up").first.wait_for(timeout=20_000)
        assert "part 1.1 holds up" in visit.page.locator("#panel-waits").inner_text()
        visit.check(urlsplit(here).netloc)


def test_the_kept_page_needs_no_server(chromium: Any, tmp_path: Path) -> None:
    state = State()
    for record in records(ends=True):
        state.add(record)
    kept = freeze(state, tmp_path / "kept.html")
    visit = Visit(chromium, kept.as_uri(), width=400)
    assert visit.asked == [kept.as_uri()]
    assert "complete" in visit.page.locator("#panel-head").inner_text()
    visit.check("")


def test_metrics_and_nothing_but_reading(address: str) -> None:
    parts = urlsplit(address)
    token = parse_qs(parts.query)["token"][0]

    def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(parts.netloc)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    bearer = {"Authorization": f"Bearer {token}"}
    status, text = ask("GET", "/metrics", **bearer)
    assert status == 200 and "partita_run_info" in text
    assert ask("GET", "/metrics")[0] == 401 and ask("GET", "/metrics", Authorization="Bearer x")[0] == 401
    assert ask("GET", "/all", **bearer)[0] == 200
    for path in ("/", "/metrics", "/all", "/_nicegui_ws/socket.io/"):
        assert ask("POST", path, **bearer)[0] == 405
    assert ask("GET", "/openapi.json", **bearer)[0] == 404
