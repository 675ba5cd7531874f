"""The ring of shared memory, and the transport that uses it beside its socket."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import random
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from fakeservice import Service

import poolbridge
from poolbridge import _pump, _ring
from poolbridge._errors import ConnectionLostError, ProtocolError
from poolbridge._known import Waiter
from poolbridge._messages import Cancel
from poolbridge._packet import encode
from poolbridge._pump import Pump
from poolbridge._ring import MARKED, MAX_PACKET, SIZE, Ring
from poolbridge._session import Session
from poolbridge._transport import NONE, Transport

pytestmark = pytest.mark.skipif(not _ring.USABLE, reason="rings in Python need a processor that keeps stores in order")

_FILE = json.loads((Path(__file__).parents[2] / "docs/vectors/v1.json").read_text(encoding="utf-8"))
VECTORS = _FILE["rings"]
PASSAGES = _FILE["passages"]
FILE = 4096 + SIZE
F_ADD_SEALS = 1033
SIZE_SEALS = 0x2 | 0x4


def ring_file() -> int:
    fd = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, FILE)
    fcntl.fcntl(fd, F_ADD_SEALS, SIZE_SEALS)
    return fd


class Ends:
    """Two ends of a ring, and the files between them."""

    def __init__(self) -> None:
        one, other = ring_file(), ring_file()
        self.a = Ring(one, other)
        self.b = Ring(other, one)
        self.a_file = mmap.mmap(other, FILE)
        self.b_file = mmap.mmap(one, FILE)
        os.close(one)
        os.close(other)

    def close(self) -> None:
        for end in (self.a, self.b, self.a_file, self.b_file):
            end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in VECTORS])
def test_a_ring_looks_as_the_protocol_says(ends: Ends, vector: dict[str, Any]) -> None:
    for length in vector["before"]:
        assert ends.a.put(bytes(length))
        assert ends.a.publish() is False
        assert ends.b.take(1) == [bytes(length)]
    packets = [bytes.fromhex(packet) for packet in vector["packets"]]
    for packet in packets:
        if packet:
            assert ends.a.put(packet)
        else:
            ends.a.mark()
        assert ends.a.publish() is False
    expected, at = bytes.fromhex(vector["bytes"]), vector["at"]
    assert ends.a_file[at : at + len(expected)] == expected
    for offset, word in vector["words"].items():
        assert struct.unpack_from("<Q", ends.a_file, int(offset)) == (word,)
    taken = [packet for _ in packets for packet in ends.b.take(8)]
    assert taken == [packet or MARKED for packet in packets]
    assert ends.b.take(8) == []


def test_packets_of_every_size_come_in_order(ends: Ends) -> None:
    rng = random.Random(1)
    sent: list[bytes] = []
    for number in range(5000):
        length = rng.randrange(1, MAX_PACKET) if number % 200 == 0 else rng.randrange(1, 300)
        packet = number.to_bytes(8, "little") + bytes(length)
        while not ends.a.put(packet):
            assert ends.b.take(1) == [sent.pop(0)]
        ends.a.publish()
        sent.append(packet)
    while sent:
        most = rng.randrange(1, 20)
        taken = ends.b.take(most)
        assert taken == sent[: min(most, len(sent))]
        del sent[: len(taken)]
    assert ends.a.drained


def test_a_full_ring_refuses_a_packet_and_still_takes_a_mark(ends: Ends) -> None:
    count = 0
    while ends.a.put(bytes(100)):
        count += 1
    assert ends.b.take(1) == [], "none of them was published"
    ends.a.mark()
    ends.a.publish()
    assert ends.b.take(count) == [bytes(100)] * count
    assert not ends.a.drained
    assert ends.b.take(count) == [MARKED]
    assert ends.a.drained


def test_nothing_is_taken_with_what_follows_a_mark(ends: Ends) -> None:
    ends.a.put(b"1")
    ends.a.mark()
    ends.a.put(b"2")
    ends.a.publish()
    assert ends.b.take(8) == [b"1", MARKED]
    assert ends.b.take(8) == [b"2"]


def test_a_reader_that_sleeps_is_woken_once(ends: Ends) -> None:
    ends.a.put(b"1")
    assert ends.a.publish() is False
    assert not ends.b.sleep(), "there is something to take"
    ends.b.take(1)
    assert ends.b.sleep()
    ends.a.put(b"2")
    ends.a.put(b"3")
    assert ends.a.publish() is True
    ends.a.put(b"4")
    assert ends.a.publish() is False
    ends.b.wake()


@pytest.mark.parametrize(
    ("head", "first"),
    [
        pytest.param(12, 3, id="a head that is not aligned"),
        pytest.param(2**64 - 8, 3, id="a head behind what was read"),
        pytest.param(SIZE + 16, 3, id="more than a ring holds"),
        pytest.param(16, 17, id="a packet longer than was written"),
        pytest.param(SIZE, MAX_PACKET + 1, id="a packet longer than any"),
        pytest.param(SIZE, 2**64 - 1, id="a length that overflows"),
        pytest.param(SIZE, 1 << 32, id="a skip at the beginning"),
    ],
)
def test_a_corrupt_ring_is_an_error(ends: Ends, head: int, first: int) -> None:
    struct.pack_into("<Q", ends.b_file, 4096, first)
    struct.pack_into("<Q", ends.b_file, 0, head)
    with pytest.raises(ProtocolError, match="in a ring with"):
        ends.a.take(8)


def test_what_came_before_a_corrupt_packet_is_taken(ends: Ends) -> None:
    ends.a.put(b"1")
    ends.a.put(b"2")
    ends.a.publish()
    struct.pack_into("<Q", ends.a_file, 4096 + 16, MAX_PACKET + 1)
    assert ends.b.take(8) == [b"1"]
    with pytest.raises(ProtocolError, match="in a ring with"):
        ends.b.take(8)


@pytest.mark.parametrize("tail", [16, 4, 2**64 - SIZE - 8])
def test_a_reader_that_contradicts_what_was_written_is_an_error(ends: Ends, tail: int) -> None:
    struct.pack_into("<Q", ends.b_file, 64, tail)
    with pytest.raises(ProtocolError, match="says that it has read"):
        ends.a.put(b"1")


def test_a_file_that_could_shrink_is_no_ring() -> None:
    fd = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, FILE)
        with pytest.raises(ProtocolError, match="not sealed"):
            Ring(fd, fd)
    finally:
        os.close(fd)


class Linked:
    """Two transports with a ring, which both use."""

    def __init__(self) -> None:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.a, self.b = Transport(one), Transport(other)
        self.ends = Ends()
        self.a.use(self.ends.a)
        self.b.use(self.ends.b)

    def close(self) -> None:
        self.a.close()
        self.b.close()
        self.ends.close()


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked()
    yield made
    made.close()


def test_packets_come_in_the_order_in_which_they_were_sent_whichever_way_they_come(linked: Linked) -> None:
    count = 1000

    def send() -> None:
        for number in range(count):
            packet = number.to_bytes(8, "little") + bytes(MAX_PACKET if number % 100 == 42 else number % 200)
            while not linked.a.send(deque([packet])):
                pass

    sender = threading.Thread(target=send)
    sender.start()
    through = number = 0
    while number < count:
        if (came := linked.b.receive()) is None:
            continue
        for packet in came[0]:
            assert int.from_bytes(packet[:8], "little") == number
            number += 1
        through += linked.b.through
    sender.join()
    assert through, "some came through the ring"


def test_a_packet_that_no_ring_takes_goes_over_the_socket_at_once(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[bool] = []
    publish = linked.ends.a.publish

    def read_at_once() -> bool:
        published.append(publish())
        assert len(published) < 10, "however fast the reader is"
        while linked.ends.b.some():
            assert linked.b.receive() is None
        return False

    assert linked.a.send(deque([b"1" * 9]))
    assert linked.b.receive() == ([b"1" * 9], NONE)
    monkeypatch.setattr(linked.ends.a, "publish", read_at_once)
    assert linked.a.send(deque([bytes(MAX_PACKET + 1)]))
    came = linked.b.receive()
    assert came is not None
    assert came[0] == (bytes(MAX_PACKET + 1),)


def unpack(packet: str | int) -> bytes:
    return bytes(packet) if isinstance(packet, int) else bytes.fromhex(packet)


@pytest.mark.parametrize("vector", PASSAGES, ids=[vector["name"] for vector in PASSAGES])
def test_a_sender_goes_from_the_ring_to_the_socket_and_back_as_the_protocol_says(
    linked: Linked, vector: dict[str, Any]
) -> None:
    over_the_socket: list[bytes] = []
    for packet in vector["packets"]:
        assert linked.a.send(deque([unpack(packet)]))
        while (came := linked.b._receive()) is not None:
            over_the_socket.append(came[0])
        while linked.ends.b.take(1):
            pass
    assert over_the_socket == [unpack(packet) for packet in vector["socket"]]
    file = bytes(linked.ends.a._own_file)
    assert int.from_bytes(file[:8], "little") == vector["head"]
    want = bytes.fromhex(vector["bytes"])
    assert file[vector["at"] : vector["at"] + len(want)] == want


def test_what_was_sent_before_the_peer_left_comes_before_the_end(linked: Linked) -> None:
    for number in range(100):
        assert linked.a.send(deque([bytes([number]) * 100]))
    linked.a.shutdown()
    came: list[bytes] = []
    while len(came) < 100:
        more = linked.b.receive(readable=True)
        assert more is not None
        came += more[0]
    assert came == [bytes([number]) * 100 for number in range(100)]
    with pytest.raises(ConnectionLostError):
        linked.b.receive(readable=True)


def test_a_packet_over_the_socket_that_the_ring_knows_nothing_of_is_an_error(linked: Linked) -> None:
    assert linked.a.send(deque([b"1" * 9]))
    assert linked.b.receive() is not None
    linked.a._send(b"2" * 9)
    with pytest.raises(ProtocolError, match="through the ring"):
        linked.b.receive()


def switches(thread: threading.Thread) -> int:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text(encoding="ascii")
    return int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[0])


def test_a_process_that_waits_for_a_notice_does_nothing_else(tmp_path: Path, ends: Ends) -> None:
    service = Service(str(tmp_path / "s.sock"))
    try:
        with poolbridge.connect(service.path, timeout=60) as client:
            ends.a.put(b"1")  # which the service never takes: the socket goes on being used
            client._session.transport.use(ends.a)
            waiter = Waiter(lambda: False)
            assert not client._pump.wait(waiter, 0.1)
            before = switches(client._pump._watcher)
            assert not client._pump.wait(waiter, 0.5)
            assert switches(client._pump._watcher) - before < 10, "the watcher sleeps as well"
    finally:
        service.close()


def test_who_sleeps_is_woken_over_the_socket(linked: Linked) -> None:
    assert linked.a.send(deque([b"1" * 9]))
    assert linked.b.receive() is not None
    assert linked.b.sleep()
    assert linked.a.send(deque([b"2" * 9]))
    linked.b.wake()
    assert linked.b.waiting()
    assert linked.b.receive(readable=True) is not None
    assert linked.b.receive() is None


def pipe_in_flight(linked: Linked, packet: bytes) -> int:
    """Send a packet with one end of a pipe over the socket, and give the other end."""
    reads, writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    socket.send_fds(linked.b._sock, [packet], [writes])
    os.close(writes)
    return reads


def test_descriptors_that_nobody_takes_are_closed(linked: Linked) -> None:
    assert linked.b.send(deque([b"1" * 9]))
    assert linked.a.receive() is not None
    look = pipe_in_flight(linked, b"\xc0")
    assert linked.a.receive() is None
    assert os.read(look, 1) == b"", "nobody else has it open"
    back = pipe_in_flight(linked, b"\xc3")
    assert linked.b.send(deque([b"2" * 9]))
    assert linked.a.receive(readable=True) is not None, "which the ring had"
    linked.a.close()
    assert os.read(back, 1) == b""
    os.close(look)
    os.close(back)


def test_a_ring_that_is_closed_is_left_alone(linked: Linked) -> None:
    linked.a.close()
    linked.a.wake()
    assert linked.a.ring is None
    assert not linked.a.through


def test_a_thread_that_waits_reads_when_nobody_else_does(
    tmp_path: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pump, "_TICK", 3600)
    service = Service(str(tmp_path / "s.sock"))
    try:
        with poolbridge.connect(service.path, timeout=60) as client:
            ends.a.put(b"1")  # which the service never takes: the socket goes on being used
            client._session.transport.use(ends.a)
            pump = client._pump
            pump._ticking = True  # for an hour
            assert pump._begin_reading()
            calls = [threading.Thread(target=client.stats) for _ in range(3)]
            for call in calls:
                call.start()
            while len(pump._waiting) < len(calls):
                time.sleep(0.001)
            pump._read = False
            pump._reading.release()
            pump._after_reading()
            for call in calls:
                call.join(30)
                assert not call.is_alive()
            pump._bell.ring()  # or the watcher would end in an hour
    finally:
        service.close()


def test_a_client_may_be_closed_while_a_thread_is_about_to_look_into_its_ring(tmp_path: Path, ends: Ends) -> None:
    class Awaited:
        """What a thread waits for; when it looks whether that is there, the client is closed."""

        @property
        def done(self) -> bool:
            if client._session.ended is None:
                client._session.transport.use(ends.a)
                client._session.transport._over = False  # it has gone through the ring
                client._session.lose(poolbridge.ClientClosedError("the client is closed"))
                client._pump.stop()
            return False

    service = Service(str(tmp_path / "s.sock"))
    try:
        client = poolbridge.connect(service.path, timeout=60)
        with pytest.raises(poolbridge.ClientClosedError):
            client._pump.wait(cast("Waiter", Awaited()), None)
    finally:
        service.close()


def test_the_watcher_sleeps_while_the_socket_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = Session(Transport(one))
    flush = Mock(wraps=session.flush)
    monkeypatch.setattr(session, "flush", flush)
    pump = Pump(session)
    sent = 0
    while session.transport.send(deque([bytes(1000)])):
        sent += 1
    session.core.tell(Cancel(rq=1))
    assert not session.flush()
    time.sleep(0.1)
    assert flush.call_count < 5
    other.settimeout(30)
    for _ in range(sent):
        assert other.recv(2000) == bytes(1000)
    assert other.recv(2000) == encode(Cancel(rq=1))
    session.close()
    pump.stop()
    other.close()


@pytest.fixture
def corrupt() -> Iterator[Ring]:
    """A ring whose reader says that it has read 12 bytes."""
    made = Ends()
    made.a.put(b"1")
    struct.pack_into("<Q", made.b_file, 64, 12)
    yield made.a
    made.close()


def use(client: poolbridge.Client, ring: Ring) -> None:
    client._session.transport.use(ring)
    client._session.transport._aside.clear()


def test_a_corrupt_ring_that_a_request_finds_ends_the_session(client: poolbridge.Client, corrupt: Ring) -> None:
    use(client, corrupt)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="says that it has read 12 bytes"):
            client.stats()


def test_a_corrupt_ring_that_the_watcher_finds_ends_the_session(client: poolbridge.Client, corrupt: Ring) -> None:
    use(client, corrupt)
    client._pump.background(partial(client._session.tell, Cancel(rq=1)))
    client._pump._watcher.join(30)
    assert client._pump._finished
    with pytest.raises(ProtocolError, match="says that it has read 12 bytes"):
        client.stats()


def test_whoever_waits_for_a_notice_may_give_up_while_it_comes() -> None:
    class GivenUp(Waiter):
        """Its thread gives up as soon as somebody has looked whether there is one."""

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
