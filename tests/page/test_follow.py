"""A stream is followed as it grows, and a page knows for how long nothing has come."""

from __future__ import annotations

from pathlib import Path

from partita.engine.page.follow import Follower
from partita.engine.watch.records import encode
from partita.engine.watch.state import State
from tests.watch.invented import Invented, digits_plan, stream


def test_a_stream_is_followed_to_its_end(tmp_path: Path) -> None:
    records = tuple(stream(digits_plan(), Invented(seconds=6.0)))
    path = tmp_path / "stream"
    lines = b"".join(map(encode, records))
    path.write_bytes(lines[:-40])
    follower = Follower(path)
    try:
        assert follower.read() and not follower.read()
        assert follower.silent_s > 0.0 and follower.now_s > follower.state.at_s
        with path.open("ab") as file:
            file.write(lines[-40:])
        assert follower.read()
        state = State()
        for record in records:
            state.add(record)
        assert follower.state == state and state.is_over
        assert follower.silent_s == 0.0 and follower.now_s == state.at_s
    finally:
        follower.close()
