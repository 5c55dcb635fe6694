"""Questions to a host about its machine: what it is, whether it is quiet, how long a product takes there, or
a loop in each form of tiles.

A question and its answer travel as JSON in the payloads of a session's messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
import numpy as np

from partita.engine.launch.launcher import Launcher
from partita.engine.launch.pool.facts import machine_label
from partita.engine.profile.products import ProductMeasurement, busy, measure_product
from partita.engine.profile.signature import signature
from partita.engine.profile.threads import measure_shares
from partita.engine.profile.tiles import TileMeasurement, measure_tiles
from partita.engine.protocol.events import Received
from partita.engine.protocol.host import PassOn, RoleMachine
from partita.engine.protocol.messages import Heartbeat
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.session_messages import Play, Played
from partita.engine.run.hosted_backend import HostedBackend
from partita.engine.run.phases import OnPhase, silent
from partita.engine.runtime.task import Body, HostContext
from partita.engine.transport.payload import Payload
from partita.partitioner.cluster.processor import Processor, processor
from partita.partitioner.cluster.products import Choice, Products, ProductShape, Rule
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TiledLoop

TIMEOUT_S: Final = 600.0


class AskFacts(msgspec.Struct, frozen=True, tag=True):
    """Asks what the machine is."""


class AskBusy(msgspec.Struct, frozen=True, tag=True):
    """Asks whether others use the machine; the answer is a sentence, or None."""


class AskProduct(msgspec.Struct, frozen=True, tag=True):
    """Asks for the measurement of a product, or None; see `measure_product`."""

    shape: ProductShape
    usual: Choice


class AskTiles(msgspec.Struct, frozen=True, tag=True):
    """Asks for the measurement of an operation of a layer on patches, or None; see `measure_tiles`."""

    loop: TiledLoop


class AskShares(msgspec.Struct, frozen=True, tag=True):
    """Asks for the least work of each thread, or None; see `measure_shares`."""

    usual: ThreadShares
    rule: Rule
    threads: int
    source: str


Question: TypeAlias = AskFacts | AskBusy | AskProduct | AskTiles | AskShares


class Facts(msgspec.Struct, frozen=True):
    """Describes a machine.

    Args:
        label: its label; workers with the same one are on one machine.
        signature: under which its measurements are kept.
        processor: kind of its processor.
    """

    label: str
    signature: str
    processor: Processor


@dataclass(frozen=True)
class QuestionTask:
    """Task of a host that answers questions."""

    machine: int
    threads: ClassVar = 1
    rank: ClassVar = (0, 1)

    def role(self, link: HostContext) -> tuple[RoleMachine, Body]:
        """See the protocol `HostTask`."""
        return PassOn(), _QuestionBody(link)


class _QuestionBody(Body):
    def __init__(self, link: HostContext) -> None:
        self._link = link

    def carry_out(self, effect: Received, now: float) -> None:
        """Receives a question, and sends the answer to its sender."""
        match effect.message:
            case Play(step=step) if effect.sender == COORDINATOR:
                assert isinstance(effect.payload, Payload), "a question without words"
                question = msgspec.json.decode(effect.payload.to_bytes(), type=Question)
                encoded = np.frombuffer(msgspec.json.encode(answered(question)), np.uint8)
                self._link.send(COORDINATOR, Played(step, 0.0, 0, 0.0, 0.0, 0, 0), [encoded])
            case Heartbeat():
                return
            case other:
                raise ValueError(f"'{effect.sender}' sent a {type(other).__name__} to a host for questions")

    def close(self) -> None:
        """Ends nothing: questions are answered on the host's own thread."""


def answered(question: Question) -> Any:
    """Answers a question about the machine on which this process runs."""
    match question:
        case AskFacts():
            return Facts(machine_label(), signature(), processor())
        case AskBusy():
            return busy()
        case AskProduct(shape=shape, usual=usual):
            return measure_product(shape, usual)
        case AskTiles(loop=loop):
            return measure_tiles(loop)
        case AskShares(usual=shares, rule=rule, threads=threads, source=source):
            return measure_shares(shares, rule, threads=threads, source=source)


class Interview:
    """Hosts that answer questions. They take no cores while they wait."""

    def __init__(self, launcher: Launcher, hosts: int, *, on_phase: OnPhase = silent) -> None:
        """Starts the hosts.

        Raises:
            HostError: a host fails.
        """
        tasks = [QuestionTask(n) for n in range(hosts)]
        self._backend = HostedBackend(tasks, launcher, timeout_s=TIMEOUT_S, on_phase=on_phase)
        self._hosts, self._step = hosts, 0

    def facts(self) -> list[Facts]:
        """Returns the facts of each host's machine."""
        return [msgspec.json.decode(answer, type=Facts) for answer in self._ask(AskFacts())]

    def busy(self) -> str | None:
        """Returns why the first host's machine is not quiet, if it is not."""
        return msgspec.json.decode(self._ask(AskBusy())[0], type=str | None)

    def multiply(self, shape: ProductShape, usual: Choice) -> ProductMeasurement | None:
        """Measures a product on the first host."""
        answer = self._ask(AskProduct(shape, usual))[0]
        return msgspec.json.decode(answer, type=ProductMeasurement | None)

    def tiles(self, loop: TiledLoop) -> TileMeasurement | None:
        """Measures an operation of a layer on patches on the first host."""
        answer = self._ask(AskTiles(loop))[0]
        return msgspec.json.decode(answer, type=TileMeasurement | None)

    def shares(self, rule: Products, threads: int, source: str) -> ThreadShares | None:
        """Measures the least work of each thread on the first host."""
        answer = self._ask(AskShares(rule.threads, rule.rule, threads, source))[0]
        return msgspec.json.decode(answer, type=ThreadShares | None)

    def _ask(self, question: Question) -> Sequence[bytes]:
        words = np.frombuffer(msgspec.json.encode(question), np.uint8)
        self._step += 1
        answers = self._backend.play(Play(self._step, 0), [[words]] * self._hosts)
        return [answer.collected.to_bytes() if answer.collected else b"null" for answer in answers]

    def close(self) -> None:
        """Stops the processes that answer."""
        self._backend.close()


def interviewed(launcher: Launcher, hosts: int, *, on_phase: OnPhase = silent) -> list[Facts]:
    """Returns the facts of the machines of some hosts, which are started for this alone.

    Raises:
        HostError: a host fails.
    """
    with closing(Interview(launcher, hosts, on_phase=on_phase)) as interview:
        return interview.facts()
