"""Tests of clients whose service dies, and whose session another service takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from realservice import RealService, until
from test_interrupts import Interrupter, at_every_step, reading

import poolbridge
from poolbridge._session.core import Core
from poolbridge._session.session import Session
from poolbridge._session.unconfirmed import Unconfirmed
from poolbridge._wire.messages import Cancel, Get, GrantReply, Release, StatsRequest
from poolbridge._wire.packet import decode, encode
from poolbridge._wire.transport import Transport


class Guarded(RealService):
    """A service with a guard: `process` is the guard."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "--guard", "--guard-quick", "0s", "--verbose", "--pool", "name=p,kind=host,max=64MiB")

    @property
    def child(self) -> int:
        """The process of the service, and not the child that Go begins for a moment to learn what the kernel can do."""
        given, found = f"LISTEN_PID=from-{self.process.pid}\0".encode(), list[int]()

        def look() -> bool:
            for tasks in Path(f"/proc/{self.process.pid}/task").iterdir():
                for child in (tasks / "children").read_text().split():
                    with suppress(OSError):
                        found.extend([int(child)] if given in Path(f"/proc/{child}/environ").read_bytes() else [])
            return bool(found)

        until(look)
        return found[0]

    def take_away(self) -> None:
        """Kill the service; the guard starts no other until `bring_back`."""
        child = self.child
        os.kill(self.process.pid, signal.SIGSTOP)
        os.kill(child, signal.SIGKILL)

    def bring_back(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def endings(self) -> list[str | None]:
        """How sessions of this process have ended."""
        with poolbridge.connect(self.path) as client:
            ended = [event for event in client.events() if event.kind == "session-ended"]
        return [event.ending for event in ended if event.pid == os.getpid()]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    service = Guarded(str(tmp_path / "s"))
    yield service
    os.kill(service.process.pid, signal.SIGCONT)
    service.close()


def test_the_loop_of_an_asyncio_client_runs_while_the_service_is_away(guarded: Guarded) -> None:
    async def work() -> None:
        async with await poolbridge.connect_async(guarded.path) as client:
            await client.open_pool("p")
            lease = await client.allocate((64,), "uint8")
            guarded.take_away()
            call = asyncio.create_task(client.allocate((64,), "uint8"))
            turns = 0
            while turns < 100:  # a loop that waited for the service would never come here
                await asyncio.sleep(0.001)
                turns += 1
            assert not call.done()
            guarded.bring_back()
            await (await call).release()
            await lease.release()

    asyncio.run(work())


def test_an_interrupt_while_the_service_is_away_ends_the_call_and_not_the_session(guarded: Guarded) -> None:
    with poolbridge.connect(guarded.path) as client:
        client.open_pool("p")
        kept = client.put(np.arange(10), "kept")
        guarded.take_away()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            client.allocate((64,), "uint8")
        guarded.bring_back()
        assert client.get_array("kept").tolist() == list(range(10))
        kept.release()
        until(lambda: client.stats().leases == 0)


def test_an_interrupt_where_a_session_notices_that_the_service_died_is_an_interrupt(guarded: Guarded) -> None:
    with poolbridge.connect(guarded.path) as client:
        client.open_pool("p")
        library = (threading.Thread.start, threading.Event.wait, threading.Condition.wait)

        def try_it(interrupter: Interrupter) -> None:
            with reading(client):  # this thread, and not the watcher
                guarded.take_away()
                assert client._reader._poll.poll(20_000)
                with interrupter:
                    client._session.receive()
            guarded.bring_back()
            client.allocate((64,), "uint8").release()

        assert at_every_step(try_it, *library) > 3


def test_a_forked_child_does_not_disturb_a_session_that_goes_on(guarded: Guarded) -> None:
    with poolbridge.connect(guarded.path) as client:
        client.open_pool("p")
        lease = client.allocate((64,), "uint8")
        end, other = os.pipe()
        child = os.fork()
        if not child:
            os.close(other)
            os.read(end, 1)
            os._exit(0)
        try:
            guarded.take_away()
            guarded.bring_back()
            client.allocate((64,), "uint8").release()
        finally:
            os.close(end)
            os.close(other)
            assert os.waitpid(child, 0)[1] == 0
        client.allocate((64,), "uint8").release()
        lease.release()


def test_closing_a_client_does_not_look_for_another_service(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr(Session, "_resume", lambda *given: begun.append(given))
    for _ in range(20):
        with poolbridge.connect(guarded.path) as client:
            lease = client.allocate(16, "uint8")
        del lease
    client = poolbridge.connect(guarded.path)
    array = np.from_dlpack(client.allocate(16, "uint8"))
    client.close()
    assert client._session.ended is None  # the array lives
    del array
    until(lambda: client._session.ended is not None)
    assert not begun


def test_a_client_that_is_closed_while_the_service_is_away_leaves(guarded: Guarded) -> None:
    client = poolbridge.connect(guarded.path)
    client.open_pool("p")
    lease = client.allocate((64,), "uint8")
    guarded.take_away()
    threading.Timer(0.2, guarded.bring_back).start()
    client.close()
    assert lease.released
    until(lambda: guarded.endings() == ["left"])


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_has_an_error_soon_when_guard_and_service_are_gone(guarded: Guarded, kind: str) -> None:
    def kill() -> None:
        child = guarded.child
        guarded.process.kill()
        os.kill(child, signal.SIGKILL)

    async def work() -> None:
        async with await poolbridge.connect_async(guarded.path) as client:
            await client.open_pool("p")
            kill()
            with pytest.raises(poolbridge.ConnectionLostError):
                await client.allocate((64,), "uint8", timeout=60)

    if kind == "asyncio":
        asyncio.run(work())
        return
    with poolbridge.connect(guarded.path) as client:
        client.open_pool("p")
        kill()
        with pytest.raises(poolbridge.ConnectionLostError):
            client.allocate((64,), "uint8", timeout=60)


def test_a_call_ends_at_its_deadline_while_the_service_is_away(guarded: Guarded) -> None:
    with poolbridge.connect(guarded.path) as client:
        client.timeout = 0.1
        guarded.take_away()
        with pytest.raises(poolbridge.ServiceStalledError):
            client.stats()
        guarded.bring_back()


def test_a_call_waits_no_longer_because_the_service_died(guarded: Guarded) -> None:
    with poolbridge.connect(guarded.path) as client:
        client.timeout = 0.5  # less than the time before the death
        threading.Timer(1, os.kill, (guarded.child, signal.SIGKILL)).start()
        with pytest.raises(poolbridge.WaitTimeoutError):
            client.get("nothing", timeout=5)  # the next service has more than four seconds to begin


def test_a_request_that_was_cancelled_is_cancelled_at_the_next_service() -> None:
    core = Core()
    core.unconfirmed.token = b"t"
    core.abandon(core.start(Get(name="nothing"), GrantReply, lambda: None))
    core.tell(Release(lease=1))
    core.send_again(3)
    get, cancel = core.outbox
    assert decode(cancel, Cancel, checked=True).request == decode(get, Get, checked=True).number


def test_a_session_goes_on_when_its_client_takes_it_up_after_its_loop_has_ended(guarded: Guarded) -> None:
    async def work() -> np.ndarray:
        client = await poolbridge.connect_async(guarded.path)
        await client.open_pool("p")
        array = await client.get_array("kept")
        guarded.take_away()
        await asyncio.sleep(0.05)
        await client.close()
        return array

    with poolbridge.connect(guarded.path) as client:
        client.open_pool("p")
        with client.put(np.arange(10), "kept"):
            array = asyncio.run(work())
            guarded.bring_back()
            until(lambda: client.stats().leases == 2)
            assert array.tolist() == list(range(10))
            del array
            until(lambda: client.stats().leases == 1)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_with_a_relative_path_goes_on_in_another_folder(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def work() -> None:
        async with await poolbridge.connect_async(path) as client:
            monkeypatch.chdir("/")
            os.kill(guarded.child, signal.SIGKILL)
            await client.stats()

    monkeypatch.chdir(Path(guarded.path).parent)
    path = Path(guarded.path).name
    if kind == "asyncio":
        asyncio.run(work())
        return
    with poolbridge.connect(path) as client:
        monkeypatch.chdir("/")
        os.kill(guarded.child, signal.SIGKILL)
        client.stats()


def test_a_service_that_took_over_has_only_its_own_books(guarded: Guarded) -> None:
    with poolbridge.connect(guarded.path) as client:
        os.kill(guarded.child, signal.SIGKILL)
        client.stats()
        files = list(Path(f"/proc/{guarded.child}/fd").iterdir())  # among them copies of what another guard would get
        assert len({file.stat().st_ino for file in files if "poolbridge:books" in os.readlink(file)}) == 1


def _packet(number: int) -> bytes:
    request = StatsRequest()
    request.number = number
    return encode(request)


def test_packets_are_kept_until_an_answer_confirms_them() -> None:
    kept = Unconfirmed()
    kept.token = b"t"
    waits, silent, asked = _packet(1), [encode(Cancel(request=n)) for n in range(1, 300)], _packet(2)
    kept.packets = [waits, *silent, asked]
    outbox: deque[bytes] = deque()
    kept.again(outbox, {id(waits): waits, id(asked): asked}, 100)
    assert list(outbox) == [waits, *silent[99:], asked]
    kept.keep(outbox)
    kept.latest = asked
    assert not kept.forget({id(waits)})
    kept.again(outbox, {id(waits): waits}, 500)
    assert list(outbox) == [waits]


def test_each_packet_is_kept_once_if_the_socket_is_full_and_then_lost() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    transport, kept = Transport(ours), Unconfirmed()
    outbox = deque(bytes([number]) * 1000 for number in range(200))
    packets = list(outbox)
    with theirs:
        for _ in range(3):
            assert not transport.send(outbox, kept.packets)
        assert theirs.recv(2000) == packets[0]
        transport.send(outbox, kept.packets)
    with pytest.raises(poolbridge.ConnectionLostError):
        transport.send(outbox, kept.packets)
    kept.keep(outbox)
    assert not outbox
    assert kept.packets == packets
    transport.close()


class _Driver:
    """Drives nothing."""

    def want_write(self) -> None:
        pass

    def reconnect(self, change: Callable[[], None]) -> None:
        change()

    def away(self) -> None:
        pass

    def background(self, work: Callable[[], None]) -> None:
        work()


def _session(ours: socket.socket) -> Session:
    session = Session(Transport(ours))
    session.carried_by(_Driver())
    session.core.unconfirmed.token = b"t"
    return session


@pytest.mark.parametrize("backlog", [0, 1000])
def test_one_request_confirms_what_waits_for_a_slow_service(backlog: int) -> None:
    ours, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with reader:
        session = _session(ours)
        for lease in range(1500 + backlog):
            with session.lock:
                session.core.tell(Release(lease=lease + 1))
                session._flush()
            if not 100 <= lease < 400 + backlog:  # meanwhile the service reads nothing
                reader.recv(4096)
        assert session.core.unanswered == 1
        session.transport.close()


def test_a_service_that_reads_nothing_loses_its_connection_and_no_packet_is_lost_before() -> None:
    ours, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with reader:
        session = _session(ours)
        packets = [encode(Release(lease=lease + 1)) for lease in range(70_000)]
        session.core.outbox.extend(packets)
        session.flush()
        assert not session.core.outbox
        assert session.core.unconfirmed.packets == packets
        while reader.recv(4096):  # until the end of the connection
            pass
        session.transport.close()
