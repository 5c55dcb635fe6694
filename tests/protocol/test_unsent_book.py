"""The book of what compressed pushes lacked: who is asked, who has to wait, and who is given up."""

from __future__ import annotations

from typing import Any

from partita.engine.protocol.checkpoint_messages import AskUnsent, Unsent
from partita.engine.protocol.events import Persist, Received, Refuse, Send
from partita.engine.protocol.message_form import MessageForm
from partita.engine.protocol.messages import PushAck
from partita.engine.protocol.shard_effects import KeepUnsent, ShardRanges, WriteFile
from partita.engine.protocol.unsent_book import ASK_S, GIVE_UP_S, UnsentBook


class Two:
    """A compressor that keeps two vectors."""

    state_names = ("residual", "velocity")


FORM = MessageForm(Two(), ((3,),), 4)
OWN = ShardRanges("shard 0", 0, {0: (0, 3)}, messages={0: FORM})
SEEN = {"part 0.0": (0, 4), "part 1.0": (2, -1), "part 2.0": (-1, -1)}


def begun() -> tuple[UnsentBook, list[Any]]:
    book = UnsentBook(OWN)
    return book, book.begin(Persist(7, 0, 5), SEEN, 10.0)


def answer(part: str, incarnation: int, pushes: int, *, n_bytes: int = 24) -> list[Any]:
    return [Received(part, incarnation, message := Unsent(7, incarnation, pushes), bytes(n_bytes)), message]


def ack(part: str) -> Send:
    return Send(part, PushAck(0, 0, 5, 6, 0))


def test_each_part_is_asked_for_the_pushes_in_the_file() -> None:
    book, effects = begun()
    assert effects == [Send("part 0.0", AskUnsent(0, 7, 0, 5)), Send("part 1.0", AskUnsent(0, 7, 2, 0))]
    assert book.tick(10.0 + ASK_S / 2) == []
    assert book.tick(10.0 + ASK_S) == effects, "they may be lost"


def test_the_file_is_written_after_the_last_answer_and_only_then_pushes_are_acknowledged() -> None:
    book, _ = begun()
    held = ack("part 0.0")
    assert book.hold("part 0.0", held) == []
    first = answer("part 0.0", 0, 5)
    kept, released = book.take(*first)
    assert kept == KeepUnsent("part 0.0", OWN.span("unsent", 0), first[0].payload) and released == held
    assert book.take(*first) == [], "a duplicate"
    assert book.hold("part 0.0", held) == [held], "it has answered"
    assert book.take(*answer("part 1.0", 2, 0))[1:] == [WriteFile(7)]
    book.validate()


def test_an_answer_of_another_size_or_of_other_pushes_is_refused() -> None:
    book, _ = begun()
    for wrong in (answer("part 0.0", 0, 5, n_bytes=12), answer("part 0.0", 0, 4)):
        (refused,) = book.take(*wrong)
        assert isinstance(refused, Refuse) and "has 24 bytes after 5 pushes" in refused.reason


def test_nobody_waits_for_a_part_that_does_not_answer() -> None:
    book, _ = begun()
    held = ack("part 1.0")
    book.hold("part 1.0", held)
    assert book.tick(10.0 + GIVE_UP_S) == [WriteFile(7), held]
    assert book.take(*answer("part 0.0", 0, 5)) == []
    book.validate()


def test_a_file_without_parts_is_written_at_once() -> None:
    assert UnsentBook(OWN).begin(Persist(3, 0, 0), {}, 0.0) == [WriteFile(3)]
