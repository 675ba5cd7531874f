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

from realservice import RealService, until

import poolbridge
from poolbridge._client import publisher as _publisher

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


def test_a_stream_goes_on_with_memory_that_comes_back_while_the_service_is_stopped(service):
    with poolbridge.connect(service.path, timeout=60) as client, poolbridge.connect(service.path, timeout=60) as other:
        pool = client.create_pool("frames", max_bytes=2 << 20)
        channel = client.create_channel("c", pool=pool, capacity=1, full="drop-oldest")
        frames, publisher = other.subscribe("c", ack="manual"), channel.publisher(1 << 20, "uint8")

        def send(timeout):
            publisher.loan(timeout=timeout)[0] = 1
            return publisher.publish()

        hand: list[Any] = []
        for number in (1, 2):
            assert send(60) == number
            hand.append(frames.receive(60))
        stop(service)
        for number in range(3, FRAMES):
            sent: list[int] = []
            thread = threading.Thread(target=lambda sent=sent: sent.append(send(60)))
            thread.start()
            until(lambda: publisher._chunks.busy)
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


def test_a_loan_waits_for_a_slot_and_for_the_service_at_once(service, monkeypatch):
    monkeypatch.setattr(_publisher, "_PATIENCE", 3600)
    monkeypatch.setattr(_publisher, "_LOOK", 3600)
    with poolbridge.connect(service.path, timeout=60) as client, poolbridge.connect(service.path, timeout=60) as other:
        pool = client.create_pool("frames", max_bytes="64MiB")
        channel = client.create_channel("c", pool=pool, capacity=1, full="drop-oldest")
        frames, publisher = other.subscribe("c", ack="manual"), channel.publisher(1 << 20, "uint8")
        hand: list[Any] = []
        for _ in range(3):
            publisher.loan()
            publisher.publish()
            hand.append(frames.receive(60))
        stop(service)
        for ends in (hand.pop(0).release, lambda: os.kill(service.process.pid, signal.SIGCONT)):
            loans: list[Any] = []
            thread = threading.Thread(target=lambda loans=loans: loans.append(publisher.loan()))
            thread.start()
            until(lambda: any(not call.abandoned for call in list(client._session.core._calls.values())))
            assert not loans
            ends()
            thread.join(60)
            assert len(loans) == 1
            publisher.publish()
            hand.append(frames.receive(60))
            if len(hand) == 3:
                os.kill(service.process.pid, signal.SIGCONT)
                client.stats()
                stop(service)


def test_a_stream_of_asyncio_goes_on_with_memory_that_comes_back_while_the_service_is_stopped(service):
    async def main():
        async with (
            await poolbridge.connect_async(service.path, timeout=60) as client,
            await poolbridge.connect_async(service.path, timeout=60) as other,
        ):
            pool = await client.create_pool("frames", max_bytes=2 << 20)
            channel = await client.create_channel("c", pool=pool, capacity=1, full="drop-oldest")
            frames = other.subscribe("c", ack="manual")
            hand: list[Any] = []
            publisher = channel.publisher(1 << 20, "uint8")

            async def send():
                (await publisher.loan(60))[0] = 1
                return await publisher.publish()

            async with frames:
                for number in (1, 2):
                    assert await send() == number
                    hand.append(await frames.receive(60))
                stop(service)
                for number in range(3, FRAMES):
                    sending = asyncio.ensure_future(send())
                    while not publisher._chunks.busy:
                        await asyncio.sleep(0)
                    await hand.pop(0).release()
                    assert await sending == number
                    hand.append(await frames.receive(60))
                os.kill(service.process.pid, signal.SIGCONT)
                for frame in hand:
                    await frame.release()
            await publisher.close()
            await channel.close()
            await (await client.allocate(2 << 20, "uint8", timeout=60)).release()

    asyncio.run(main())


def test_a_lease_whose_publication_got_no_answer_cannot_be_written_any_more(service, monkeypatch):
    with poolbridge.connect(service.path, timeout=60) as client, poolbridge.connect(service.path, timeout=60) as other:
        pool = client.create_pool("frames", max_bytes="1MiB")
        channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
        frames = other.subscribe("c")
        channel.publish(client.allocate(4, "int8", pool=pool))
        next(frames).release()
        lease = client.allocate(4, "int32", pool=pool)
        lease.copy_from([1, 1, 1, 1])
        stop(service)
        with monkeypatch.context() as patch, pytest.raises(poolbridge.ServiceStalledError):
            patch.setattr(client, "timeout", 0.1)
            lease.publish("weights")
        os.kill(service.process.pid, signal.SIGCONT)
        named = other.get("weights", timeout=60)
        channel.publish(lease)
        next(frames).release()
        lease.release()
        again = client.allocate(4, "int32", pool=pool)
        again.copy_from([9, 9, 9, 9])
        assert named.to_numpy().tolist() == [1, 1, 1, 1]
