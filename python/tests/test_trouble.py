"""Tests services that are missing, slow, dead or wrong, and clients that are used in a wrong way."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from fakeservice import working

import poolbridge
from poolbridge._client.base_client import DEFAULT_TIMEOUT
from poolbridge._memory import tensor as _tensor
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._session.loop_reader import LoopReader
from poolbridge._session.session import Session
from poolbridge._session.socket_reader import SocketReader
from poolbridge._wire import messages as m
from poolbridge._wire.transport import Transport


def reply(request, **fields):
    return msgspec.msgpack.encode({"q": request.number, **fields})


# No service


def test_no_service_says_where_it_looked_and_how_to_start_it(tmp_path):
    path = str(tmp_path / "none.sock")
    with pytest.raises(poolbridge.ServiceNotRunningError, match="poolsvc serve") as caught:
        poolbridge.connect(path)
    assert path in str(caught.value)
    assert isinstance(caught.value, ConnectionError)


def test_the_traceback_of_connect_has_one_error(monkeypatch, tmp_path):
    path, program = tmp_path / "none.sock", tmp_path / "none"
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", str(program))
    for options in ({}, {"wait": 0.01}, {"start": True}):
        with pytest.raises(poolbridge.ServiceNotRunningError) as caught:
            poolbridge.connect(path, **options)
        assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_a_socket_left_by_a_dead_service_is_no_service(tmp_path):
    path = str(tmp_path / "stale.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(path)
    with pytest.raises(poolbridge.ServiceNotRunningError, match="nobody listens"):
        poolbridge.connect(path)


def test_waiting_for_a_service_ends(tmp_path):
    started = time.monotonic()
    with pytest.raises(poolbridge.ServiceStartTimeoutError, match="waited 0.2 s") as caught:
        poolbridge.connect(tmp_path / "none.sock", wait=0.2)
    assert isinstance(caught.value, TimeoutError)
    assert 0.2 <= time.monotonic() - started < 60


def test_a_client_may_come_before_the_service(tmp_path):
    from fakeservice import Service

    path = str(tmp_path / "late.sock")
    services = []
    starter = threading.Timer(0.2, lambda: services.append(Service(path)))
    starter.start()
    poolbridge.connect(path, wait=60).close()
    starter.join()
    services[0].close()


def test_where_the_socket_is_looked_for(monkeypatch):
    monkeypatch.setenv("POOLBRIDGE_SOCKET", "/given")
    assert poolbridge.default_path() == "/given"
    monkeypatch.delenv("POOLBRIDGE_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert poolbridge.default_path() == "/run/user/7/poolbridge/poolsvc.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TEMP", "/elsewhere")  # the service does not use the variable TEMP
    monkeypatch.delenv("TMPDIR", raising=False)
    assert poolbridge.default_path() == f"/tmp/poolbridge-{os.getuid()}/poolsvc.sock"
    monkeypatch.setenv("TMPDIR", "/somewhere")
    assert poolbridge.default_path() == f"/somewhere/poolbridge-{os.getuid()}/poolsvc.sock"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_at_the_default_path_below_tmp_another_user_s_service_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("POOLBRIDGE_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = Path(poolbridge.default_path())
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        child = os.fork()
        if not child:  # a socket belongs to the user of the process that calls `listen`
            os.setuid(4242)
            listener.listen()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(poolbridge.AccessDeniedError, match="user 4242, expected user 0"):
            poolbridge.connect()
        with listener.accept()[0] as accepted:
            assert accepted.recv(1) == b""  # the client has sent nothing to this socket


@pytest.mark.parametrize("path", ["x" * 200, ""])
def test_a_path_that_cannot_be_a_socket(path):
    with pytest.raises((poolbridge.InvalidArgumentError, poolbridge.ServiceNotRunningError)):
        poolbridge.connect(path)


def test_a_stream_socket_is_not_the_service(tmp_path):
    path = str(tmp_path / "stream.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(path)
        sock.listen()
        with pytest.raises(poolbridge.InvalidArgumentError):
            poolbridge.connect(path)


def test_a_service_that_accepts_and_says_nothing(tmp_path):
    path = str(tmp_path / "mute.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(path)
        sock.listen()
        with pytest.raises(poolbridge.ServiceStalledError, match="does not answer"):
            poolbridge.connect(path, timeout=0.2)


def test_a_service_of_another_version(service):
    service.tricks["hello"] = lambda c, r: c.send(reply(r, e={"c": "version", "m": "speaks 2"}))
    with pytest.raises(poolbridge.VersionError, match="speaks 2; this client is of .* speaks version 1: use"):
        poolbridge.connect(service.path)


def test_a_service_that_chooses_what_was_not_offered(service):
    service.tricks["hello"] = lambda c, r: c.send(reply(r, v=9, ep=b"x" * 16, id=1, pid=1))
    with pytest.raises(poolbridge.VersionError, match="chose protocol version 9; .* speaks version 1: use one version"):
        poolbridge.connect(service.path)


def test_an_older_service_that_does_not_know_a_request(service, client):
    error = {"c": "unsupported", "m": "the service is poolsvc 0.1.0 and does not know the operation"}
    service.tricks["stats"] = lambda c, r: c.send(reply(r, e=error))
    this = re.escape(poolbridge.__version__)
    with pytest.raises(
        poolbridge.UnsupportedError, match=f"poolsvc 0.1.0 .*this client is of poolbridge {this}: use one"
    ):
        client.stats()


# A service that dies or hangs


def test_a_service_that_vanishes_fails_every_call(service, client):
    service.tricks["stats"] = lambda c, r: c.hang_up()
    failures = []

    def work():
        try:
            client.stats()
        except poolbridge.ConnectionLostError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 5
    assert client.closed
    with pytest.raises(poolbridge.ConnectionLostError):
        client.stats()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_goes_to_the_next_service_if_one_dies_before_it_answers_hello(service, kind, monkeypatch):
    dying = [True, True]
    limits: list[float] = []

    def hello(connection, request):
        if dying:
            dying.pop()
            connection.hang_up()
        else:
            connection.send(connection.hello(request, []))

    async def connect():
        await (await poolbridge.connect_async(service.path)).close()

    reader: Any = LoopReader if kind == "asyncio" else SocketReader
    call = reader.call

    def note(*args: Any) -> Any:
        limits.append(args[3])
        return call(*args)

    service.tricks["hello"] = hello
    with monkeypatch.context() as patch:
        patch.setattr(reader, "call", note)
        if kind == "asyncio":
            asyncio.run(connect())
        else:
            poolbridge.connect(service.path).close()
    assert not dying
    assert limits[0] == pytest.approx(DEFAULT_TIMEOUT)
    assert limits[0] > limits[1] > limits[2], "the limit is for all of them together"


def test_memory_outlives_a_service_that_vanishes(service, client):
    lease = client.allocate(4)
    array = np.asarray(lease)
    array[:] = 4
    service.connections[0].hang_up()
    service.connections[0].join()
    with pytest.raises(poolbridge.ConnectionLostError):
        client.stats()
    assert array.tolist() == [4, 4, 4, 4]
    assert lease.released


def test_a_lost_connection_says_what_is_lost_and_what_to_do(service, client):
    service.connections[0].hang_up()
    service.connections[0].join()
    with pytest.raises(poolbridge.ConnectionLostError, match=r"leases and subscriptions have ended.*Connect again"):
        client.stats()


def test_a_socket_of_another_user_says_how_to_be_let_in(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(poolbridge.AccessDeniedError, match=rf"--mode 0660.*uid={os.getuid()}"):
        poolbridge.connect(tmp_path / "s")


def test_goodbye_is_the_reason_given(service, client):
    def leave(connection, request):
        connection.send(m.Goodbye(code="closed", message="upgrade"))
        connection.hang_up()

    service.tricks["stats"] = leave
    with pytest.raises(poolbridge.ConnectionLostError, match=r"\(closed\): upgrade"):
        client.stats()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("limit", poolbridge.PoolLimitError),
        ("denied", poolbridge.AccessDeniedError),
        ("protocol", poolbridge.ProtocolError),
        ("closed", poolbridge.ClosedError),
    ],
)
def test_a_goodbye_instead_of_a_session_is_the_error_of_its_code(service, code, error):
    def refuse(connection, request):
        connection.send(m.Goodbye(code=code, message="not you"))
        connection.hang_up()

    service.tricks["hello"] = refuse
    with pytest.raises(error, match="not you"):
        poolbridge.connect(service.path)


def test_a_goodbye_is_read_though_the_service_has_not_read_everything():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = Session(Transport(ours))
    ours.send(b"a request that nobody reads")
    theirs.send(msgspec.msgpack.encode({"n": "goodbye", "c": "limit", "m": "too slow"}))
    theirs.close()
    assert session.receive()
    with pytest.raises(poolbridge.PoolLimitError, match="too slow"):
        session.receive()
    session.transport.close()


def test_a_goodbye_is_read_though_the_service_takes_no_more_packets():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = Session(Transport(ours))
    session.carried_by(Mock())
    theirs.send(msgspec.msgpack.encode({"n": "goodbye", "c": "limit", "m": "too slow"}))
    theirs.close()
    call = session.ask(m.StatsRequest(), m.StatsReply, lambda: None)  # the send fails with EPIPE
    assert session.receive()
    with pytest.raises(poolbridge.PoolLimitError, match="too slow"):
        session.receive()
    with pytest.raises(poolbridge.PoolLimitError, match="too slow"):
        call.result()
    session.transport.close()


def test_a_stalled_service_is_a_timeout_and_its_late_lease_is_given_back(service):
    with poolbridge.connect(service.path) as client:
        client.create_pool("p", max_bytes=1 << 16)
        late = []
        service.tricks["alloc"] = lambda c, r: late.append((c, r))
        client.timeout, patience = 0.2, client.timeout
        with pytest.raises(poolbridge.ServiceStalledError) as caught:
            client.allocate(4)
        client.timeout = patience
        assert isinstance(caught.value, TimeoutError)
        assert not client.closed
        client.stats()
        assert len(service.seen(m.Cancel)) == 1
        ((connection, request),) = late
        with service.changed:
            connection.handle(request)
        service.wait(lambda: bool(service.seen(m.Release)))
        assert service.leases == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_service_that_says_it_is_working_is_not_stalled(service, named):
    with poolbridge.connect(service.path) as client:
        client.create_pool("p", max_bytes=1 << 16)

        def slowly(connection, request):
            working(client, connection, request, named=named)
            with service.changed:
                connection.handle(request)

        service.tricks["alloc"] = slowly
        client.timeout = 0.5
        client.allocate(4).release()


def test_a_service_that_stops_saying_that_it_is_working_is_stalled(service):
    with poolbridge.connect(service.path) as client:
        client.create_pool("p", max_bytes=1 << 16)
        service.tricks["alloc"] = lambda c, r: working(client, c, r)
        client.timeout, patience = 0.5, client.timeout
        with pytest.raises(poolbridge.ServiceStalledError):
            client.allocate(4)
        client.timeout = patience
        client.stats()


def test_a_wait_for_a_reply_does_not_hold_up_work_behind_it(service, client):
    late = []
    service.tricks["stats"] = lambda c, r: late.append((c, r))
    waiting = threading.Thread(target=client.stats)
    waiting.start()
    service.wait(lambda: bool(late))
    done = threading.Event()
    client._reader.background(done.set)
    assert done.wait(60)
    ((connection, request),) = late
    with service.changed:
        connection.handle(request)
    waiting.join()


class WaitingCall(threading.Thread):
    """A thread that calls `stats`, which the service does not answer. `caught` gets the error that the call raises."""

    def __init__(self, service, client):
        super().__init__()
        self.client, self.caught, seen = client, [], []
        service.tricks["stats"] = lambda c, r: seen.append(c)
        self.start()
        service.wait(lambda: bool(seen))
        (self.connection,) = seen

    def run(self):
        try:
            self.client.stats()
        except poolbridge.PoolbridgeError as error:
            self.caught.append(error)


def test_a_call_that_sees_the_end_of_the_session_before_its_own_says_why(service, client):
    call = WaitingCall(service, client)
    # Set the state that the session has while another thread is in the middle of `Session.lose`.
    client._session.ended = error = poolbridge.ClientClosedError("the client is closed")
    with service.changed:
        call.connection.send(msgspec.msgpack.encode({"n": "something"}))
    call.join()
    client._session.ended = None
    client._session.lose(error)
    assert [type(error) for error in call.caught] == [poolbridge.ClientClosedError]


def test_a_lease_on_a_block_that_a_closing_client_has_dropped_is_no_fault_of_the_service(service, client):
    client.allocate(4).release()
    service.tricks["get"] = lambda c, r: None
    call = WaitingCall(service, client)
    late = client._session.ask(m.Get(name="x"), m.GrantReply, lambda: None)
    client._session.begin_close()
    grant = m.Grant(id=7, buffer=7, generation=1, pool=1, block=99, block_nbytes=4096, tensor=m.Tensor(dtype="float32"))
    with service.changed:
        call.connection.send(m.GrantReply(number=late.number, grant=grant))
    call.join()
    assert [type(error) for error in call.caught] == [poolbridge.ClientClosedError]


def test_a_time_limit_holds_while_packets_come_for_others(service, client, monkeypatch):
    reader, received = threading.current_thread(), list[None]()

    def receive():
        if threading.current_thread() is not reader:
            return False
        received.append(None)
        assert len(received) < 1 << 20, "that never ends"
        return True

    monkeypatch.setattr(client._session, "receive", receive)
    monkeypatch.setattr(client._reader, "_poll", Mock())
    call = client._session.core.start(m.StatsRequest(), m.StatsReply, list)
    with client._reader._reading:
        client._reader._read_for(call, time.monotonic())
    assert not call.done
    client._session.core.outbox.clear()
    del client._session.core._calls[call.number]


def test_a_service_that_takes_nothing_does_not_block_releases(service):
    with poolbridge.connect(service.path) as client:
        client.create_pool("p", max_bytes=1 << 22)
        leases = [client.allocate(1) for _ in range(600)]
        gate = threading.Event()
        service.tricks["stats"] = lambda c, r: gate.wait()
        client.timeout = 0.3
        with pytest.raises(poolbridge.ServiceStalledError):
            client.stats()
        started = time.monotonic()
        del leases
        assert time.monotonic() - started < 60
        with pytest.raises(poolbridge.ServiceStalledError):
            client.get("x")
        gate.set()
        del service.tricks["stats"]
        service.wait(lambda: service.leases == 0)


# A service that sends wrong data


HOSTILE = {
    "nothing known": b"\xc1",
    "an array": b"\x90",
    "half a map": b"\x82\xa1q\x01",
    "twice a key": b"\x82\xa1q\x01\xa1q\x01",
    "neither": b"\x80",
    "an unasked reply": msgspec.msgpack.encode({"q": 4_000_000}),
    "trailing": b"\x81\xa1q\x01\x00",
    "too long": b"\x81\xa1q\x01" + bytes(70_000),
    "deep": b"\x82\xa1q\x01\xa1z" + b"\x91" * 5000,
    "a wide array": b"\x82\xa1n\xa6recall\xa2bl\xdd\xff\xff\xff\xff",
    "an error without a request": msgspec.msgpack.encode({"e": {"c": "protocol", "m": "you"}}),
}


@pytest.mark.parametrize("packet", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_packet_ends_the_session(service, client, packet):
    service.tricks["stats"] = lambda c, r: c.send(packet)
    with pytest.raises(poolbridge.ProtocolError):
        client.stats()
    assert client.closed


def lying_grant(**changes):
    fields = {
        "id": 77, "bf": 1, "ge": 1, "wr": True, "pl": 1, "bl": 5, "bs": 4096, "n": 16,
        "t": {"dt": "float32", "sh": [4]}, "x": {"d": bytes(8)},
    }  # fmt: skip
    fields |= changes
    return {key: value for key, value in fields.items() if value is not None}


LIES = {
    "a block whose export was never sent": {"x": None},
    "a block outside the pool": {"x": {"d": (1 << 22).to_bytes(8, "little")}},
    "a block far outside the pool": {"x": {"d": b"\xff" * 8}},
    "an export of another length": {"x": {"d": b"1234"}},
    "a buffer larger than its block": {"n": 5000},
    "a tensor larger than its buffer": {"t": {"dt": "float32", "sh": [5]}},
    "a tensor that begins before its buffer": {"t": {"dt": "float32", "sh": [4], "st": [-1]}},
    "a tensor of huge strides": {"t": {"dt": "float32", "sh": [2], "st": [2**62]}},
    "an unknown element type": {"t": {"dt": "float9", "sh": [1]}},
    "an odd offset": {"t": {"dt": "float32", "sh": [1], "of": 3}},
    "too many axes": {"t": {"dt": "int8", "sh": [1] * 33}},
    "strides for another number of axes": {"t": {"dt": "int8", "sh": [1], "st": [1, 1]}},
    "descriptors that did not come": {"x": {"d": bytes(8), "f": 3}},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lying_grant_is_refused(service, client, lie):
    pool = next(iter(service.pools))

    def trick(connection, request):
        connection.send(reply(request, l=lying_grant(pl=pool, **lie)))

    service.tricks["alloc"] = trick
    service.tricks["release"] = lambda c, r: None
    with pytest.raises(poolbridge.ProtocolError):
        client.allocate(4)


@pytest.mark.parametrize("count", [1, 8, 9, 20])
def test_descriptors_that_nobody_asked_for_are_closed(service, client, count):
    fds = [os.dup(0) for _ in range(count)]
    service.tricks["stats"] = lambda c, r: c.send(m.Reply(number=r.number), fds)
    with pytest.raises(poolbridge.ProtocolError):
        client.stats()
    for fd in fds:
        os.close(fd)


def test_received_descriptors_are_close_on_exec(service):
    from poolbridge._wire.transport import Transport

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(theirs, [b"x"], [0])
        transport = Transport(ours)
        packet = transport.receive()
        assert packet is not None
        _, descriptors = packet
        fd = descriptors.one()
        assert not os.get_inheritable(fd)
        os.close(fd)
        transport.close()


def test_a_pool_whose_file_could_shrink_is_refused(service, client):
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 1 << 16)
    info = {"id": 900, "nm": "bad", "k": "host", "mx": 1 << 16, "x": {"f": 1}}
    service.tricks["open"] = lambda c, r: c.send(reply(r, p=info), [fd])
    service.tricks["alloc"] = lambda c, r: c.send(reply(r, l=lying_grant(pl=900)))
    client.open_pool("bad")
    with pytest.raises(poolbridge.ProtocolError, match="sealed"):
        client.allocate(4, pool="bad")
    os.close(fd)


def test_memory_of_an_unknown_kind(service, client):
    info = {"id": 901, "nm": "odd", "k": "core", "mx": 1 << 16}
    service.tricks["open"] = lambda c, r: c.send(reply(r, p=info))
    service.tricks["alloc"] = lambda c, r: c.send(reply(r, l=lying_grant(pl=901)))
    client.open_pool("odd")
    with pytest.raises(poolbridge.UnsupportedError, match="core"):
        client.allocate(4, pool="odd")
    client.stats()
    assert len(service.seen(m.Release)) == 1
    assert not client.closed


def test_an_unknown_notice_is_ignored(service, client):
    service.connections[0].send(msgspec.msgpack.encode({"n": "weather", "m": "fine"}))
    assert client.stats().sessions == 1


def test_an_unknown_error_code_is_still_an_error(service, client):
    service.tricks["stats"] = lambda c, r: c.send(reply(r, e={"c": "moon", "m": "full"}))
    with pytest.raises(poolbridge.PoolbridgeError, match="moon"):
        client.stats()


# Forks


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_use_the_client_and_releases_nothing(service, client):
    lease = client.allocate(4)
    array = np.asarray(lease)
    array[:] = 6
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        result = b"nothing"
        try:
            for use in (client.stats, lease.release, lambda: np.asarray(lease), lambda: client.allocate(1)):
                try:
                    use()
                except poolbridge.ForkError:
                    continue
                result = b"went on"
                break
            else:
                del array, lease
                client.close()
                result = b"refused"
        except BaseException as error:  # noqa: BLE001
            result = repr(error).encode()
        finally:
            os.write(writer, result)
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 1000) == b"refused"
    os.close(reader)
    client.stats()
    assert service.leases == 1
    assert array.tolist() == [6, 6, 6, 6]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_connection_open(service, client):
    del service
    names = [os.readlink(f"/proc/self/fd/{client._session.transport.fileno()}")]
    child = os.fork()
    if not child:
        kept = [fd for fd in os.listdir("/proc/self/fd") if _link(fd) in names]
        os._exit(len(kept))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.stats()


def _link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the descriptor by which `os.listdir` read the folder
        return ""


FORK = """
import gc, mmap, os, sys
import numpy as np
import poolbridge

