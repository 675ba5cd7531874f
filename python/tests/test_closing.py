"""Tests when memory comes back: of closed clients, when the last array is gone; after a call that failed, at once."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakeservice import Service as FakeService
from realservice import RealService, no_collector, publish, until

import poolbridge
from poolbridge._array.copies import copy_into
from poolbridge._client import copies

MIB = 1 << 20
SESSIONS = 16


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"), "--pool", "name=p,kind=host,max=2MiB", "--limit", "sessions=16")
    yield running
    running.close()


@pytest.fixture
def other(service):
    with poolbridge.connect(service.path) as client:
        yield client


FAILING = {
    "the pool is full": lambda client: client.allocate(4 * MIB, pool="p", timeout=0),
    "the pool stays full": lambda client: client.allocate(4 * MIB, pool="p", timeout=0.01),
    "no such name": lambda client: client.get("none", timeout=0),
    "no such name in time": lambda client: client.get("none", timeout=0.01),
    "no such pool": lambda client: client.open_pool("none", timeout=0),
    "no such channel": lambda client: client.open_channel("none", timeout=0),
}


@pytest.mark.parametrize("failing", FAILING.values(), ids=FAILING)
def test_after_a_call_that_failed_memory_comes_back_without_the_garbage_collector(service, failing):
    arrays = []

    def call(client):
        array = np.asarray(client.allocate(4, pool="p"))
        arrays.append(weakref.ref(array))
        try:
            failing(client)
        except poolbridge.PoolbridgeError:
            return array.sum()
        pytest.fail("the call did not fail")

    async def acall(client):
        array = np.asarray(await client.allocate(4, pool="p"))
        arrays.append(weakref.ref(array))
        try:
            await failing(client)
        except poolbridge.PoolbridgeError:
            return array.sum()
        pytest.fail("the call did not fail")

    async def main():
        async with await poolbridge.connect_async(service.path) as client:
            await acall(client)

    with no_collector(), poolbridge.connect(service.path) as client:
        call(client)
        asyncio.run(main())
        assert [array() for array in arrays] == [None, None]


def test_after_a_wait_that_failed_memory_comes_back_without_the_garbage_collector(service, other):
    channel = other.create_channel("c", pool="p", capacity=1)
    arrays = []

    def call(wait):
        array = np.asarray(other.allocate(4, pool="p"))
        arrays.append(weakref.ref(array))
        try:
            wait()
        except poolbridge.WaitTimeoutError:
            return array.sum()
        pytest.fail("the wait did not fail")

    with poolbridge.connect(service.path) as client, client.subscribe("c", ack="manual") as frames, no_collector():
        call(lambda: frames.receive(0.01))
        publish(other, channel, 7)
        call(lambda: channel.publish(np.zeros(4), timeout=0.01))
        assert [array() for array in arrays] == [None, None]


def test_after_an_asyncio_wait_that_failed_memory_comes_back_without_the_garbage_collector(service, other):
    arrays = []

    async def call(client, fail):
        array = np.asarray(await client.allocate(4, pool="p"))
        arrays.append(weakref.ref(array))
        lease = await client.get("later")
        asyncio.get_running_loop().call_later(0.01, fail)
        try:
            await lease.wait(0.02 if fail is list else 60)
        except poolbridge.PoolbridgeError:
            return array.sum()
        pytest.fail("the wait did not fail")

    async def main():
        async with await poolbridge.connect_async(service.path) as client:
            await call(client, list)
            await call(client, partial(promise.fail, "no"))

    with other.allocate(4, pool="p") as lease, no_collector():
        promise = lease.promise()
        lease.publish("later")
        asyncio.run(main())
        assert [array() for array in arrays] == [None, None]
        until(lambda: other.stats().leases == 1)


def test_after_a_cancelled_copy_memory_comes_back_without_the_garbage_collector(service, monkeypatch):
    arrays = []
    loop: Any = None
    task: Any = None

    def slow(*arguments):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        loop.call_soon_threadsafe(task.cancel)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        return copy_into(*arguments)

    async def call(client):
        array = np.zeros(4)
        arrays.append(weakref.ref(array))
        try:
            await client.put(array, "it", pool="p")
        except asyncio.CancelledError:
            return array.sum()
        pytest.fail("the copy was not cancelled")

    async def main():
        nonlocal loop, task
        async with await poolbridge.connect_async(service.path) as client:
            loop, task = asyncio.get_running_loop(), asyncio.create_task(call(client))
            await task
            task = None

    monkeypatch.setattr(copies, "copy_into", slow)
    with no_collector():
        asyncio.run(main())
        assert arrays[0]() is None


class Silent:
    """A tracer that does nothing."""

    def trace(self, operation):
        return nullcontext()


def test_after_the_end_of_a_traced_loop_memory_comes_back_without_the_garbage_collector(service):
    def call(client):
        channel = client.create_channel("c", pool="p", capacity=2)
        with client.subscribe("c") as frames:
            publish(client, channel, 7)
            channel.close()
            for array in frames.arrays():
                copy = array.copy()
                arrays.append(weakref.ref(copy))

    arrays: list[Any] = []
    with no_collector(), poolbridge.connect(service.path, tracer=Silent()) as client:
        call(client)
        assert arrays[0]() is None


def sessions(client):
    """Return how many sessions this process has."""
    return sum(one.pid == os.getpid() for one in client.sessions())


def array_of_a_closed_client(service):
    with poolbridge.connect(service.path) as client:
        return np.asarray(client.allocate(MIB, "uint8", pool="p", timeout=60))


def array_of_a_closed_async_client(service):
    async def make():
        async with await poolbridge.connect_async(service.path) as client:
            return np.asarray(await client.allocate(MIB, "uint8", pool="p", timeout=60))

    return asyncio.run(make())


@pytest.mark.filterwarnings("ignore:unclosed")
def array_of_a_dropped_client(service):
    return np.asarray(poolbridge.connect(service.path).allocate(MIB, "uint8", pool="p", timeout=60))


def array_of_a_dropped_async_client(service):
    async def make():
        client = await poolbridge.connect_async(service.path)
        return np.asarray(await client.allocate(MIB, "uint8", pool="p", timeout=60))

    return asyncio.run(make())


WAYS = pytest.mark.parametrize(
    "make",
    [
        array_of_a_closed_client,
        array_of_a_closed_async_client,
        array_of_a_dropped_client,
        array_of_a_dropped_async_client,
    ],
)
CLOSED = pytest.mark.parametrize("make", [array_of_a_closed_client, array_of_a_closed_async_client])


@WAYS
@pytest.mark.filterwarnings("ignore:unclosed")
def test_the_memory_comes_back_when_the_last_array_dies(service, other, make):
    for _ in range(2 * SESSIONS):  # more than the pool and the limit of sessions allow at a time
        array = make(service)
        array[:] = 7
        assert int(array[-1]) == 7
        del array
        gc.collect()
    until(lambda: sessions(other) == 1)
    assert other.stats().leases == 0


@CLOSED
def test_lists_name_the_closed_client_that_holds_memory(service, other, make):
    array = make(service)
    (lease,) = other.leases()
    assert (lease.nbytes, lease.write) == (MIB, True)
    assert lease.session in {one.id for one in other.sessions()}
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(2 * MIB, "uint8", pool="p", timeout=0)
    (refusal,) = (event for event in other.events() if event.kind == "pool-full")
    assert re.search(
        rf"; session {lease.session} \(.*, pid {os.getpid()}, .*\) has the most of it, 1 MiB", refusal.text
    )
    del array
    other.allocate(2 * MIB, "uint8", pool="p", timeout=60)


def test_nobody_writes_a_buffer_while_an_array_of_a_closed_client_reads_it(service, other):
    other.open_pool("p")
    other.put(np.arange(4), "x")
    with poolbridge.connect(service.path) as client:
        array = client.get_array("x")
    with pytest.raises(poolbridge.BusyError):
        other.get("x", write=True, timeout=0)
    del array
    other.get("x", write=True, timeout=60).release()


def test_names_of_a_closed_client_are_gone_though_its_arrays_are_alive(service, other):
    with poolbridge.connect(service.path) as client:
        client.open_pool("p")
        array = np.asarray(client.put(np.arange(4), "mine"))
        client.put(np.arange(4), "kept", keep=True)
    assert [name.name for name in other.names()] == ["kept"]
    assert array.tolist() == [0, 1, 2, 3]


def test_a_closed_client_is_closed_though_its_arrays_are_alive(service):
    client = poolbridge.connect(service.path)
    lease = client.allocate(4, "uint8", pool="p")
    array = np.asarray(lease)
    client.close()
    client.close()
    assert client.closed
    assert lease.released
    for use in (client.stats, lambda: client.allocate(4, pool="p"), lambda: lease.publish("x")):
        with pytest.raises(poolbridge.ClientClosedError):
            use()
    assert array.tolist() == [0, 0, 0, 0]


def test_frames_of_a_closed_client_come_back_when_their_arrays_die(service, other):
    channel = other.create_channel("c", pool="p", capacity=2)
    with poolbridge.connect(service.path) as client:
        frames = client.subscribe("c")
        publish(other, channel, 5)
        array = np.asarray(next(frames))
        del frames
    channel.close()
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(2 * MIB, "uint8", pool="p", timeout=0)
    assert int(array[-1]) == 5
    del array
    other.allocate(2 * MIB, "uint8", pool="p", timeout=60)


def test_clients_that_close_at_the_same_time_leave_no_session_and_no_descriptor(service, other):
    def descriptors():
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (service.process.pid, os.getpid())]

    def use(_):
        with poolbridge.connect(service.path) as client:
            client.allocate(4096, "uint8", pool="p", timeout=60).release()

    use(0)
    before = descriptors()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(25 * SESSIONS)))
    assert sessions(other) == 1
    assert descriptors() == before


def test_an_allocation_that_waits_when_its_client_is_closed_holds_nothing(service, other):
    full = other.allocate(2 * MIB, "uint8", pool="p")
    client = poolbridge.connect(service.path)
    client.open_pool("p")
    raised: list[BaseException] = []

    def allocate():
        try:
            client.allocate(MIB, "uint8", timeout=60)
        except poolbridge.ClientClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=allocate)
    thread.start()
    until(lambda: any(one.waits for one in other.sessions()))
    client.close()
    thread.join(60)
    assert len(raised) == 1
    full.release()
    other.allocate(2 * MIB, "uint8", pool="p", timeout=60)
    until(lambda: sessions(other) == 1)


def test_a_request_that_waits_when_its_client_is_closed_says_so_whatever_the_service_answers(tmp_path):
    with closing(FakeService(str(tmp_path / "f.sock"))) as fake, ThreadPoolExecutor(1) as threads:
        asked = threading.Event()

        def cancelled(connection, request):
            error = {"c": "cancelled", "m": "the client has cancelled the request"}
            connection.send(msgspec.msgpack.encode({"q": request.request, "e": error}))

        fake.tricks |= {"alloc": lambda _connection, _request: asked.set(), "cancel": cancelled}
        client = poolbridge.connect(fake.path, timeout=60)
        client.create_pool("p", max_bytes=MIB)
        waiting = threads.submit(client.allocate, 4, "uint8", timeout=60)
        assert asked.wait(60)
        client.close()  # the service answers `Cancel` before it answers `Bye`
        with pytest.raises(poolbridge.ClientClosedError):
            waiting.result()


def test_a_promise_that_is_open_when_its_client_is_closed_has_failed(service, other):
    client = poolbridge.connect(service.path)
    with client.allocate(4, "uint8", pool="p") as lease:
        promise = lease.promise()
        lease.publish("x", keep=True)
    got = other.get("x")
    client.close()
    with pytest.raises(poolbridge.ContentFailedError, match="client was closed"):
        got.wait(60)
    with pytest.raises(poolbridge.ClientClosedError):
        promise.complete()
    got.release()
    until(lambda: sessions(other) == 1)


def test_memory_that_could_not_be_mapped_can_be_mapped_later(service):
    code = """
