"""Tests streams while the service is stopped."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import os
import signal
import threading
from typing import Any

import numpy as np
from realservice import RealService, until

import poolbridge

FRAMES = 200


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    os.kill(running.process.pid, signal.SIGCONT)
    running.close()


def stop(service):
    os.kill(service.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, service.process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.mark.parametrize("way", ["allocate", "publisher"])
def test_a_stream_goes_on_with_memory_that_comes_back_while_the_service_is_stopped(service, way):
    with poolbridge.connect(service.path, timeout=60) as client, poolbridge.connect(service.path, timeout=60) as other:
        pool = client.create_pool("frames", max_bytes=2 << 20)
        channel = client.create_channel("c", pool=pool, capacity=1, full="drop-oldest")
        frames, publisher = other.subscribe("c", ack="manual"), channel.publisher(1 << 20, "uint8")

        def send(timeout):
            if way == "publisher":
                publisher.loan(timeout=timeout)[0] = 1
                return publisher.publish()
            lease = client.allocate(1 << 20, "uint8", timeout=timeout)
            np.asarray(lease)[0] = 1
            return channel.publish(lease)

        hand: list[Any] = []
        for number in (1, 2):
            assert send(60) == number
            hand.append(frames.receive(60))
        stop(service)
        for number in range(3, FRAMES):
            sent: list[int] = []
            thread = threading.Thread(target=lambda sent=sent: sent.append(send(60)))
            thread.start()
            until(lambda: publisher._slots.busy if way == "publisher" else client._session.spares._asking)
            hand.pop(0).release()
            thread.join()
            assert sent == [number]
            hand.append(frames.receive(60))
        os.kill(service.process.pid, signal.SIGCONT)
        for frame in hand:
            frame.release()
        publisher.close()
        channel.close()
        client.allocate(2 << 20, "uint8", timeout=60).release()


def test_an_asyncio_allocation_that_asks_a_stopped_service_takes_memory_that_comes_back(service):
    async def main():
        async with (
            await poolbridge.connect_async(service.path, timeout=60) as client,
            await poolbridge.connect_async(service.path, timeout=60) as other,
        ):
            pool = await client.create_pool("frames", max_bytes=2 << 20)
            channel = await client.create_channel("c", pool=pool, capacity=1, full="drop-oldest")
            frames = other.subscribe("c", ack="manual")
            hand: list[Any] = []

            async def send():
                return await channel.publish(await client.allocate(1 << 20, "uint8", timeout=60))

            async with frames:
                for number in (1, 2):
                    assert await send() == number
                    hand.append(await frames.receive(60))
                stop(service)
                for number in range(3, FRAMES):
                    sending = asyncio.ensure_future(send())
                    while not client._session.spares._asking:
                        await asyncio.sleep(0)
                    await hand.pop(0).release()
                    assert await sending == number
                    hand.append(await frames.receive(60))
                os.kill(service.process.pid, signal.SIGCONT)
                for frame in hand:
                    await frame.release()
            await channel.close()
            await (await client.allocate(2 << 20, "uint8", timeout=60)).release()

    asyncio.run(main())
