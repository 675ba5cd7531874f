"""Tests the reader: the threads of a blocking client read its socket in turn."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from fakeservice import Service

import poolbridge
from poolbridge._session.calls import Waiter
from poolbridge._session.session import Session
from poolbridge._session.socket_reader import SocketReader
from poolbridge._wire.messages import Cancel
from poolbridge._wire.packet import encode
from poolbridge._wire.transport import Transport


def switches(thread: threading.Thread) -> int:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text(encoding="ascii")
    return int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[0])


def test_a_process_that_waits_for_a_notice_does_nothing_else(tmp_path: Path) -> None:
    service = Service(str(tmp_path / "s.sock"))
    try:
        with poolbridge.connect(service.path, timeout=60) as client:
            waiter = Waiter(lambda: False)
            assert not client._reader.wait(waiter, 0.1)
            before = switches(client._reader._watcher)
            assert not client._reader.wait(waiter, 0.5)
            assert switches(client._reader._watcher) - before < 10, "the watcher sleeps as well"
    finally:
        service.close()


def test_threads_that_wait_for_a_reader_have_their_replies_when_it_reads_no_more(tmp_path: Path) -> None:
    service = Service(str(tmp_path / "s.sock"))
    try:
        with poolbridge.connect(service.path, timeout=60) as client:
            reader = client._reader
            assert reader._begin_reading()
            calls = [threading.Thread(target=client.stats) for _ in range(3)]
            for call in calls:
                call.start()
            while len(reader._waiting) < len(calls):
                time.sleep(0.001)
            reader._read, reader._armed = False, True
            reader._reading.release()
            reader._after_reading()
            for call in calls:
                call.join(30)
                assert not call.is_alive()
    finally:
        service.close()


def test_a_client_may_be_closed_while_a_thread_is_about_to_read(tmp_path: Path) -> None:
    class Awaited:
        """The condition of a thread that waits. A check of the condition closes the client."""

        @property
        def done(self) -> bool:
            if client._session.ended is None:
                client._session.lose(poolbridge.ClientClosedError("the client is closed"))
                client._reader.stop()
            return False

    service = Service(str(tmp_path / "s.sock"))
    try:
        client = poolbridge.connect(service.path, timeout=60)
        with pytest.raises(poolbridge.ClientClosedError):
            client._reader.wait(cast("Waiter", Awaited()), None)
    finally:
        service.close()


def test_the_watcher_sleeps_while_the_socket_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = Session(Transport(one))
    flush = Mock(wraps=session.flush)
    monkeypatch.setattr(session, "flush", flush)
    reader = SocketReader(session)
    sent = 0
    while session.transport.send(deque([bytes(1000)])):
        sent += 1
    session.core.tell(Cancel(request=1))
    assert not session.flush()
    time.sleep(0.1)
    assert flush.call_count < 5
    other.settimeout(30)
    for _ in range(sent):
        assert other.recv(2000) == bytes(1000)
    assert other.recv(2000) == encode(Cancel(request=1))
    session.close()
    reader.stop()
    other.close()


def test_a_thread_that_waits_for_a_notice_may_give_up_while_it_comes() -> None:
    class GivenUp(Waiter):
        """A waiter whose own thread stops waiting after another thread has read `on_done` once."""

        def __init__(self) -> None:
            self.looked = self.called = 0
            super().__init__(lambda: False)

        @property
        def on_done(self) -> Any:
            self.looked += 1
            return self._call if self.looked == 1 else None

        @on_done.setter
        def on_done(self, value: Callable[[], object] | None) -> None:
            assert value is None

        def _call(self) -> None:
            self.called += 1

    waiter = GivenUp()
    waiter.tell()
    assert waiter.called == 1
