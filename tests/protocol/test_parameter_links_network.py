"""The links of a part on a network that drops, repeats and reorders messages, beside shards that die."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import Message, ParameterLinks
from partita.engine.protocol.events import Received, Replaced, Send, Tick
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck
from tests.protocol.machines import BYTES, SHARDS

SPANS = {name: (start, stop) for name, start, stop in SHARDS}


@dataclass
class Shard:
    """A naive shard that counts steps: its value is the sum of the gradients that it applied, one a step."""

    incarnation: int = 0
    value: int = 0
    updates: int = 0
    applied: set[int] = field(default_factory=set)


@dataclass
class Bench:
    """Links, a part's vectors (one number for each shard), and a network of unordered letters.

    `missing` counts for each shard what others have pushed: beside it a part has all of its own steps.
    """

    links: ParameterLinks
    shards: dict[str, Shard]
    letters: list[tuple[str, Message, int]] = field(default_factory=list)
    answers: list[tuple[str, Message, bytes | None, int]] = field(default_factory=list)
    vectors: dict[str, dict[str, int]] = field(
        default_factory=lambda: {n: dict.fromkeys(BYTES, 0) for n in NAMES}
    )
    steps: int = 0

    def act(self, effects: Any) -> None:
        for effect in list(effects):
            if isinstance(effect, Send):
                self.letters.append((effect.to, effect.message, self.vectors["in_flight"][effect.to]))
                continue
            if not isinstance(effect, SwapBuffers | Install):
                continue
            name = next(n for n, span in SPANS.items() if span == (effect.span.start, effect.span.stop))
            if isinstance(effect, SwapBuffers):
                self.vectors["in_flight"][name] = self.vectors["accumulated"][name]
                self.vectors["accumulated"][name] = 0
            else:
                own = sum(self.vectors[vector][name] for vector in effect.unheld)
                self.vectors["parameters"][name] = self.vectors["staged"][name] + own
        self.links.validate()

    def step(self) -> None:
        for name in BYTES:
            self.vectors["accumulated"][name] += 1
            self.vectors["parameters"][name] += 1
        self.act(self.links.computed(self.steps, self.steps, 0.0))
        self.steps += 1

    def deliver(self, letter: tuple[str, Message, int]) -> None:
        """A shard takes a letter; its answer is under way."""
        name, message, gradient = letter
        shard = self.shards[name]
        if isinstance(message, Push):
            if message.sequence not in shard.applied:
                shard.applied.add(message.sequence)
                shard.value += gradient
                shard.updates += 1
            ack = PushAck(shard.incarnation, message.incarnation, message.sequence, shard.updates, 0)
            self.answers.append((name, ack, None, 0))
        elif isinstance(message, Fetch):
            counts = (message.request, shard.incarnation, shard.updates, shard.updates, 0, None)
            answer = Parameters(*counts, len(shard.applied))
            self.answers.append((name, answer, BYTES[name], shard.value))

    def take(self, answer: tuple[str, Message, bytes | None, int], now: float) -> None:
        name, message, payload, value = answer
        for effect in self.links.receive(Received(name, 0, message, payload), now):
            if isinstance(effect, Stage):
                self.vectors["staged"][name] = value
            else:
                self.act([effect])
        self.links.validate()


NAMES = ("parameters", "staged", "accumulated", "in_flight")
ACTIONS = (
    "step",
    "step",
    "pull",
    "push",
    "deliver",
    "deliver",
    "take",
    "take",
    "drop",
    "tick",
    "restart",
    "other",
)


@given(st.data())
def test_whatever_the_network_does_every_step_is_pushed_once_and_no_own_step_is_missing(
    data: st.DataObject,
) -> None:
    """Drops, repeats, any order, shards that restart without loss, pushes of others (1000 each).

    Whenever a step begins, the parameters hold every step of the part so far, once; in the end the shards do.
    """
    alone = data.draw(st.booleans())
    links = ParameterLinks(incarnation=0, streams=SHARDS, alone=alone, stateful=data.draw(st.booleans()))
    bench, now = Bench(links, {name: Shard() for name in BYTES}), 0.0
    bench.act(links.pull(now))
    for _ in range(data.draw(st.integers(1, 80))):
        action = data.draw(st.sampled_from(ACTIONS))
        if action == "step" and links.has_room(4):
            bench.act(links.install())
            own = [value % 1000 for value in bench.vectors["parameters"].values()]
            assert own == [bench.steps, bench.steps]
            bench.step()
        elif action in ("pull", "push"):
            bench.act(getattr(links, action)(now))
        elif action in ("deliver", "drop") and bench.letters:
            letter = data.draw(st.sampled_from(bench.letters))
            if data.draw(st.booleans()):
                bench.letters.remove(letter)  # otherwise it will come again
            if action == "deliver":
                bench.deliver(letter)
        elif action == "take" and bench.answers:
            bench.take(bench.answers.pop(data.draw(st.integers(0, len(bench.answers) - 1))), now)
        elif action == "tick":
            now += 20.0
            bench.act(links.receive(Tick(), now))
        elif action == "restart":
            name = data.draw(st.sampled_from(sorted(BYTES)))
            bench.shards[name].incarnation += 1
            if data.draw(st.booleans()):
                bench.act(links.receive(Replaced(name, bench.shards[name].incarnation), now))
        elif action == "other" and not alone:
            shard = bench.shards[data.draw(st.sampled_from(sorted(BYTES)))]
            shard.value, shard.updates = shard.value + 1000, shard.updates + 1
    bench.act(links.drain(now))
    for _ in range(8):  # the network is fair again
        while bench.letters or bench.answers:
            if bench.letters:
                bench.deliver(bench.letters.pop(0))
            else:
                bench.take(bench.answers.pop(0), now)
        now += 20.0
        bench.act(links.receive(Tick(), now))
    assert links.drained
    assert [shard.value % 1000 for shard in bench.shards.values()] == [bench.steps, bench.steps]
