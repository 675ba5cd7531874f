"""Tests signal handlers that raise an exception, at every point where CPython may run a handler."""

from __future__ import annotations

import dis
import gc
import os
import socket
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from realservice import RealService, leases, until

import poolbridge
from poolbridge._session import producer as _producer
from poolbridge._session.consumer import Consumer
from poolbridge._session.core import Core
from poolbridge._session.division import ALIGN
from poolbridge._session.session import Session
from poolbridge._sys.deferred import DeferringLock, OwnedLock, PlainDeferringLock
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.native import NATIVE
from poolbridge._wire import messages as m
from poolbridge._wire.packet import encode
from poolbridge._wire.transport import Descriptors, Transport

PACKAGE = str(Path(poolbridge.__file__).parent)


# The tests do not interrupt this function: an interrupt inside it may leave a frame's block mapped.
_SPARED = {Consumer._end.__code__}


class Interrupted(BaseException):
    pass


@cache
def steps(code):
    """Return the bytecode offsets after which a handler may run, and a function that finds the ``try`` of an offset."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def guard(offset):
        return next((entry.target for entry in table if entry.start <= offset < entry.end), None)

    found = {}
    instructions = list(dis.get_instructions(code))
    for one in instructions:
        calls = one.opname in {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}
        # In the loop of `yield from` and `await`, CPython runs no handler.
        back = "BACKWARD" in one.opname and "NO_INTERRUPT" not in one.opname
        if calls or one.opname == "RESUME" or back:
            found[one.offset] = (calls, guard(one.offset))
    return found, guard


class Interrupter:
    """Raises `Interrupted` inside a ``with`` statement, once, where CPython may run a signal handler.

    Only places in the package and in the `functions` count. The first `at` places pass without the exception, which
    comes at the next place. The ``with`` statement catches the exception. `begins` says whether the beginning of each
    function counts, too.
    """

    def __init__(self, at, *functions, begins=False):
        self._left = at
        self._begins = begins
        self._functions = {function.__code__ for function in functions}
        self._last = {}
        self._spared = set()
        self.where = None

    def __enter__(self):
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 needs this before `settrace` to report opcodes
        sys.settrace(self._call)
        return self

    def __exit__(self, kind, error, trace):
        sys.settrace(None)
        self._last.clear()
        self._spared.clear()
        return kind is Interrupted

    def _call(self, frame, event, arg):
        # The last instruction of the caller has called a Python function. CPython runs no handler after such a call.
        self._last.pop(frame.f_back, None)
        if frame.f_code not in self._functions and not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if frame.f_code in _SPARED or frame.f_back in self._spared:
            self._spared.add(frame)
            return None
        if self._begins:
            self._pass(frame)
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame, event, arg):
        if event == "return":
            self._last.pop(frame, None)
        if event != "opcode":
            return self._step
        found, guard = steps(frame.f_code)
        before, self._last[frame] = self._last.get(frame), frame.f_lasti
        if before in found and found[before][1] == guard(frame.f_lasti):
            self._pass(frame)
        return self._step

    def _pass(self, frame):
        if not self._left:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            sys.settrace(None)
            raise Interrupted
        self._left -= 1


def at_every_step(try_it, *functions, most=100_000, begins=False) -> int:
    """Call `try_it` with an interrupt at the first place, then at the second, and so on; return how many there are."""
    for at in range(most):
        if sys.version_info >= (3, 13):  # CPython reports all opcodes of a function from its second call on
            try_it(Interrupter(most, *functions))
        interrupter = Interrupter(at, *functions, begins=begins)
        try_it(interrupter)
        if interrupter.where is None:
            return at
    raise AssertionError("that has no end")


def is_free(lock):
    def take():
        with lock:
            pass

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


@pytest.mark.parametrize("kind", [DeferringLock, PlainDeferringLock])
def test_no_interrupt_leaves_a_lock_behind_or_work_undone(kind):
    lock: Any = None

    def use():
        with lock:
            state.append("held")
            lock.later(partial(done.append, 1))
            state.append("left")
        lock.later(partial(done.append, 2))
        state.append("left again")

    def try_it(interrupter):
        nonlocal lock
        lock = kind()
        state.clear()
        done.clear()
        lock.later(list)
        with interrupter:
            use()
        assert is_free(lock), interrupter.where
        if "left" in state:
            assert done[:1] == [1], interrupter.where
        if "left again" in state:
            assert done == [1, 2], interrupter.where

    state: list[str] = []
    done: list[int] = []
    assert at_every_step(try_it, use) > 3


@pytest.mark.parametrize("kind", [DeferringLock, PlainDeferringLock])
def test_an_interrupt_of_what_was_left_leaves_no_lock_behind(kind):
    lock: Any = None

    def work():
        len(())
        done.append(1)

    def use():
        with lock:
            lock.later(work)
            lock.later(partial(done.append, 2))
        lock.later(work)
        with lock:
            pass

    def try_it(interrupter):
        nonlocal lock
        lock = kind()
        done.clear()
        with interrupter:
            use()
        assert is_free(lock), interrupter.where
        if "work" in (interrupter.where or ""):
            assert 2 in done, interrupter.where

    done: list[int] = []
    assert at_every_step(try_it, use, work) > 3


def interrupted(times):
    """Return a function that the first `times` calls interrupt, and the list of all calls."""
    calls: list[int] = []

    def work(*_):
        calls.append(1)
        if len(calls) <= times:
            raise Interrupted

    return work, calls


@pytest.mark.parametrize("kind", [DeferringLock, PlainDeferringLock])
def test_a_lock_does_work_that_several_interrupts_end(kind):
    work, calls = interrupted(3)
    with pytest.raises(Interrupted):
        kind().later(work)
    assert len(calls) == 4


@pytest.mark.skipif(NATIVE is None, reason="needs the native module")
def test_a_finaliser_that_several_interrupts_end_does_its_work(quiet):
    work, calls = interrupted(3)
    type("Finalised", (), {"__del__": while_running(work)})()
    assert len(calls) == 4


def test_no_interrupt_leaves_an_owned_lock_behind():
    lock: Any = None

    def use():
        if lock.take():
            try:
                assert not lock.take(0)
                with lock:
                    len(())
            finally:
                lock.release()
        with lock, lock:
            len(())

    def try_it(interrupter):
        nonlocal lock
        lock = OwnedLock()
        with interrupter:
            use()
        assert is_free(lock), interrupter.where

    assert at_every_step(try_it, use) > 3


@pytest.mark.parametrize("kind", [DeferringLock, PlainDeferringLock])
def test_an_error_in_what_was_left_is_a_warning(kind):
    def fail():
        raise ValueError("no")

    lock, done = kind(), list[int]()
    with pytest.warns(ResourceWarning, match="ValueError.*no"):
        lock.later(fail)
    lock.later(partial(done.append, 1))
    assert done == [1]


# Packets


def test_a_packet_whose_sending_is_interrupted_is_sent_once():
    def try_it(interrupter):
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        a, b = Transport(one), Transport(other)
        try:
            packets = deque(bytes([number]) * 9 for number in range(3))
            whole = list(packets)
            with interrupter:
                a.send(packets)
            assert a.send(packets)
            came: list[bytes] = []
            while (more := b.receive()) is not None:
                came.append(more[0])
                b.processed()
            assert came == whole, interrupter.where
        finally:
            a.close()
            b.close()

    assert at_every_step(try_it) > 3


@contextmanager
def interrupted_after_receiving():
    """Raise an error once, when the C function returns in which `Transport._receive` takes a packet from the socket."""

    def raise_once(frame, event, function):
        if event == "c_return" and frame.f_code is Transport._receive.__code__ and function.__name__ != "map":
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(raise_once)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_packet_whose_receiving_is_interrupted_is_received_by_the_next_call():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    a, b = Transport(one), Transport(other)
    try:
        a.send(deque([b"first", b"second"]))
        with pytest.raises(Interrupted), interrupted_after_receiving():
            b.receive()
        assert b.unread
        came = []
        for _ in range(3):
            came += [b.receive(), b.receive()]
            b.processed()
        assert [one and one[0] for one in came] == [b"first", b"first", b"second", b"second", None, None]
        assert not b.unread
    finally:
        a.close()
        b.close()


def test_a_lease_whose_grant_is_interrupted_goes_back_without_another_call(real, quiet):
    client, other = real
    client.put(np.zeros(3), "x").release()
    other.get("x").release()
    with pytest.raises(Interrupted), interrupted_after_receiving():
        other.get("x")
    until(lambda: leases(client) == 0)
    other.get("x").release()


@contextmanager
def reading(client):
    """Keep the watcher of a client from reading."""
    reader = client._reader
    while not reader._begin_reading():
        reader._reading.acquire()
        reader._reading.release()
    try:
        yield
    finally:
        reader._read, reader._armed = False, True
        reader._reading.release()
        reader._after_reading()


@pytest.mark.parametrize("what", ["grant", "abandoned grant", "error", "pool", "recall"])
def test_no_interrupt_of_the_processing_of_a_packet_loses_it(real, quiet, what):
    """The packet answers another thread, which gets the answer, or brings memory, which comes back."""
    client, other = real
    session, core = client._session, client._session.core
    pool = other.create_pool("p", max_bytes=1 << 20)
    client.open_pool("p")
    alloc = partial(m.Alloc, pool=pool.id, tensor=m.Tensor(dtype="uint8", shape=(8,)), wait=0)

    def ask(came):
        if what == "recall":
            return other.trim("p")
        if what == "error":
            return session.ask(m.Get(name="none", wait=0), m.GrantReply, came.set)
        if what == "pool":
            made = other.create_pool(f"p{len(other.pools())}", max_bytes=1 << 20)
            return session.ask(m.Open(pool=made.id), m.PoolReply, came.set)
        call = session.ask(alloc(), m.GrantReply, came.set)
        if what != "grant":
            session.abandon(call)
        return call

    def try_it(interrupter):
        if what == "recall":
            client.allocate(8, pool=pool).release()
            client.stats()
        else:
            other.trim("p")
        until(lambda: bool(core.blocks) == (what == "recall"))
        came = threading.Event()
        with reading(client):
            call = ask(came)
            assert client._reader._poll.poll(20_000)
            with interrupter:
                session.receive()
        if what == "recall":
            until(lambda: not core.blocks)
            return
        assert came.wait(60), interrupter.where
        until(lambda: not core.unanswered and not session.transport.unread)
        until(lambda: leases(other) == (what == "grant"))
        if what == "grant":
            session.release_grant(call.reply.grant)
        assert call.failed == (what == "error"), interrupter.where
        del call
        client.stats()
        assert leases(other) == 0, interrupter.where
        assert all(not block.leases for block in core.blocks.values()), interrupter.where

    def files():
        """Return how many descriptors are open, without those of blocks and pools that are not mapped."""
        gc.collect()
        both = core, other._session.core
        known = [one.descriptors for of in both for one in (*of.blocks.values(), *of.pools.values())]
        return len(os.listdir("/proc/self/fd")) - sum(map(len, known))

    try_it(Interrupter(100_000))
    before = files()
    assert at_every_step(try_it, begins=True) > 3
    assert files() == before


@pytest.mark.parametrize("call", ["get", "allocate"])
def test_a_lease_whose_caller_is_interrupted_twice_goes_back(real, quiet, monkeypatch, call):
    """The second handler raises as the client begins to clean up."""
    client, other = real
    client.put(np.zeros(3), "x").release()
    other.get("x").release()
    other.allocate(8, pool="frames").release()
    other.stats()
    kept = leases(client)

    def raises(*_):
        raise Interrupted

    def try_it(interrupter):
        with monkeypatch.context() as patch:
            patch.setattr(Session, "abandon", raises)
            patch.setattr(Session, "release_untaken", raises)
            patch.setattr(Session, "release_grant", raises)
            patch.setattr(Core, "forsake", raises)
            with interrupter:
                other.get("x") if call == "get" else other.allocate(8, pool="frames")
        gc.collect()
        until(lambda: leases(client) == kept)
        other.stats()

    assert at_every_step(try_it, begins=True) > 3


def granted(core, call, lease):
    grant = m.Grant(
        id=lease,
        buffer=lease,
        generation=1,
        write=True,
        pool=1,
        block=7,
        block_nbytes=64,
        nbytes=8,
        tensor=m.Tensor(dtype="|u1", shape=(8,)),
    )
    if 7 not in core.blocks:
        grant.export = m.Export(fds=0, data=b"")
    core.receive(encode(m.GrantReply(number=call.number, grant=grant)), Descriptors())


def test_what_a_second_reply_grants_is_given_back():
    core = Core()
    core.checks_leases = False
    call = core.start(m.Alloc(pool=1, tensor=m.Tensor(dtype="|u1", shape=(8,))), m.GrantReply, list)
    core.outbox.clear()
    granted(core, call, 1)
    assert not core.outbox
    granted(core, call, 2)
    assert list(core.outbox) == [encode(m.Release(lease=2))]
    assert core.blocks[7].leases == 1
    assert isinstance(call.reply, m.GrantReply)
    assert call.reply.grant.id == 1


def test_a_reply_to_what_is_forgotten_is_ignored_and_one_to_what_never_was_is_an_error():
    core = Core()
    call = core.start(m.StatsRequest(), m.Reply, list)
    core.receive(encode(m.Reply(number=call.number)), Descriptors())
    core._answered.clear()
    fds = Descriptors(os.pipe())
    core.receive(encode(m.Reply(number=call.number)), fds)
    assert not len(fds)
    core.receive(encode(m.Reply(number=call.number, error=m.Error("busy", "no"))), Descriptors())
    with pytest.raises(poolbridge.ProtocolError, match="never sent"):
        core.receive(encode(m.Reply(number=call.number + 1)), Descriptors())
    core._number = 2**32 - 1
    core.start(m.StatsRequest(), m.Reply, list)
    core.receive(encode(m.Reply(number=2**32 - 2)), Descriptors())


# Requests


def test_no_interrupt_of_a_request_ends_the_session_or_leaves_its_lease(service, client):
    def ask():
        made.append(client.allocate(8, pool=pool))

    def try_it(interrupter):
        made.clear()
        with interrupter:
            ask()
        for lease in made:
            lease.release()
        made.clear()
        gc.collect()
        other = threading.Thread(target=client.stats, daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive(), interrupter.where
        client.stats()
        service.wait(lambda: not service.leases)

    made: list[Any] = []
    pool = client.create_pool("p", max_bytes=1 << 24)
    client.allocate(8, pool=pool).release()
    assert at_every_step(try_it, begins=True) > 3


# Leases


def _with(lease):
    with lease:
        pass


def _with_error(lease):
    with pytest.raises(ValueError), lease:
        raise ValueError


ENDS = {
    "release": lambda held: held[0].release(),
    "with": lambda held: _with(held[0]),
    "with an error": lambda held: _with_error(held[0]),
    "drop": lambda held: held.clear(),
}


@pytest.fixture
def quiet(monkeypatch):
    """Ignore interrupts of finalisers, which Python only prints."""
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: None)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("named", [False, True])
def test_no_interrupt_of_the_end_of_a_lease_leaves_the_lease(service, client, quiet, end, named):
    held: list[Any] = []
    pool = client.create_pool("p", max_bytes=1 << 24)

    def try_it(interrupter):
        if named:
            client.put(np.zeros(8), "x", pool=pool, replace=True)
            held.append(client.get("x"))
        else:
            held.append(client.allocate(8, pool=pool))
        ends = ENDS[end]
        with interrupter:
            ends(held)
        held.clear()
        gc.collect()
        service.wait(lambda: not service.leases)
        assert not service.differences, interrupter.where
        assert all(not block.leases for block in client._session.core.blocks.values()), interrupter.where
        client.stats()

    assert at_every_step(try_it, begins=True) > 3


# `threading` has these functions in Python, so a handler may run inside them.
_OF_EVENTS = [
    function
    for kind in (threading.Event, threading.Condition)
    for function in vars(kind).values()
    if hasattr(function, "__code__")
]


def test_no_interrupt_of_a_thread_that_waits_for_the_reader_holds_up_who_wakes_it(service, client):
    reader = client._reader

    def read(turns, begun, over):
        while not reader._begin_reading():
            reader._reading.acquire()  # the watcher reads
            reader._reading.release()
        begun.set()
        while not (reader._waiting or over.is_set()):
            time.sleep(0)
        turns += reader._waiting
        reader._read, reader._armed = False, True
        reader._reading.release()
        reader._after_reading()

    def try_it(interrupter):
        turns: list[Any] = []
        begun, over = threading.Event(), threading.Event()
        reading = threading.Thread(target=read, args=(turns, begun, over))
        reading.start()
        begun.wait()
        with interrupter:
            client.stats()
        over.set()
        reading.join()
        assert not reader._waiting, interrupter.where
        for turn in turns:
            waking = threading.Thread(target=getattr(turn(), "set", list), daemon=True)
            waking.start()
            waking.join(60)
            assert not waking.is_alive(), interrupter.where
        client.stats()

    client.stats()
    assert at_every_step(try_it, *_OF_EVENTS) > 3


# Frames


@pytest.fixture
def real(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    with poolbridge.connect(running.path) as client, poolbridge.connect(running.path) as other:
        client.create_pool("frames", max_bytes=1 << 22)
        yield client, other
    running.close()


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="after an interrupt, CPython 3.13 leaves out opcodes: use Python 3.11 or 3.12"
)
@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("take", ["iterate", "receive", "arrays"])
def test_no_interrupt_loses_a_frame(real, mode, take):
    """If a call is interrupted before it returns its frame, the next call returns this frame.

    At the end of each try, the subscription keeps only the frame that came last.
    """
    client, other = real
    channel = client.create_channel(f"{take} {mode}", mode=mode, capacity=4)
    publish = partial(channel.publish, np.zeros(4), timeout=60)

    def get():
        frame = next(source) if take != "receive" else frames.receive()
        came.append(source.seq if take == "arrays" else frame.seq)
        held.append(frame)

    def try_it(interrupter):
        came.clear()
        number = publish()
        with interrupter:
            get()
        held.clear()
        if not came:
            get()
        assert came == [number], interrupter.where
        held.clear()
        number = publish()
        get()
        assert came[1:] == [number], interrupter.where
        assert consumer.native.in_hand == [number], interrupter.where
        assert len(consumer._frames) <= 1, interrupter.where
        assert len(consumer.credit.unsettled) <= 1, interrupter.where
        held.clear()

    came: list[int] = []
    held: list[Any] = []
    with other.subscribe(channel.name) as frames:
        consumer = frames._consumer
        source = frames.arrays() if take == "arrays" else frames
        publish()
        get()
        held.clear()
        assert at_every_step(try_it) > 3


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="after an interrupt, CPython 3.13 leaves out opcodes: use Python 3.11 or 3.12"
)
def test_no_interrupt_keeps_the_memory_of_a_frame_after_the_subscription_was_closed(real, quiet):
    client, other = real
    channel = client.create_channel("closed", mode="queue", capacity=4)

    def try_it(interrupter):
        channel.publish(np.zeros(4), timeout=60)
        with other.subscribe("closed") as frames, interrupter:
            next(frames)
        del frames
        with other.subscribe("closed", ack="manual") as frames:
            for frame in iter(partial(receive_now, frames), None):
                frame.release()
            frame = None
        assert not any(block.leases for block in other._session.core.blocks.values()), interrupter.where

    def receive_now(frames):
        with suppress(poolbridge.WaitTimeoutError):
            return frames.receive(0)

    assert at_every_step(try_it) > 3


@pytest.mark.parametrize("kept", [False, True], ids=["no array", "an array"])
def test_no_interrupt_of_a_publication_leaves_its_lease_to_two(real, quiet, kept):
    """Either the channel has the frame, and its memory, or the program still has the lease."""
    client, other = real
    channel = client.create_channel("c", mode="queue", capacity=4)

    def try_it(interrupter):
        lease = client.allocate(4, pool=channel.pool)
        arrays = [np.asarray(lease)]
        if not kept:
            arrays.clear()
        with interrupter:
            channel.publish(lease)
        published = bool(producer.native.in_flight)
        with pytest.raises(poolbridge.LeaseReleasedError) if published else nullcontext():
            np.asarray(lease)
        del lease
        arrays.clear()
        gc.collect()
        client.stats()
        assert leases(other) == published, interrupter.where
        if published:
            frames.receive(60).ack()
        come_back(client)
        client.stats()
        assert leases(other) == 0, interrupter.where
        assert all(not block.leases for block in client._session.core.blocks.values()), interrupter.where

    with other.subscribe("c") as frames:
        channel.publish(client.allocate(4, pool=channel.pool))
        frames.receive(60).ack()
        producer = client._session.producers[channel.id]
        come_back(client)
        assert at_every_step(try_it, begins=True) > 3


# What comes back


def come_back(client):
    """Release what came back to a client, as the client does by itself twice a second."""
    with client._session.lock:
        client._session.returns.collect()


@pytest.mark.parametrize("call", ["allocate", "collect", "await_back"])
def test_no_interrupt_loses_memory_that_comes_back(real, quiet, call):
    client, other = real
    channel = client.create_channel("c", mode="queue", capacity=4)
    calls = {
        "allocate": lambda: made.append(client.allocate(4, pool=channel.pool)),
        "collect": lambda: come_back(client),
        "await_back": lambda: client._session.producers[channel.id].await_back(0.0),
    }

    def try_it(interrupter):
        for _ in range(2):
            channel.publish(client.allocate(4, pool=channel.pool))
        for _ in range(2):
            next(frames).ack()
        with interrupter:
            calls[call]()
        made.clear()
        gc.collect()
        come_back(client)
        client.stats()
        assert leases(other) == 0, interrupter.where

    made: list[Any] = []
    with other.subscribe("c") as frames:
        channel.publish(client.allocate(4, pool=channel.pool))
        next(frames).ack()
        assert at_every_step(try_it, begins=True) > 3


@pytest.mark.parametrize("call", ["take", "take joined", "take a new block", "put back", "detach"])
def test_no_interrupt_loses_a_part_of_an_arena(real, quiet, call):
    client, other = real
    size, stream = 8 * ALIGN, object()

    def try_it(interrupter):
        with client.arena(size) as arena:
            division = arena._division
            parts = [division.take(ALIGN) for _ in range(3)]
            if call == "take a new block":
                parts.append(division.take(5 * ALIGN))
            if call in {"put back", "detach"}:
                parts[1].used_on(stream)
            if call != "put back":
                del parts[:2]
            calls = {
                "take": partial(division.take, ALIGN),
                "take joined": partial(division.take, 5 * ALIGN),
                "take a new block": partial(arena.empty, 5 * ALIGN, "uint8"),
                "put back": parts.clear,
                "detach": division.detach,
            }
            with interrupter:
                calls[call]()
            parts.clear()
            division.let_go(close=False)
            assert division.blocks[0].used == 0, interrupter.where
            if (freed := division.detach()) is not None:
                freed.used_on(None)
                del freed
            whole = division.take(size)
            assert whole is not None, interrupter.where
            del whole
        until(lambda: client.stats() and leases(other) == 0)  # the client gives back what comes after an interrupt

    assert at_every_step(try_it, begins=True) > 3


@pytest.mark.parametrize("step", ["close", "drop"])
def test_no_interrupt_of_the_end_of_a_publisher_leaves_its_arena(real, quiet, step):
    client, other = real
    channel = client.create_channel("c", mode="queue", capacity=4)
    held: list[Any] = []

    def try_it(interrupter):
        publisher = channel.publisher(4, "int32")
        held.append(publisher.loan())
        if step == "close":
            with interrupter:
                publisher.close()
        else:
            publisher.close()
        del publisher
        if step == "drop":
            with interrupter, client._session.lock:  # with the lock, no other thread refers to the array
                held.clear()
        held.clear()
        gc.collect()
        come_back(client)
        client.stats()
        assert leases(other) == 0, interrupter.where

    assert at_every_step(try_it, begins=True) > 3


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_interrupt_of_the_end_of_a_client_leaves_its_session(real, quiet):
    client, other = real
    channel = client.create_channel("c", mode="queue", capacity=4)
    client.create_channel("d")
    before = len(other.sessions())
    with other.subscribe("c") as frames:

        def try_it(interrupter):
            ends = poolbridge.connect(client.path, timeout=60)
            own = ends.open_channel("c")
            held = [ends.allocate(4, pool=channel.pool), own.publisher(4, "int32").loan(), ends.subscribe("d")]
            held += [ends.put(np.zeros(4), "x", pool=channel.pool)]
            own.publish(ends.allocate(4, pool=channel.pool))
            next(frames).ack()
            with interrupter:
                ends.close()
            del ends, own, held
            gc.collect()
            until(lambda: leases(other) == 0 and len(other.sessions()) == before, 60)

        assert at_every_step(try_it, begins=True) > 3


def test_a_request_that_is_given_up_after_its_reply_leaves_no_lease(service, client):
    """Another thread may receive the reply before the thread that was interrupted gives its request up."""
    pool, core = client.create_pool("p", max_bytes=1 << 24), client._session.core
    request = m.Alloc(pool=pool.id, tensor=m.Tensor(dtype="uint8", shape=(8,)), wait=0)
    came = threading.Event()
    _call = client._session.ask(request, m.GrantReply, came.set)  # has the reply
    assert came.wait(60)
    assert core.granted
    with client._session.lock:
        core.forsake(request)
    client.stats()
    assert not core.granted
    assert not service.leases


def test_a_session_forgets_the_leases_of_channels_that_it_leaves(real):
    client, _ = real
    for name in "cd":
        channel = client.create_channel(name, mode="queue", capacity=4)
        channel.publish(client.allocate(4, pool=channel.pool))
        session = client._session
        session.leave(session.producers.pop(channel.id))
        assert not session.core.granted
        assert all(not block.leases for block in session.core.blocks.values())


def test_no_interrupt_of_the_first_publication_holds_up_the_next(monkeypatch):
    def join(*_):
        yield from ()
        return "the producer"

    def try_it(interrupter):
        session.producers.clear()
        with interrupter:
            deque(_producer.producer_of(session, channel), maxlen=0)
        assert not session.joining, interrupter.where

    monkeypatch.setattr(_producer, "join", join)
    session: Any = SimpleNamespace(producers={}, joining={})
    channel: Any = SimpleNamespace(id=1, name="c")
    assert at_every_step(try_it, begins=True) > 3
    assert session.producers == {1: "the producer"}


@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(how, marks=pytest.mark.long) for how in ("subscribe by name", "subscribe to a channel")),
        "publish",
    ],
)
def test_no_interrupt_of_a_join_leaves_its_member(real, quiet, how):
    client, other = real
    channel = client.create_channel("c")
    session, core = client._session, client._session.core
    held: list[Any] = []

    def join():
        if how == "publish":
            channel.publish(held.pop())
        else:
            held.append(client.subscribe("c" if how == "subscribe by name" else channel))

    def try_it(interrupter):
        if how == "publish":
            held.append(client.allocate(4, pool=channel.pool))
        with interrupter:
            join()
        held.clear()
        gc.collect()
        client.stats()
        assert not core.seats, interrupter.where
        members = [(one.session, one.id) for one in other.members("c")]
        assert members == [(core.session_id, one.member) for one in core.members], interrupter.where
        if how == "publish":
            assert [one.member for one in session.producers.values()] == [one.member for one in core.members]
            while session.producers:
                session.leave(session.producers.popitem()[1])
        assert not core.members, interrupter.where
        client.stats()

    channel.publish(client.allocate(4, pool=channel.pool))  # which makes the timeline
    session.leave(session.producers.popitem()[1])
    assert at_every_step(try_it, begins=True) > 3
