"""Tests subscribers that wait for their channel to appear."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

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


def wait_until_they_wait(client, number=1):
    until(lambda: [session.waits_for for session in client.sessions()].count('channel "c"') == number)


def send_all(client, channel):
    """Publish more frames than the channel keeps, and close the channel."""
    for value in range(3 * channel.capacity):
        publish(client, channel, value, timeout=60)
    channel.close()


@pytest.mark.parametrize("full", ["block", "fail"])
def test_a_subscriber_gets_the_frames_of_each_channel_that_it_waits_for(client, other, beside, full):
    for _ in range(2):  # channels of one name, one after the other
        subscribes = beside(other.subscribe, "c", timeout=60)
        wait_until_they_wait(client)
        channel = client.create_channel("c", pool="frames", capacity=4, full=full)
        for value in range(4):
            publish(client, channel, value)
        channel.close()
        with subscribes.result() as frames:
            assert frames.channel.id == channel.id
            assert frames.channel.pool == "frames"
            assert [(frame.seq, frame.dropped) for frame in frames] == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_a_subscriber_gets_a_queues_frames_although_the_queue_was_closed_at_once(client, other, beside):
    subscribes = beside(other.subscribe, "c", timeout=60)
    wait_until_they_wait(client)
    channel = client.create_channel("c", pool="frames", mode="queue", capacity=4)
    for value in range(4):
        publish(client, channel, value)
    channel.close()
    assert [frame.meta["value"] for frame in subscribes.result()] == ["0", "1", "2", "3"]


def test_a_channel_that_is_closed_at_once_ends_the_subscription(client, other, beside):
    subscribes = beside(other.subscribe, "c", timeout=60)
    wait_until_they_wait(client)
    client.create_channel("c", pool="frames").close()
    assert list(subscribes.result()) == []


def test_an_error_in_the_arguments_comes_before_the_wait(client):
    for options in ({"credit": 0}, {"full": "never"}, {"ack": "no"}, {"timeout": -1}):
        with pytest.raises(poolbridge.InvalidArgumentError):
            client.subscribe("c", **{"timeout": 60, **options})
    with pytest.raises(poolbridge.NotFoundError):
        client.subscribe("c")
    with pytest.raises(poolbridge.WaitTimeoutError):
        client.subscribe("c", timeout=0.01)


# Subscribers that give up


def test_a_task_that_is_cancelled_when_its_channel_appears_holds_up_nobody(service, client):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as consumer:
            for number in range(30):
                subscription = consumer.subscribe("c", timeout=60)
                waits = asyncio.create_task(subscription.receive())
                await asyncio.to_thread(wait_until_they_wait, client)
                makes = asyncio.create_task(asyncio.to_thread(client.create_channel, "c", pool="frames", capacity=2))
                for _ in range(number):
                    await asyncio.sleep(0)
                waits.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waits
                await subscription.close()
                await asyncio.to_thread(send_all, client, await makes)

    asyncio.run(main())


def test_a_client_that_is_closed_while_it_waits_holds_up_nobody(service, client, beside):
    with poolbridge.connect(service.path, timeout=60) as waiting:
        subscribes = beside(waiting.subscribe, "c", timeout=None)
        wait_until_they_wait(client)
        waiting.close()
        with pytest.raises(poolbridge.ClientClosedError):
            subscribes.result()
    send_all(client, client.create_channel("c", pool="frames", capacity=2))


def test_an_interrupt_ends_the_wait_and_shows_no_inner_frames_of_the_client(client, other):
    main = threading.get_ident()

    def interrupt():
        wait_until_they_wait(client)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            other.subscribe("c", timeout=None)
        assert [entry.name for entry in caught.traceback[1:]] == ["subscribe"]
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    send_all(client, client.create_channel("c", pool="frames", capacity=2))


@pytest.mark.long  # the service waits for ten seconds
def test_a_subscriber_that_is_stopped_when_its_channel_appears_does_not_hold_up_a_producer_for_ever(service, client):
    program = "import sys, poolbridge; poolbridge.connect(sys.argv[1]).subscribe('c', timeout=None)"
    stopped = subprocess.Popen([sys.executable, "-c", program, service.path], stderr=subprocess.PIPE)
    try:
        wait_until_they_wait(client)
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        channel = client.create_channel("c", pool="frames", capacity=2)
        with pytest.raises(poolbridge.WaitTimeoutError, match=r"consumer 1 .*has not entered"):
            publish(client, channel, 0, timeout=0)
        send_all(client, channel)
        os.kill(stopped.pid, signal.SIGCONT)
        assert b"ClosedError" in stopped.communicate()[1]
    finally:
        stopped.kill()
        stopped.wait()
