"""Tests what producers and consumers learn of each other: who is there, and who is gone."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from realservice import RealService, publish, until

import poolbridge


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


@pytest.fixture
def beside():
    """Run calls in other threads."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def wait_until_it_waits(client, what):
    until(lambda: what in {session.waits_for for session in client.sessions()})


# A producer waits for consumers


CONSUMERS = 'consumers of channel "c"'


def test_a_producer_that_waits_for_its_consumers_loses_no_frame(client, other, beside):
    channel = client.create_channel("c", capacity=2, full="drop-oldest")
    waits = beside(channel.wait_for_consumers, 2, 60)
    wait_until_it_waits(other, CONSUMERS)
    first = other.subscribe("c")
    wait_until_it_waits(other, CONSUMERS)
    assert not waits.done()
    second = other.subscribe("c")
    assert waits.result() is None
    publish(client, channel, 1)
    publish(client, channel, 2)
    channel.close()
    assert [[frame.seq for frame in frames] for frames in (first, second)] == [[1, 2], [1, 2]]


def test_who_is_there_already_is_not_waited_for(client, other):
    channel = client.create_channel("c", mode="queue")
    with other.subscribe("c"):
        channel.wait_for_consumers(timeout=0)
        channel.wait_for_consumers(np.int64(1))
    until(lambda: other.channels()[0].consumers == 0)
    with pytest.raises(poolbridge.WaitTimeoutError, match="has 0 of 1 consumer$"):
        channel.wait_for_consumers(timeout=0)


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_when_its_time_is_over_the_wait_says_how_many_came(client, other, timeout):
    channel = client.create_channel("c")
    with other.subscribe("c"), pytest.raises(poolbridge.WaitTimeoutError, match='"c" has 1 of 3 consumers'):
        channel.wait_for_consumers(3, timeout)


@pytest.mark.parametrize("end", ["close", "destroy"])
def test_the_end_of_the_channel_ends_the_wait(client, other, beside, end):
    channel = client.create_channel("c")
    waits = beside(channel.wait_for_consumers)
    wait_until_it_waits(other, CONSUMERS)
    if end == "close":
        channel.close()
    else:
        other.destroy_pool(channel.pool)
    with pytest.raises(poolbridge.ClosedError):
        waits.result()
    with pytest.raises(poolbridge.ClosedError):
        channel.wait_for_consumers(timeout=0)


@pytest.mark.parametrize("n", [0, -1, 1025, 1.5, "2", True, None])
def test_a_channel_cannot_have_this_number_of_consumers(client, n):
    with pytest.raises(poolbridge.InvalidArgumentError, match="^n "):
        client.create_channel("c").wait_for_consumers(n)


def test_a_forked_child_does_not_wait_for_its_parents_consumers(client):
    channel = client.create_channel("c")
    child = os.fork()
    if child == 0:
        try:
            channel.wait_for_consumers()
        except poolbridge.ForkError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_task_waits_for_consumers_and_can_be_cancelled(service, client):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as producer:
            await producer.open_pool("frames")
            channel = await producer.create_channel("c", pool="frames")
            for ends in (False, True):
                waits = asyncio.create_task(channel.wait_for_consumers(timeout=60))
                await asyncio.to_thread(wait_until_it_waits, client, CONSUMERS)
                if ends:
                    frames = client.subscribe("c")
                    await waits
                else:
                    waits.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waits
            with pytest.raises(poolbridge.WaitTimeoutError, match="1 of 2 consumers"):
                await channel.wait_for_consumers(2, timeout=0)
            frames.close()

    asyncio.run(main())
