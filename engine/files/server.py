"""The host `files`: its thread in the coordinator's process, its mailbox, and its hands.

It never holds up the coordinator: reads are answered on this thread, and writes, whose syncs take long, are
done on another one, in order.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from partita.engine.files.access import FilesAddress, marked
from partita.engine.files.background import BackgroundQueue
from partita.engine.files.catalogue import Catalogue
from partita.engine.files.push_log import note_pushes
from partita.engine.parameters.files import AtomicFile, open_plain
from partita.engine.protocol.events import Refuse, Send, Tick
from partita.engine.protocol.file_messages import FileChunk
from partita.engine.protocol.file_server import (
    Admitted,
    Append,
    Appended,
    Connect,
    Drop,
    FileServer,
    Find,
    Found,
    NotePushes,
    NotRead,
    SendChunk,
    Store,
    Stored,
    WriteKey,
)
from partita.engine.protocol.messages import Message, Peer
from partita.engine.protocol.names import FILES
from partita.engine.transport.encryption import Encryption
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.mailbox import Mailbox, PeerStalled, UnknownPeer
from partita.engine.transport.payload import Payload, PayloadLike
from partita.engine.transport.zeromq import ZmqMailbox

_TICK_S: Final = 0.5
_MOST_OPEN: Final = 32  # files


class FileHost:
    """Serves a catalogue until it is closed.

    Attributes:
        peer: its address and key, for the hosts of the run.
    """

    def __init__(self, mailbox: Mailbox, catalogue: Catalogue) -> None:
        """Starts the thread, which closes the mailbox at its end."""
        self.peer: Final = Peer(FILES, 0, mailbox.endpoint, mailbox.public_key)
        self._mailbox, self._catalogue = mailbox, catalogue
        self._machine = FileServer(most_bytes=catalogue.most_bytes)
        self._admissions: SimpleQueue[tuple[Peer, ...]] = SimpleQueue()
        self._peers: dict[str, Peer] = {}
        self._read: OrderedDict[str, BufferedReader] = OrderedDict()
        self._writes: dict[WriteKey, AtomicFile] = {}  # of the other thread
        self._background: BackgroundQueue[Appended | Stored | None] = BackgroundQueue("files", mailbox.wake)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="host files", daemon=True)
        self._thread.start()

    def admit(self, peers: Iterable[Peer]) -> None:
        """Lets exactly these processes send, after what has come by now. From any thread."""
        self._admissions.put(tuple(peers))
        self._mailbox.wake()

    def close(self) -> None:
        """Ends the threads; an unfinished file is removed."""
        self._closing = True
        self._mailbox.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                for event in self._mailbox.receive(_TICK_S):
                    self._give(event)
                for result in self._background.finished():
                    self._give(result)
                while not self._admissions.empty():
                    self._admit(self._admissions.get())
                self._give(Tick())
        finally:
            self._background.close()
            for file in self._writes.values():
                file.drop()
            for read in self._read.values():
                read.close()
            self._mailbox.close()

    def _admit(self, peers: tuple[Peer, ...]) -> None:
        self._mailbox.allow(peers)
        for name in self._peers.keys() - {peer.name for peer in peers}:
            self._mailbox.disconnect(name)
        self._peers = {peer.name: peer for peer in peers}
        self._give(Admitted({peer.name: peer.incarnation for peer in peers}))

    def _give(self, event: Any) -> None:
        results = [event]
        while results:
            for effect in self._machine.receive(results.pop(0), time.monotonic()):
                result = self._carry_out(effect)
                if result is not None:
                    results.append(result)

    def _carry_out(self, effect: Any) -> Any:
        match effect:
            case Send(to=to, message=message):
                self._send(to, message, None)
            case Connect():
                self._connect(effect)
            case Find():
                return self._find(effect)
            case SendChunk():
                return self._send_chunk(effect)
            case Append():
                self._background.start(partial(self._append, effect))
            case Store():
                self._background.start(partial(self._store, effect))
            case Drop(key=key):
                self._background.start(partial(self._drop, key))
            case NotePushes():
                self._note(effect)
            case Refuse():
                self._mailbox.counters.refused_messages += 1
            case _:
                raise AssertionError(effect)
        return None

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        """Sends an answer; what a peer misses, it asks for again."""
        try:
            self._mailbox.send(to, message, payload)
        except UnknownPeer:
            return
        except PeerStalled:
            self._mailbox.reconnect(to)

    def _connect(self, effect: Connect) -> None:
        peer = self._peers.get(effect.name)
        if peer is None or peer.incarnation != effect.incarnation:
            return
        try:
            self._mailbox.connect(Peer(peer.name, peer.incarnation, effect.endpoint, peer.public_key))
        except ValueError:
            self._mailbox.counters.refused_messages += 1

    # Reads.

    def _opened(self, name: str) -> BufferedReader:
        """Returns an open file. Raises OSError, ValueError."""
        file = self._read.get(name)
        if file is None:
            path = self._catalogue.readable(name)
            if path is None:
                raise ValueError(f"there is no file {name!r}")
            file = self._read[name] = open_plain(path)
            if len(self._read) > _MOST_OPEN:
                self._read.popitem(last=False)[1].close()
        self._read.move_to_end(name)
        return file

    def _find(self, effect: Find) -> Found:
        self._forget(effect.name)  # it may be another one than before
        try:
            n_bytes = os.fstat(self._opened(effect.name).fileno()).st_size
        except (OSError, ValueError) as error:
            return Found(effect.to, effect.request, None, str(error))
        return Found(effect.to, effect.request, n_bytes)

    def _forget(self, name: str) -> None:
        file = self._read.pop(name, None)
        if file is not None:
            file.close()

    def _send_chunk(self, effect: SendChunk) -> NotRead | None:
        try:
            file, n_bytes = self._opened(effect.name), effect.stop - effect.start
            data = os.pread(file.fileno(), n_bytes, effect.start)
        except (OSError, ValueError, OverflowError) as error:
            return NotRead(effect.to, effect.request, str(error))
        if len(data) != n_bytes:
            return NotRead(effect.to, effect.request, f"{effect.name} ends before byte {effect.stop}")
        self._send(effect.to, FileChunk(effect.request), data)
        return None

    # Writes, on the other thread.

    def _append(self, effect: Append) -> Appended:
        key = effect.key
        assert isinstance(effect.payload, Payload), effect
        try:
            file = self._writes.get(key)
            if file is None:
                file = self._writes[key] = self._created(effect)
            for numbers in effect.payload.numbers(np.uint8):
                file.write(numbers.data.cast("B"))
            effect.payload.release()
        except (OSError, ValueError) as error:
            return Appended(key, None, getattr(error, "strerror", None) or str(error))
        return Appended(key, file.n_bytes)

    def _created(self, effect: Append) -> AtomicFile:
        writer, incarnation, _ = effect.key
        place = self._catalogue.writable(effect.name, writer=writer, incarnation=incarnation)
        if place is None:
            raise ValueError(f"'{writer}' may not write {effect.name!r}")
        return AtomicFile(self._catalogue.checkpoints.path_of(*place))

    def _store(self, effect: Store) -> Stored:
        file = self._writes.pop(effect.key, None)
        if file is None:
            return Stored(effect.key, "nothing of it is there")
        try:
            file.finish(sha256=effect.sha256)
        except (OSError, ValueError) as error:
            file.drop()
            return Stored(effect.key, getattr(error, "strerror", None) or str(error))
        return Stored(effect.key)

    def _drop(self, key: WriteKey) -> None:
        file = self._writes.pop(key, None)
        if file is not None:
            file.drop()

    def _note(self, effect: NotePushes) -> None:
        if self._catalogue.pushes is not None:
            cut = {"shards": self._catalogue.shards, "fragments": self._catalogue.fragments}
            note_pushes(self._catalogue.pushes, effect.part, effect.stream, effect.record, **cut)


@contextmanager
def serving(
    catalogue: Catalogue, *, address: str, encryption: Encryption
) -> Iterator[tuple[FileHost, FilesAddress]]:
    """Serves a catalogue at an address of this machine, and marks the folders by which hosts know them.

    Yields the host `files`, and what other hosts must know of it.

    Raises:
        OSError, ValueError: the address or a folder cannot be used.
    """
    mark = f".partita-{secrets.token_hex(16)}"
    folders = catalogue.folder.resolve(), catalogue.checkpoints.folder.resolve()
    with marked(folders, mark):
        host = FileHost(
            ZmqMailbox(KeyPair.generate(), endpoint=f"tcp://{address}:*", encryption=encryption), catalogue
        )
        try:
            yield host, FilesAddress(host.peer, str(folders[0]), str(folders[1]), mark)
        finally:
            host.close()
