"""Tests what producers and consumers learn of each other: who is there, and who is gone."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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


# Consumers without producers


PRODUCER = """
import os, signal, sys
import numpy, poolbridge
client = poolbridge.connect(sys.argv[1], timeout=60)
client.open_pool("frames")
channel = client.open_channel("c")
for value in range(int(sys.argv[2])):
    channel.publish(numpy.array([value, os.getpid()], "int32"))
child = 0
if sys.argv[3:] == ["fork"]:
    child = os.fork()
    if child == 0:
        signal.pause()
print(child, flush=True)
sys.stdin.read()
if sys.argv[3:] == ["close"]:
    client.close()
"""


class Program:
    """A program that has published frames, and then waits until it is killed."""

    def __init__(self, service, frames, *options):
        command = [sys.executable, "-c", PRODUCER, service.path, str(frames), *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.pipes = self.process.stdin, self.process.stdout
        self.child = int(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leave(self):
        self.process.communicate()
        assert self.process.returncode == 0

    def close(self):
        self.kill()
        if self.child:
            os.kill(self.child, signal.SIGKILL)
        for pipe in self.pipes:
            pipe.close()


@pytest.fixture
def programs(service):
    started = []

    def start(*arguments):
        started.append(Program(service, *arguments))
        return started[-1]

    yield start
    for program in started:
        program.close()


def numbers(frames):
    return [int(np.asarray(frame)[0]) for frame in frames]


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize(("end", "options"), [(Program.kill, ()), (Program.kill, ("fork",)), (Program.leave, ())])
def test_without_producers_a_consumer_gets_every_frame_and_ends(client, programs, mode, options, end):
    client.create_channel("c", mode=mode)
    frames = client.subscribe("c", no_producers="end")
    producer = programs(3, *options)
    end(producer)
    assert numbers(frames) == [0, 1, 2]
    assert frames.closed
    assert frames.receive() is None
    until(lambda: client.channels()[0].consumers == 0)


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_without_producers_a_consumer_gets_every_frame_and_an_error_that_says_so(client, programs, mode):
    client.create_channel("c", mode=mode, capacity=2)
    arrays = client.subscribe("c", no_producers="fail").arrays()
    producer = programs(2)
    producer.kill()
    assert [int(next(arrays)[0]) for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(
            poolbridge.NoProducersError,
            match=r"'c' is not closed, and no producer is left since [\d:]+ UTC: "
            rf"pid {producer.process.pid} was killed, or ended without closing its client$",
        ):
            next(arrays)
    channel = client.open_channel("c")
    if mode == "queue":
        later = client.subscribe("c")
    for value in range(5):  # the subscription has left, so it holds no later producer back
        publish(client, channel, value, timeout=60)
        if mode == "queue":
            assert numbers([later.receive(60)]) == [value]


def test_a_consumer_that_waits_sleeps_until_its_producer_is_killed(client, programs, beside):
    client.create_channel("c")
    frames = client.subscribe("c", no_producers="fail")
    producer = programs(1)
    assert numbers([frames.receive(60)]) == [0]
    waits = beside(frames.receive)
    producer.kill()
    with pytest.raises(poolbridge.NoProducersError):
        waits.result()


def test_a_consumer_that_asks_for_nothing_waits_for_the_next_producer(client, programs):
    client.create_channel("c")
    frames = client.subscribe("c")
    first = programs(1)
    assert numbers([frames.receive(60)]) == [0]
    first.kill()
    until(lambda: client.channels()[0].producers == 0)
    with pytest.raises(poolbridge.WaitTimeoutError, match=r"came since [\d:]{8} UTC; no producer is left since"):
        frames.receive(0.01)
    programs(2)
    assert numbers([frames.receive(60), frames.receive(60)]) == [0, 1]


def test_the_first_and_the_last_producer_count(client, programs):
    client.create_channel("c")
    frames = client.subscribe("c", no_producers="fail")
    with pytest.raises(poolbridge.WaitTimeoutError, match="no frame came; no producer has joined yet$"):
        frames.receive(0.01)
    first, second = programs(1), programs(1)
    assert numbers([frames.receive(60), frames.receive(60)]) == [0, 0]
    first.kill()
    until(lambda: client.channels()[0].producers == 1)
    with pytest.raises(poolbridge.WaitTimeoutError, match=f"there: pid {second.process.pid}$"):
        frames.receive(0.01)
    second.kill()
    with pytest.raises(poolbridge.NoProducersError):
        frames.receive()


def has_producers(client, count):
    return client.channels()[0].producers == count


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("no_producers", ["end", "fail"])
def test_the_last_of_several_producers_ends_a_channel_that_keeps_the_order_of_each(
    client, programs, beside, mode, no_producers
):
    def collect():
        try:
            for frame in frames:
                value, process = np.asarray(frame).tolist()
                got.setdefault(process, []).append(value)
        except poolbridge.NoProducersError:
            return "fail"
        return "end"

    def end_session(program):
        client.end_session(next(one.id for one in client.sessions() if one.pid == program.process.pid))

    client.create_channel("c", mode=mode, capacity=2)
    frames = client.subscribe("c", no_producers=no_producers)
    got: dict[int, list[int]] = {}
    collected = beside(collect)
    started = [one.result() for one in [beside(programs, 20, "close") for _ in range(4)]]
    for left, end in zip((3, 2, 1, 0), (Program.leave, Program.kill, end_session, Program.kill), strict=True):
        assert not collected.done()
        end(started[left])
        until(partial(has_producers, client, left))
    assert collected.result() == no_producers
    pids = [program.process.pid for program in started]
    assert got == {pid: list(range(20)) for pid in pids}
    endings = [(pids[3], "left"), (pids[2], "lost"), (pids[1], "closed"), (pids[0], "lost")]
    assert sorted(frames.producers) == sorted(endings)
    text = f"{frames._consumer.presence.text()},"
    for pid, words in zip(
        pids[1:], ["was ended by an operator", "was killed, or ended without c.*", "left"], strict=True
    ):
        assert re.search(rf" pid {pid} {words},", text)
    frames.close()
    assert sorted(frames.producers) == sorted(endings)


def test_a_queue_without_producers_ends_when_every_frame_is_acknowledged(client, other, programs, beside):
    client.create_channel("c", mode="queue")
    slow = other.subscribe("c", ack="manual")
    producer = programs(1)
    frame = slow.receive(60)
    frames = client.subscribe("c", no_producers="end")
    producer.kill()
    until(lambda: client.channels()[0].producers == 0)
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0)
    rest = beside(numbers, frames)
    frame.requeue()
    assert rest.result() == [0]


def test_a_task_learns_that_no_producer_is_left(service, client, programs):
    client.create_channel("c")

    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as consumer:
            failing, ending = (consumer.subscribe("c", no_producers=way) for way in ("fail", "end"))
            async with failing, ending:
                with pytest.raises(poolbridge.WaitTimeoutError, match="no producer has joined yet$"):
                    await failing.receive(0.01)
                (await asyncio.to_thread(programs, 1)).kill()
                assert [int(np.asarray(frame)[0]) async for frame in ending] == [0]
                assert (await anext(failing)).seq == 1
                with pytest.raises(poolbridge.NoProducersError):
                    await failing.receive()

    asyncio.run(main())


@pytest.mark.parametrize("no_producers", ["closed", "", None, True])
def test_another_word_for_a_consumer_without_producers_is_refused(client, no_producers):
    channel = client.create_channel("c")
    with pytest.raises(poolbridge.InvalidArgumentError, match="no_producers"):
        client.subscribe(channel, no_producers=no_producers)
