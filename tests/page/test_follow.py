"""A stream is followed as it grows, a half line included, and what is no record is left out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.page.follow import Follower
from partita.engine.watch.records import encode
from partita.engine.watch.state import State
from tests.draws import examples
from tests.watch.invented import Invented, digits_plan, stream

RECORDS = tuple(stream(digits_plan(), Invented(seconds=12.0)))
BYTES = b"".join(map(encode, RECORDS))


def whole() -> State:
    state = State()
    for record in RECORDS:
        state.add(record)
    return state


@settings(max_examples=examples(6))
@given(cuts=st.lists(st.integers(0, len(BYTES)), max_size=5))
def test_any_pieces_of_a_stream_lead_to_the_same_state(tmp_path_factory: object, cuts: list[int]) -> None:
    path = tmp_path_factory.mktemp("stream") / "stream"  # type: ignore[attr-defined]
    follower = Follower(path)
    assert not follower.read()
    for start, stop in pairwise(sorted({0, *cuts, len(BYTES)})):
        with path.open("ab") as file:
            file.write(BYTES[start:stop])
        assert follower.read() and not follower.read()
    assert follower.state == whole() and follower.skipped == 0
    assert follower.silent_s == 0.0 and follower.now_s == follower.state.at_s


def test_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(b"no json\n" + BYTES + b'{"type": "Unknown", "at_s": 1}\n\xff\xfe\n\n')
    follower = Follower(path)
    follower.read()
    assert follower.state == whole() and follower.skipped == 3


def test_a_shorter_file_is_another_run(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(BYTES)
    follower = Follower(path)
    follower.read()
    path.write_bytes(encode(RECORDS[0]))
    assert follower.read() and not follower.state.is_over and follower.state.run == RECORDS[0]
    assert follower.state.hosts == {} and follower.now_s >= 0.0
