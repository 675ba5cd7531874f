"""Channels of the asyncio client."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import gc
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from realservice import RealService

import poolbridge
from poolbridge._client import copies as _copies


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


def run(service, body):
    async def main():
        async with (
            await poolbridge.connect_async(service.path, timeout=60) as client,
            await poolbridge.connect_async(service.path, timeout=60) as other,
        ):
            await client.create_pool("frames", max_bytes=1 << 20)
            return await body(client, other)

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["BorrowedArrays", "Channel", "Frame", "Subscription"])
def test_they_have_the_methods_of_the_blocking_ones(name):
    def public(kind):
        members = {member: value for member, value in inspect.getmembers(kind) if not member.startswith("_")}
        return {
            member: list(inspect.signature(value).parameters.values()) if inspect.isfunction(value) else type(value)
            for member, value in members.items()
        }

    blocking = public(getattr(poolbridge, name))
    blocking.pop("spin", None)  # the asyncio client has no `spin`, because its waits never poll
    assert public(getattr(poolbridge, f"Async{name}")) == blocking


def test_a_channel_is_no_context_manager_and_says_what_to_write(service):
    async def body(client, other):
        with pytest.raises(TypeError, match="ends it for all clients"):
            async with await client.create_channel("c"):
                pass
        await other.open_channel("c")

    run(service, body)


def test_a_block_lets_go_of_its_frame_though_an_array_lives_on(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        frames = other.subscribe("c", credit=1)
        lease = await client.allocate(4, "int32")
        np.asarray(lease)[:] = 5
        await channel.publish(lease)
        async with await anext(frames) as frame:
            array = np.asarray(frame)
        assert frame.released
        native = frames._consumer.native
        assert native.in_hand == [1]
        assert array.tolist() == [5] * 4
        del array
        assert native.in_hand == []

    run(service, body)


def test_frames_come_in_order_and_end_with_the_channel(service):
    async def body(client, other):
        channel = await client.create_channel("video", capacity=4)
        seen = []

        async def consume():
            async for frame in other.subscribe("video", credit=2, timeout=60):
                async with frame:
                    seen.append((frame.seq, int(np.asarray(frame)[0]), frame.meta["k"]))

        consumer = asyncio.create_task(consume())
        for value in range(20):
            lease = await client.allocate(4, "int32")
            np.asarray(lease)[:] = value
            assert await channel.publish(lease, meta={"k": str(value)}, timeout=60) == value + 1
            await asyncio.sleep(0)
        while not seen:
            await client.stats()
        await channel.close()
        await asyncio.wait_for(consumer, 60)
        first = seen[0][0]
        assert seen == [(value + 1, value, str(value)) for value in range(first - 1, 20)]

    run(service, body)


def test_a_second_task_gets_an_error_while_another_task_waits_for_a_frame(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        frames = other.subscribe("c")
        calls = (frames.__anext__, frames.receive, frames.arrays().__anext__)
        for number, call in enumerate(calls, 1):
            waiting = asyncio.ensure_future(call())
            await asyncio.sleep(0)  # the first task joins the channel, or waits
            for again in calls:
                with pytest.raises(poolbridge.InvalidArgumentError, match="once for each thread or task"):
                    await again()
            assert await channel.publish(await client.allocate(4, "int32")) == number
            await waiting
        await channel.publish(await client.allocate(4, "int32"))
        assert (await frames.receive(60)).seq == 4, "tasks may use a subscription one after the other"

    run(service, body)


def test_all_subscriptions_of_a_client_can_wait_at_the_same_time(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        many = [other.subscribe("c") for _ in range(150)]
        waiting = [asyncio.ensure_future(frames.receive(60)) for frames in many]
        while not all(frames._consumer is not None and frames._consumer._looking.locked() for frames in many):
            await asyncio.sleep(0.001)
        assert await channel.publish(await client.allocate(4, "int32")) == 1
        assert [frame.seq for frame in await asyncio.gather(*waiting)] == [1] * len(many)

    run(service, body)


def test_calls_that_need_a_thread_where_none_can_start_have_a_typed_error_and_no_effect(service, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        frames, copied = other.subscribe("c"), []
        async with await client.allocate(4):  # whose memory is then mapped already
            pass
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())  # which has no thread yet
        with monkeypatch.context() as without_threads:
            without_threads.setattr(threading.Thread, "start", refuse)
            without_threads.setattr(_copies, "copy_into", lambda *_arguments: copied.append(True))
            with pytest.raises(poolbridge.UnavailableError):
                await client.put(np.zeros(4), "x")
            for _ in range(3):
                with pytest.raises(poolbridge.UnavailableError, match="needs a thread to wait in.*RLIMIT_NPROC"):
                    await frames.receive(60)
        waiting = asyncio.ensure_future(frames.receive(60))
        await asyncio.to_thread(int)
        assert not copied, "no thread does later what was refused"
        assert await client.names() == []
        assert await channel.publish(await client.allocate(4, "int32")) == 1
        assert (await waiting).seq == 1

    run(service, body)


def test_a_frame_that_comes_again_to_a_subscription_that_closes_goes_to_another(service):
    async def body(client, other):
        channel = await client.create_channel("work", mode="queue", capacity=4)
        frames = other.subscribe("work", ack="manual", credit=3)
        await channel.publish(np.arange(3))
        first = await frames.receive(60)
        waiting = asyncio.ensure_future(frames.receive(60))
        while not frames._consumer._looking.locked():
            await asyncio.sleep(0.001)
        waiting.cancel()
        await first.requeue()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while frames._consumer.native.offered is None:  # the cancelled call leaves the frame to the next one
            await asyncio.sleep(0.001)
        await frames.close()
        await first.release()
        async with await client.subscribe("work").receive(60) as frame:
            assert frame.seq == 1

    run(service, body)


def test_requeueing_time_limits_and_closing(service):
    async def body(client, other):
        channel = await client.create_channel("work", mode="queue", capacity=4)
        await channel.publish(np.arange(3))
        async with other.subscribe("work", credit=1, ack="manual") as frames:
            assert frames.channel is not None
            frame = await frames.receive(60)
            with pytest.raises(poolbridge.WaitTimeoutError, match="channel 'work'"):
                await frames.receive(0.01)
            assert frame.to_numpy().tolist() == [0, 1, 2]
            await frame.requeue()
            with pytest.raises(poolbridge.FrameSettledError):
                await frame.ack()
            again = await frames.receive(60)
            assert (again.seq, again.lease.buffer_id) == (1, frame.buffer_id)
            with pytest.raises(ZeroDivisionError):
                async with again:
                    raise ZeroDivisionError
        assert frames.closed
        assert await frames.receive() is None
        await other.stats()
        assert (await client.subscribe("work").receive(60)).seq == 1
        await channel.close()
        await channel.close()

    run(service, body)


def test_a_cancelled_wait_loses_no_frame(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        async with other.subscribe("c") as frames:
            waiting = asyncio.create_task(frames.receive())
            await other.stats()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await channel.publish(np.zeros(1))
            assert (await frames.receive(60)).seq == 1

    run(service, body)


async def take_early(channel, frames):
    """Make the subscription's thread take a frame for a cancelled task; the frame's block is already mapped."""
    consumer = frames._consumer
    while consumer.native.offered is None:
        await channel.publish(np.zeros(1))
        await (await frames.receive(60)).release()
        waiting = asyncio.create_task(frames.receive())
        while not consumer._looking.locked():
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await channel.publish(np.zeros(1))
        while consumer._looking.locked():
            await asyncio.sleep(0.001)
        if consumer.native.offered is None:  # the thread ended its wait before the frame came
            await (await frames.receive(60)).release()
    assert consumer.session.core.blocks


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("ends", ["subscription", "client"])
def test_a_consumer_leaves_though_a_frame_came_after_its_wait_was_cancelled(service, ends, mode):
    async def body(client, other):
        channel = await client.create_channel("c", mode=mode, capacity=2)
        frames = other.subscribe("c")
        consumer = await frames._run(frames._join())
        await take_early(channel, frames)
        await (frames if ends == "subscription" else other).close()
        assert consumer not in other._session.core.members
        assert consumer.native.offered is None
        if mode == "queue":
            async with client.subscribe("c") as rest:
                await (await rest.receive(60)).release()
        else:
            for _ in range(6):
                await channel.publish(np.zeros(1), timeout=60)

    run(service, body)


def test_all_members_leave_though_one_of_them_fails(service):
    async def body(client, other):
        channel = await client.create_channel("c", mode="broadcast", capacity=1)
        subscriptions = [other.subscribe("c") for _ in range(3)]
        consumers = [await frames._run(frames._join()) for frames in subscriptions]

        def fail():
            raise ValueError("no")

        consumers[1].leave = fail
        with pytest.raises(ValueError, match="no"):
            await other.close()
        assert not other._session.core.members
        assert [consumer.left for consumer in consumers] == [True, False, True]
        for _ in range(3):
            await channel.publish(np.zeros(1), timeout=60)
        del consumers[1].leave
        await other.close()

    run(service, body)


def test_a_dropped_subscription_ends_by_itself(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        await channel.publish(np.zeros(1))
        async for frame in other.subscribe("c"):
            await frame.release()
            break
        gc.collect()
        assert not other._session.core.members

    run(service, body)


def test_readers_see_the_dtype_and_shape_of_what_was_published_after_other_frames(service):
    content = np.arange(6, dtype="int32").reshape(2, 3)

    async def body(client, other):
        channel = await client.create_channel("c", capacity=1)
        frames = other.subscribe("c")
        for _ in range(3):
            await channel.publish(np.ones(6, "float32"))
            await (await anext(frames)).release()
        await client.put(content, "put")
        lease = await client.allocate((2, 3), "int32")
        lease.copy_from(content)
        await lease.publish("published")
        for name in ("put", "published"):
            named = await other.get(name)
            by_id = await other.lease(named.buffer_id, named.generation)
            for one in (named, by_id):
                assert (one.dtype_name, one.shape) == ("int32", (2, 3))
                assert (np.asarray(one) == content).all()
        assert {(one.dtype_name, one.shape) for one in await other.names()} == {("int32", (2, 3))}

    run(service, body)


def test_an_array_in_memory_that_was_published_as_a_frame_is_not_published_again(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=4)
        frames = other.subscribe("c", credit=4)
        array = np.from_dlpack(await client.allocate(4, "int32"))
        array[:] = 1
        await channel.publish(array)
        for again in (channel.publish(array), client.put(array, "name")):
            with pytest.raises(poolbridge.LeaseReleasedError, match="from a new lease"):
                await again
        assert (await anext(frames)).to_numpy().tolist() == [1] * 4

    run(service, body)


def test_many_tasks_take_the_newest_frame_at_once(service):
    async def body(client, other):
        channel = await client.create_channel("c", capacity=2)
        mirror = await other.open_channel("c")
        await channel.publish(np.full(4, 3))
        frames = await asyncio.gather(*(mirror.latest(timeout=60) for _ in range(20)))
        assert [np.asarray(frame).tolist() for frame in frames] == [[3] * 4] * 20
        waiting = asyncio.create_task((await other.create_channel("d", pool="frames")).latest())
        await (await client.open_channel("d")).wait_for_consumers(1, timeout=60)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while any(one.consumers for one in await client.channels()):
            await asyncio.sleep(0)

    run(service, body)