import resource, sys
import numpy as np
import poolbridge

client = poolbridge.connect(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 20), hard))
try:
    client.allocate(1, pool="p")
except poolbridge.ProtocolError:
    sys.exit("a ProtocolError")
except (OSError, MemoryError):
    pass
else:
    sys.exit("the limit was too high")
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
assert np.asarray(client.allocate(1, "uint8", pool="p")).tolist() == [0]
"""
    source = str(Path(poolbridge.__file__).parents[1])
    command = [sys.executable, "-c", code, service.path]
    done = subprocess.run(command, env={"PYTHONPATH": source}, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_a_finaliser_would_end_is_not_copied(other, copied):
    channel = other.create_channel("c", pool="p", capacity=2)
    frames = other.subscribe("c")
    publisher = channel.publisher(4, "uint8")
    lease = other.allocate(4, "uint8", pool="p")
    promise = lease.promise()
    for one in (frames, frames.arrays(), publisher, promise, lease._lease_state):
        with pytest.raises(TypeError):
            copied(one)
        gc.collect()
    promise.complete()
    publisher.loan()[:] = 3
    publisher.publish()
    assert np.asarray(next(frames)).tolist() == [3] * 4
    lease.release()


class Marked:
    """An object of the program that must not outlive its function."""


def test_a_client_that_was_closed_keeps_no_object_of_the_function_that_closed_it(service):
    def use() -> weakref.ref[Marked]:
        mine = Marked()
        with poolbridge.connect(service.path) as client:
            client.stats()
        return weakref.ref(mine)

    with no_collector():  # an error in a variable of one of its frames would keep the frames that called it
        assert [use()() for _ in range(5)] == [None] * 5
