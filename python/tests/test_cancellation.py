"""Cancels every operation of the asyncio client at every moment of every step: nothing is lost and nothing is doubled.

A cancelled operation either raises `CancelledError` and has had no effect, or has its effect and returns its result.
"""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from realservice import RealService, no_collector

import poolbridge
from poolbridge._session.cancellation import Cancellation
from poolbridge._session.flow import Do, Hear, Sleep

# The most steps that an operation of this file has.
MOST_STEPS = 12


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = RealService(str(tmp_path_factory.mktemp("cancellation") / "r.sock"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def without_collector():
    """Memory comes back as soon as the program drops its array, not when the garbage collector finds a cycle."""
    with no_collector():
        yield


class Cancelled:
    """Runs an operation in a task and cancels the task in a step, before or after the step has had its effect.

    Attributes
    ----------
    reached
        Whether the operation had the step.
    result
        The operation's result, in a list; empty if it returned none.
    """

    def __init__(self, client: poolbridge.AsyncClient, step: int, *, after: bool) -> None:
        self._client: Any = client
        self._left = step
        self._after = after
        self._stop: Callable[[], object] = lambda: None
        self.reached = False
        self.result: list[Any] = []
        self.prepare: Callable[[], object] = lambda: None  # lets the step end; called more than once

    async def run(self, operation: Callable[[], Awaitable[Any]], stop: Callable[[asyncio.Task[Any]], object]) -> None:
        perform, ask = self._client._perform, self._client._session.ask

        async def body():
            self.result.append(await operation())
            await asyncio.Event().wait()  # a cancellation that the operation did not raise ends this wait

        async def performed(step, *args):
            self._left -= 1
            now = self._left == -1
            self.reached = self.reached or now
            if isinstance(step, Do):
                step = Do(self._working(step.work, now=now))
            elif isinstance(step, Sleep):
                step = replace(step, work=self._working(step.work, now=now))
            elif isinstance(step, Hear):
                return await self._hearing(partial(perform, step, *args), now=now)
            else:
                self._client._session.ask = self._asking(ask, now=now)
            try:
                return await perform(step, *args)
            finally:
                self._client._session.ask = ask

        self._client._perform = performed
        task = asyncio.create_task(body())
        self._stop = lambda: stop(task)
        try:
            while not (self.result and not self.reached) and not task.done():
                await asyncio.sleep(0)
            if not self.reached:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            del self._client._perform

    async def _hearing(self, hear: Callable[[], Awaitable[Any]], *, now: bool) -> Any:
        if now and not self._after:
            self._stop()
        self.prepare()
        try:
            return await hear()
        finally:
            if now and self._after:
                self._stop()

    def _working(self, work: Callable[..., Any], *, now: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            loop = self._client._reader.loop
            if now and not self._after:
                asyncio.run_coroutine_threadsafe(self._stopped(), loop).result()
            self.prepare()
            try:
                return work(*args)
            finally:
                if now and self._after:
                    loop.call_soon_threadsafe(self._stop)

        return call

    async def _stopped(self) -> None:
        self._stop()

    def _asking(self, ask: Callable[..., Any], *, now: bool) -> Callable[..., Any]:
        def call(request: Any, reply_type: Any, on_done: Callable[[], object]) -> Any:
            def done() -> None:
                on_done()
                if now and self._after:
                    self._stop()

            asked = ask(request, reply_type, done)
            if now and not self._after:
                self._stop()
            self.prepare()
            return asked

        return call


class World:
    """The clients of a test: the operations of `client` are cancelled, `other` looks at the effects."""

    def __init__(self, client: poolbridge.AsyncClient, other: poolbridge.AsyncClient) -> None:
        self.client, self.other = client, other
        self.prepare: Callable[[], object] = lambda: None

    async def leases(self) -> int:
        """Count the leases of all clients."""
        for client in (self.other, self.client):  # before the service replies, it reads the releases sent before
            await client.stats()  # the reply comes after the reply to a cancelled request, whose lease then ends
        return (await self.client.stats()).leases

    async def names(self) -> list[str]:
        return [one.name for one in await self.other.names()]


# Each operation is an asynchronous generator. It first yields a function that starts the operation, and then gets the
# operation's results, in a list: empty if it was cancelled. It checks that what the results say is true.


async def allocate(world):
    before = await world.leases()
    got = yield lambda: world.client.allocate(4, pool="p")
    assert await world.leases() == before + len(got)


async def allocate_in_a_full_pool(world):
    await world.client.create_pool("full", max_bytes=4096)
    first = await world.client.allocate(4, pool="full")
    world.prepare = lambda: first.released or first._lease_state.release(failed=False)
    got = yield lambda: world.client.allocate(4, pool="full", timeout=60)
    await first.release() if not first.released else None
    for lease in got:
        await lease.release()
    await (await world.client.allocate(4, pool="full", timeout=60)).release()
    await world.client.destroy_pool("full")


async def put(world):
    before = await world.leases()
    got = yield lambda: world.client.put(np.arange(4), "put")
    assert ("put" in await world.names()) == bool(got)
    assert await world.leases() == before + len(got)
    if not got:
        got = [await world.client.put(np.arange(4), "put")]
    assert got[0].to_numpy().tolist() == [0, 1, 2, 3]


async def publish_a_name(world):
    lease = await world.client.allocate(4, "int32")
    np.asarray(lease)[:] = 1
    got = yield lambda: lease.publish("named")
    assert ("named" in await world.names()) == bool(got)
    assert lease.readonly == bool(got)
    if not got:
        await lease.publish("named")
    async with await world.other.get("named") as seen:
        assert seen.to_numpy().tolist() == [1] * 4


async def get(world):
    await (await world.other.put(np.arange(3), "wanted", pool="p")).release()
    before = await world.leases()
    got = yield lambda: world.client.get("wanted")
    assert await world.leases() == before + len(got)


async def lease(world):
    kept = await world.other.put(np.arange(3), "wanted", pool="p")
    before = await world.leases()
    got = yield lambda: world.client.lease(kept.buffer_id, kept.generation)
    assert await world.leases() == before + len(got)


async def get_array(world):
    await (await world.other.put(np.arange(3), "wanted", pool="p")).release()
    before = await world.leases()
    got = yield lambda: world.client.get_array("wanted")
    assert await world.leases() == before + len(got)


async def unpublish(world):
    await world.client.put(np.arange(3), "gone")
    got = yield lambda: world.client.unpublish("gone")
    assert ("gone" in await world.names()) == (not got)


async def wait_for_content(world):
    writer = await world.other.allocate(4, "int32", pool="p")
    promise = await writer.promise()
    await writer.publish("promised")
    reader = await world.client.get("promised")
    world.prepare = promise.complete
    got = yield lambda: reader.wait(60)
    promise.complete()
    assert got in ([], [None])
    await reader.wait(60)
    await reader.release()


async def promise(world):
    lease = await world.client.allocate(4, "int32")
    got = yield lease.promise
    promise = got[0] if got else await lease.promise()
    promise.complete()
    await lease.publish("kept")


async def release_after_work(world):
    writer = await world.other.allocate(4, "int32", pool="p")
    promise = await writer.promise()
    await writer.publish("promised")
    reader = await world.client.get("promised")
    world.prepare = promise.complete
    got = yield reader.release
    promise.complete()
    assert reader.released == bool(got)


async def create_pool(world):
    got = yield lambda: world.client.create_pool("new", max_bytes=4096)
    assert ("new" in [pool.name for pool in await world.other.pools()]) == bool(got)


async def destroy_pool(world):
    await world.client.create_pool("old", max_bytes=4096)
    got = yield lambda: world.client.destroy_pool("old")
    assert ("old" in [pool.name for pool in await world.other.pools()]) == (not got)


async def open_pool(world):
    yield lambda: world.client.open_pool("p")


async def trim(world):
    await (await world.client.allocate(4)).release()
    yield lambda: world.client.trim("p")


async def create_channel(world):
    got = yield lambda: world.client.create_channel("new", capacity=2)
    assert ("new" in [one.name for one in await world.other.channels()]) == bool(got)


async def open_channel(world):
    await world.other.create_channel("theirs", pool="p")
    yield lambda: world.client.open_channel("theirs")


async def close_channel(world):
    channel = await world.client.create_channel("c")
    got = yield channel.close
    assert ("c" in [one.name for one in await world.other.channels()]) == (not got)


async def subscribe(world):
    channel = await world.other.create_channel("c", pool="p", capacity=4)
    frames = world.client.subscribe("c")
    yield frames.__aenter__
    async with frames:
        await channel.publish(np.arange(3))
        received = await frames.receive(60)
        assert received.seq == 1
        await received.release()
    await world.client.stats()  # the service has heard that the client left
    (entry,) = [one for one in await world.other.channels() if one.name == "c"]
    assert entry.consumers == 0


async def values(frames, count):
    """Receive `count` frames, and check that there is no further frame."""
    found = []
    for _ in range(count):
        async with await frames.receive(60) as frame:
            found.append(int(np.asarray(frame)[0]))
    with pytest.raises(poolbridge.WaitTimeoutError):
        await frames.receive(0)
    return found


async def publish(world):
    channel = await world.client.create_channel("c", capacity=4)
    async with world.other.subscribe("c") as frames:
        lease = await world.client.allocate(4, "int32")
        np.asarray(lease)[:] = 7
        got = yield lambda: channel.publish(lease)
        assert lease.released == bool(got)
        if not got:
            await channel.publish(lease)
        assert await values(frames, 1) == [7]


async def publish_an_array(world):
    channel = await world.client.create_channel("c", capacity=4)
    before = await world.leases()
    async with world.other.subscribe("c") as frames:
        got = yield lambda: channel.publish(np.full(4, 7, "int32"))
        if not got:
            assert await world.leases() == before
        assert await values(frames, len(got)) == [7] * len(got)


async def publish_into_a_full_channel(world):
    channel = await world.client.create_channel("c", capacity=1)
    async with world.other.subscribe("c", ack="manual", credit=4) as frames:
        await channel.publish(np.full(4, 1, "int32"))
        first = await frames.receive(60)
        lease = await world.client.allocate(4, "int32")
        np.asarray(lease)[:] = 7
        world.prepare = lambda: first._lease_state.released or first._lease_state.release(failed=False)
        got = yield lambda: channel.publish(lease)
        assert lease.released == bool(got)
        if not first.released:
            await first.release()
        if not got:
            await channel.publish(lease)
        assert await values(frames, 1) == [7]


async def publish_a_loan(world):
    channel = await world.client.create_channel("c", capacity=1)
    async with world.other.subscribe("c", ack="manual", credit=4) as frames, channel.publisher(4, "int32") as publisher:
        (await publisher.loan())[:] = 1
        await publisher.publish()
        first = await frames.receive(60)
        (await publisher.loan())[:] = 7
        world.prepare = lambda: first._lease_state.released or first._lease_state.release(failed=False)
        got = yield publisher.publish
        if not first.released:
            await first.release()
        if not got:
            assert (await publisher.loan()).tolist() == [7] * 4
            await publisher.publish()
        assert await values(frames, 1) == [7]


async def loan(world):
    channel = await world.client.create_channel("c", capacity=2)
    async with channel.publisher(4, "int32") as publisher:
        got = yield publisher.loan
        got.clear()
        assert (await publisher.loan()).shape == (4,)
    while await world.leases():  # the client keeps the publisher's buffer for a moment
        await asyncio.sleep(0)


async def receive(world):
    channel = await world.other.create_channel("c", mode="queue", pool="p", capacity=4)
    async with world.client.subscribe("c") as frames:
        send = asyncio.run_coroutine_threadsafe
        loop = asyncio.get_running_loop()
        first = threading.Lock()
        world.prepare = lambda: first.acquire(blocking=False) and send(channel.publish(np.full(4, 7, "int32")), loop)
        got = yield lambda: frames.receive(60)
        world.prepare()
        assert [int(np.asarray(frame)[0]) for frame in got] + await values(frames, 1 - len(got)) == [7]


async def arrays(world):
    channel = await world.other.create_channel("c", pool="p", capacity=4)
    async with world.client.subscribe("c") as frames:
        await channel.publish(np.full(4, 7, "int32"))
        stream = frames.arrays()
        got = yield lambda: anext(stream)
        array = got[0] if got else await anext(stream)
        assert array.tolist() == [7] * 4
        assert stream.seq == 1


async def leave_a_lease(world):
    lease = await world.client.allocate(4)
    yield lambda: lease.__aexit__(None, None, None)
    assert lease.released


async def lists(world):
    yield world.client.sessions


async def stats(world):
    yield world.client.stats


async def close(world):
    await world.client.allocate(4)
    yield world.client.close
    assert world.client.closed
    while (await world.other.stats()).leases:
        await asyncio.sleep(0)


OPERATIONS = [
    allocate, allocate_in_a_full_pool, put, publish_a_name, get, lease, get_array, unpublish, wait_for_content, promise,
    release_after_work, create_pool, destroy_pool, open_pool, trim, create_channel, open_channel, close_channel,
    subscribe, publish, publish_an_array, publish_into_a_full_channel, publish_a_loan, loan, receive, arrays,
    leave_a_lease, lists, stats, close,
]  # fmt: skip


async def once(service, operation, step, *, after, stop):
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        client = await enter(await poolbridge.connect_async(service.path, timeout=60))
        other = await enter(await poolbridge.connect_async(service.path, timeout=60))
        while len(await other.sessions()) > 2:  # those of the step before may last for a moment
            await asyncio.sleep(0)
        for pool in await other.pools():
            await other.destroy_pool(pool)
        await client.create_pool("p", max_bytes=1 << 16)
        await other.open_pool("p")
        world = World(client, other)
        moments = operation(world)
        start = await anext(moments)
        cancelled = Cancelled(client, step, after=after)
        cancelled.prepare = lambda: world.prepare()
        await cancelled.run(start, stop)
        with pytest.raises(StopAsyncIteration):
            await moments.asend(cancelled.result)
        return cancelled.reached


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_a_cancelled_operation_has_no_effect_or_returns_its_result(service, operation, after):
    for step in range(MOST_STEPS):
        if not asyncio.run(once(service, operation, step, after=after, stop=asyncio.Task.cancel)):
            return
    pytest.fail("the operation has more steps")


def test_a_cancellation_that_waits_refers_to_nothing_of_its_operation():
    """From CPython 3.12 on, a frame of a traceback keeps the frames of the coroutines that await it."""

    async def main():
        cancellation, work = Cancellation(), asyncio.get_running_loop().create_future()
        task: Any = asyncio.current_task()
        asyncio.get_running_loop().call_soon(task.cancel)
        asyncio.get_running_loop().call_later(0.01, work.set_result, 7)
        assert await cancellation.outlast(work) == 7
        assert isinstance(cancellation.error, asyncio.CancelledError)
        assert cancellation.error.__traceback__ is None
        task.uncancel()

    asyncio.run(main())


def test_a_time_limit_that_came_too_late_cancels_nothing_afterwards(service):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            session: Any = client._session
            ask, loop = session.ask, asyncio.get_running_loop()

            async with asyncio.timeout(None) as limit:

                def late(request, reply_type, on_done):
                    def done():
                        limit.reschedule(loop.time())
                        loop.call_soon(on_done)

                    return ask(request, reply_type, done)

                session.ask = late
                pool = await client.create_pool("q", max_bytes=1 << 16)
                session.ask = ask
            assert limit.expired()
            for _ in range(3):
                await client.stats()
            assert pool in await client.pools()

    asyncio.run(main())