client = poolbridge.connect(sys.argv[1])
client.create_pool("p", max_bytes=1 << 21)
lease = client.allocate(1 << 20, "uint8", pool="p")
array = np.asarray(lease)
array[:] = 6
address, page = array.ctypes.data, mmap.PAGESIZE
child = os.fork()
if not child:
    {}
_, status = os.waitpid(child, 0)
assert array[0] == 6
print(os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


def fork(service, what):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK.format(what), service.path]
    source = str(Path(poolbridge.__file__).parents[1])
    done = subprocess.run(command, env={"PYTHONPATH": source}, check=True, capture_output=True, text=True, timeout=60)
    return int(done.stdout)


def test_a_forked_child_does_not_get_the_memory(service):
    """A child that has the memory could still write into it after the parent has ended and another client has it."""
    assert fork(service, "array[0] = 7") == -signal.SIGSEGV


def test_nothing_of_a_forked_child_comes_to_lie_where_the_memory_was(service):
    """A child that drops the parent's objects unmaps their addresses, so the child's own memory must not be there."""
    code = """
    own = [mmap.mmap(-1, page) for _ in range(1000)] + [mmap.mmap(-1, 1 << 20) for _ in range(10)]
    places = [np.frombuffer(memory, np.uint8).ctypes.data for memory in own]
    assert not [at for at in places if address <= at < address + (1 << 20)]
    del array, lease, client
    gc.collect()
    for memory in own:
        memory[:1] = b"x"
    os._exit(3)
"""
    assert fork(service, code) == 3


def test_a_forked_child_that_connects_anew_has_memory_of_its_own(service):
    code = """
    again = poolbridge.connect(sys.argv[1])
    again.open_pool("p")
    fresh = again.allocate(1 << 16, "uint8", pool="p", timeout=60)
    np.asarray(fresh)[:] = 7
    fresh.publish("of the child", keep=True)
    os._exit(int(np.asarray(again.get("of the child"))[0]))
"""
    assert fork(service, code) == 7


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_ask_whether_a_buffer_failed(service, client):
    lease = client.allocate(4)
    child = os.fork()
    if not child:
        status = 1
        try:
            lease.check()
        except poolbridge.ForkError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_mappings_are_gone_after_each_of_these():
    assert len(MAPPINGS) == 0


def test_a_process_that_can_start_no_thread_loses_no_descriptor_by_connecting(tmp_path, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    def attempt():
        with pytest.raises(poolbridge.UnavailableError, match="needs one thread"):
            poolbridge.connect(path)
        listening.accept()[0].close()
        gc.collect()
        return sorted(os.listdir("/proc/self/fd"))

    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert attempt() == attempt()


@pytest.mark.parametrize("shape", [(1 << 32, 1 << 32), (1 << 63,), (3, 1 << 62, 1)])
def test_a_tensor_without_strides_has_a_number_of_elements_that_fits(shape):
    with pytest.raises(poolbridge.ProtocolError, match=r"2\*\*63 - 1 elements"):
        _tensor.from_wire(m.Tensor(dtype="uint8", shape=shape, strides=(0,) * len(shape)), 8)
