"""Tests members of channels: they join, leave, settle frames, and read wrong data that other members wrote."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import gc
import multiprocessing
import os
import signal
import struct
import threading
import time
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import SimpleNamespace

import numpy as np
from fakeservice import Service
from realservice import RealService, leases, publish, until

import poolbridge
from poolbridge._client import base_client as _base_client
from poolbridge._session import membership as _membership, returns as _returns
from poolbridge._session.core import Core
from poolbridge._wire.messages import Export, Map, MapReply, MemberCame
from poolbridge._wire.packet import encode
from poolbridge._wire.transport import Descriptors

PROCESSES = multiprocessing.get_context("spawn")
resource_tracker.ensure_running()  # the tracker stays until this process ends
PAGE = 4096


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


def test_no_frame_costs_a_packet(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    publisher = channel.publisher(4, "int32")
    asked = 0, 0
    for value in range(40):
        publisher.loan()[:] = value
        publisher.publish()
        assert np.asarray(next(frames))[0] == value
        if value == 20:
            asked = client._session.core._number, other._session.core._number
    assert (client._session.core._number, other._session.core._number) == asked
    assert not client._session.core.outbox
    publisher.close()


# Members


def test_leases_come_back_after_a_frame_that_was_taken_at_once(client, other, monkeypatch):
    channel, start = client.create_channel("c", mode="queue", capacity=4), _returns._start
    frames = other.subscribe("c")

    def started(name, work):
        monkeypatch.setattr(_returns, "_start", start)
        next(frames).release()  # so that the thread has nothing to do
        thread = start(name, work)
        assert thread is not None
        thread.join(0.5)  # the thread may end only when it is known
        return thread

    monkeypatch.setattr(_returns, "_start", started)
    publish(client, channel, 1)
    publish(client, channel, 2)
    next(frames).release()
    until(lambda: leases(client) == 0)


def test_a_producer_names_the_process_that_is_behind(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    publish(client, channel, 1)
    kept = next(frames)
    lease = client.allocate(4, "int32")
    behind = rf"'c' stayed full for 0.01 s; member .* of process {os.getpid()} \(this program\) is behind"
    with pytest.raises(poolbridge.WaitTimeoutError, match=behind):
        channel.publish(lease, timeout=0.01)
    kept.ack()
    assert channel.publish(lease, timeout=0.01) == 2, "the lease lives on"


def test_members_that_come_later_are_known(service, client, other):
    channel = client.create_channel("c", capacity=64)
    first = other.subscribe("c")
    publish(client, channel, 0)
    assert next(first).seq == 1
    with poolbridge.connect(service.path, timeout=60) as third:
        third.open_pool("frames")
        late = third.subscribe("c")
        theirs = third.open_channel("c")
        assert next(late).seq == 1
        for value in range(1, 21):
            publish(client if value % 2 else third, channel if value % 2 else theirs, value)
            assert [int(np.asarray(next(frames))[0]) for frames in (first, late)] == [value] * 2
    publish(client, channel, 21)
    assert int(np.asarray(next(first))[0]) == 21


def test_a_producer_does_not_wait_for_the_file_of_a_consumer_that_has_left(client, other):
    channel = client.create_channel("c", capacity=4)
    publish(client, channel, 0)
    (producer,) = client._session.core.members
    gone = MemberCame(channel=channel.id, role="consumer", seat=3, member=99, export=Export())
    client._session.core._notice("member", encode(gone), Descriptors())
    assert producer.known == {3: 99}
    publish(client, channel, 1)
    assert next(other.subscribe("c")).seq == 2


def test_a_producer_that_is_closed_does_not_wait_for_the_file_of_a_consumer(client):
    channel = client.create_channel("c", capacity=4)
    publish(client, channel, 0)
    (producer,) = client._session.core.members
    producer.native.close()
    came = MemberCame(channel=channel.id, role="consumer", seat=3, member=99, export=Export(fds=1))
    with client._session.lock:
        client._session.core.receive(encode(came), Descriptors([os.memfd_create("consumer")]))
    assert producer.known == {3: 99}


def test_a_session_has_one_producer_in_a_channel_however_many_threads_publish(client, other):
    channel = client.create_channel("c", mode="queue", capacity=256)
    threads = [threading.Thread(target=publish, args=(client, channel, value)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(client._session.core.members) == 1
    frames = other.subscribe("c", credit=8)
    assert sorted(int(np.asarray(next(frames))[0]) for _ in range(8)) == list(range(8))


def stream_on(path, pool):
    with poolbridge.connect(path, timeout=60) as client:
        client.open_pool(pool)
        channel = client.open_channel("c")
        for value in range(1 << 30):
            channel.publish(np.full(4, value, np.int32))


def promise_one(path, pool):
    with poolbridge.connect(path, timeout=60) as client:
        client.open_pool(pool)
        lease = client.allocate(4, "int32")
        array = np.asarray(lease)
        promise = lease.promise()
        client.open_channel("c").publish(lease)
        signal.pause()  # waits until the test kills this process
        del array, promise


def take_on(path, _pool):
    with poolbridge.connect(path, timeout=60) as client:
        list(client.subscribe("c", credit=4, ack="manual"))


@contextmanager
def process(target, *arguments):
    running = PROCESSES.Process(target=target, args=arguments, daemon=True)
    running.start()
    try:
        yield running
    finally:
        running.kill()
        running.join()
        running.close()


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_a_producer_that_is_killed_costs_its_consumers_nothing(service, client, other, mode):
    channel = client.create_channel("c", mode=mode, capacity=4)
    frames = other.subscribe("c")
    with process(stream_on, service.path, "frames") as producer:
        last = -1
        for _ in range(50):
            frame = frames.receive(60)
            value = int(np.asarray(frame)[0])
            assert value > last
            last = value
        os.kill(producer.pid, signal.SIGKILL)
        producer.join()
    while frame.seq < client.channels()[0].published:
        frame = frames.receive(60)
        assert (np.asarray(frame) == last + 1).all(), "what it published is there"
        last += 1
    publish(client, channel, 7)
    newest = frames.receive(60)
    assert np.asarray(newest).tolist() == [7] * 4
    newest.release()
    del frame, newest
    gc.collect()
    frames.close()
    channel.close()
    until(lambda: leases(client) == 0 or client.allocate(4, timeout=0).release())


@pytest.mark.parametrize("own", [True, False])
def test_an_allocation_that_does_not_wait_gets_what_a_producer_keeps(client, other, own):
    client.create_pool("tight", kind="host", max_bytes=8 * PAGE)
    other.open_pool("tight")
    channel = client.create_channel("c", pool="tight", mode="queue", capacity=8)
    frames = other.subscribe("c", credit=8)

    def gets_it():
        for _ in range(8):
            channel.publish(client.allocate(PAGE, "uint8", pool="tight", timeout=60), timeout=60)
        for _ in range(8):
            next(frames).release()
        try:
            lease = (client if own else other).allocate(6 * PAGE, "uint8", pool="tight", timeout=0)
        except poolbridge.PoolLimitError:
            return False
        assert lease.nbytes == 6 * PAGE
        lease.release()
        return True

    until(gets_it)  # again, because on a busy machine the producer may be told too late: the service gives it 50 ms


def test_a_frame_in_hand_is_incomplete_though_its_dead_producer_is_forgotten(service, client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c", full="drop-oldest", ack="manual")
    with process(promise_one, service.path, "frames") as producer:
        frame = frames.receive(60)
        os.kill(producer.pid, signal.SIGKILL)
        producer.join()
    forgotten = []
    forget = other._session.timelines.forget

    def note(ids):
        forget(ids)
        forgotten.extend(ids)

    other._session.timelines.forget = note
    publish(client, channel, 1)
    until(lambda: other.stats() and forgotten)
    with pytest.raises(poolbridge.ProducerDiedError):
        np.asarray(frame)
    frame.release()
    assert not set(forgotten) & set(other._session.timelines.pages)


def test_a_frame_that_its_producer_will_never_complete_is_an_error_where_it_is_taken(service, client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    with process(promise_one, service.path, "frames") as producer:
        until(lambda: other._session.core.members[0].known)
        seen = client.subscribe("c").receive(60)
        os.kill(producer.pid, signal.SIGKILL)
        producer.join()
    with pytest.raises(poolbridge.ProducerDiedError):
        seen.wait(60)
    with pytest.raises(poolbridge.ProducerDiedError):
        next(frames)
    publish(client, channel, 2)
    assert next(frames).seq == 2


def test_a_consumer_waits_until_a_promise_is_kept(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    lease = client.allocate(4, "int32")
    array, promise = np.asarray(lease), lease.promise()
    channel.publish(lease)
    frame = next(frames)
    with pytest.raises(poolbridge.WaitTimeoutError):
        frame.wait(0.001)
    array[:] = 5
    promise.complete()
    assert not array.flags.writeable
    assert frame.to_numpy().tolist() == [5] * 4


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_a_consumer_that_is_killed_holds_nobody_up(service, client, other, mode):
    channel = client.create_channel("c", mode=mode, capacity=4)
    with process(take_on, service.path, "frames") as consumer:
        publish(client, channel, 0)
        until(lambda: client._session.producers[channel.id].known)
        sent = 1
        with pytest.raises(poolbridge.WaitTimeoutError):
            for value in range(1, 100):
                publish(client, channel, value, timeout=2.0)
                sent += 1
        os.kill(consumer.pid, signal.SIGKILL)
        consumer.join()
        publish(client, channel, sent, timeout=60) if mode == "broadcast" else None
    if mode == "queue":
        frames = other.subscribe("c")
        assert sorted(frames.receive(60).seq for _ in range(sent)) == list(range(1, sent + 1)), "all come back"


def test_the_death_of_the_service_ends_who_waits_with_a_lost_connection(service, client, other):
    channel = client.create_channel("c", capacity=1)
    waiting, keeping = other.subscribe("c", full="drop-oldest"), client.subscribe("c")
    publish(client, channel, 1)
    array = np.asarray(next(keeping))
    next(waiting)
    caught = []

    def expect(call):
        try:
            call()
        except poolbridge.PoolbridgeError as error:
            caught.append(type(error))

    calls = [lambda: next(waiting), lambda: publish(client, channel, 2)]
    threads = [threading.Thread(target=expect, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    service.kill()
    for thread in threads:
        thread.join(60)
    assert caught == [poolbridge.ConnectionLostError] * 2
    assert array.tolist() == [1] * 4, "its memory stays"
    with pytest.raises(poolbridge.ConnectionLostError):
        next(waiting)


def test_a_destroyed_pool_ends_its_channels(client, other):
    channel = client.create_channel("c")
    frames = other.subscribe("c")
    publish(client, channel, 1)
    array, lease = np.asarray(next(frames)), client.allocate(4)
    client.destroy_pool("frames")
    with pytest.raises(poolbridge.ClosedError, match="pool"):
        frames.receive(60)
    with pytest.raises(poolbridge.ClosedError):
        channel.publish(lease)
    assert array.tolist() == [1] * 4


def test_memory_is_asked_back_while_frames_stream(client, other):
    channel = client.create_channel("c", capacity=2)
    arrays = other.subscribe("c").arrays()
    for value in range(60):
        publish(client, channel, value)
        array = next(arrays)
        assert array.tolist() == [value] * 4
        if value % 10 == 9:
            del array
            channel.publish(client.allocate(2000 + value))  # the sizes differ, so that no block is used again
            next(arrays)
            client.trim()
    until(lambda: client.stats().pools[0].held == 0)


def test_a_client_that_closes_lets_arrays_live_and_producers_go_on(service, client):
    channel = client.create_channel("c", mode="queue", capacity=4)
    with poolbridge.connect(service.path, timeout=60) as other:
        frames = other.subscribe("c", ack="manual")
        for value in range(2):
            publish(client, channel, value)
        first, array = next(frames), np.asarray(next(frames))
    assert array.tolist() == [1] * 4
    assert first.released
    mine = client.subscribe("c")
    assert sorted(mine.receive(60).seq for _ in range(2)) == [1, 2], "what was not acknowledged goes back"
    mine.close()
    loans = client._session.producers[channel.id].outstanding
    client.allocate(9).release()
    assert len(loans) == 1, "the array's, which went back once more"
    client.subscribe("c").receive(60).release()
    client.allocate(9).release()
    assert len(loans) == 1, "the array still uses it"
    del array
    gc.collect()
    client.allocate(9).release()
    assert not loans


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("full", ["block", "drop-oldest", "latest"])
def test_no_frame_is_written_while_it_is_in_hand(service, client, mode, full):
    client.create_channel("c", mode=mode, capacity=2, full=full)
    frames = client.subscribe("c", credit=8)
    kept = []
    with process(stream_on, service.path, "frames"):
        last = -1
        for _ in range(150):
            array = np.asarray(frames.receive(60))
            value = int(array[0])
            assert value > last
            last = value
            kept.append((value, array))
            for seen, other in kept:
                assert (other == seen).all()
            del kept[:-5]
            del array, other
        kept.clear()


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt():
    def handle(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_wait_for_a_frame_and_for_room(client, other, interrupt):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c", ack="manual")
    with pytest.raises(Interrupted):
        interrupt()
        next(frames)
    publish(client, channel, 1)
    frame = next(frames)
    lease = client.allocate(4, "int32")
    before = leases(client)
    with pytest.raises(Interrupted):
        interrupt()
        channel.publish(lease)
    assert not lease.released
    assert leases(client) == before
    frame.release()
    assert channel.publish(lease) == 2


# Settling


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_an_acknowledged_frame_keeps_its_memory_and_no_place(client, other, mode):
    channel = client.create_channel("c", mode=mode, capacity=1)
    frames = other.subscribe("c", credit=1, ack="manual")
    arrays = []
    for value in range(20):
        publish(client, channel, value, timeout=60)
        frame = frames.receive(60)
        arrays.append(np.asarray(frame))
        frame.ack()
    assert [int(array[0]) for array in arrays] == list(range(20))
    with pytest.raises(poolbridge.FrameSettledError):
        frame.ack()
    del arrays, frame
    gc.collect()
    client.allocate(99).release()
    until(lambda: leases(client) <= 2)


def test_credit_bounds_the_frames_that_are_not_acknowledged(client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe("c", credit=2, ack="manual")
    for value in range(4):
        publish(client, channel, value)
    first, second = next(frames), next(frames)
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0.05)
    later = threading.Timer(0.1, first.ack)
    later.start()
    assert frames.receive(60).seq == 3
    later.join()
    second.release()
    assert frames.receive(60).seq == 4


def test_a_frame_that_was_given_back_and_taken_again_is_settled_once_more(client, other):
    channel = client.create_channel("c", mode="queue")
    frames = other.subscribe("c", ack="manual")
    publish(client, channel, 5)
    first = next(frames)
    first.requeue()
    second = next(frames)
    assert (first.seq, second.seq) == (1, 1)
    second.release()
    assert first.to_numpy().tolist() == [5] * 4
    first.release()
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0.05)


def test_a_consumer_is_told_how_many_frames_it_missed(client, other):
    channel = client.create_channel("c", capacity=2, full="drop-oldest")
    frames = other.subscribe("c")
    for value in range(6):
        publish(client, channel, value)
    assert [(frame.seq, frame.dropped) for frame in (next(frames), next(frames))] == [(5, 4), (6, 0)]


def test_a_block_that_another_member_has_asked_for_as_well_is_not_dropped():
    core, ids = Core(), (1, 2)
    core.members = [SimpleNamespace(channel=SimpleNamespace(id=2, pool=7))]  # the member of channel 1 has left
    calls = [core.start(Map(channel=id_, block=5), MapReply, lambda: None) for id_ in ids]
    core.outbox.clear()
    for call in calls:
        core.receive(
            encode(MapReply(number=call.number, block_nbytes=PAGE, generation=1, export=Export(fds=0, data=bytes(8)))),
            Descriptors(),
        )
    assert not core.outbox
    assert core.blocks[5].pool == 7


# Wrong records


def liar(client, channel, replace):
    """Publish a frame with a wrong record. `replace` returns the changed description of the frame."""
    producer = client._session.producers[channel.id]
    described = producer.describe
    producer.describe = lambda *of: replace(*described(*of))
    try:
        publish(client, channel, 9)
    finally:
        producer.describe = described


@pytest.mark.parametrize(
    "replace",
    [
        pytest.param(
            lambda id_, packed: (id_ + 100, packed[:32] + struct.pack("<Q", 1 << 40) + packed[40:]), id="shape"
        ),
        pytest.param(
            lambda id_, packed: (id_ + 100, packed[:16] + b"strange".ljust(16, b"\0") + packed[32:]), id="type"
        ),
    ],
)
@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_a_frame_that_cannot_be_is_an_error_at_that_frame_only(service, client, other, mode, replace):
    channel = client.create_channel("c", mode=mode)
    frames = other.subscribe("c")
    publish(client, channel, 1)
    assert next(frames).seq == 1
    liar(client, channel, replace)
    publish(client, channel, 3)
    with pytest.raises(poolbridge.FrameCorruptError, match="frame 2 of channel 'c'"):
        next(frames)
    assert next(frames).seq == 3
    other.stats()
    until(lambda: "contradicts itself" in service.log.read_text())


def test_a_block_that_the_pool_does_not_have_fails_its_frame(client, other):
    channel = client.create_channel("c")
    frames = other.subscribe("c")
    publish(client, channel, 1)
    next(frames)
    producer = client._session.producers[channel.id]
    id_, packed = next(iter(producer._descriptions.values()))
    assert producer.native.publish(999, 1, 16, id_, packed) == 2
    producer.outstanding[999] = next(iter(producer.outstanding.values()))
    with pytest.raises(poolbridge.FrameCorruptError, match="frame 2 of channel 'c'.*999"):
        next(frames)
    del producer.outstanding[999]


# The tests below use clients without the native module, and clients of a service that has no channels.


def without_channels(client, match):
    client.create_pool("without", max_bytes=PAGE)
    for call in (lambda: client.create_channel("d"), lambda: client.open_channel("c"), lambda: client.subscribe("c")):
        with pytest.raises(poolbridge.UnavailableError, match=match):
            call()
    with client.allocate(4, pool="without") as lease:
        lease.publish("x")


def test_without_the_native_module_it_says_what_is_missing_and_all_else_works(service, client, monkeypatch):
    client.create_channel("c")
    monkeypatch.setattr(_membership, "NATIVE", None)
    monkeypatch.setattr(_base_client, "FEATURES", ("timelines",))
    with poolbridge.connect(service.path, timeout=60) as bare:
        without_channels(bare, "native module.*install")


def test_a_service_that_has_no_channels_says_why(tmp_path):
    plain = Service(str(tmp_path / "plain.sock"))
    with poolbridge.connect(plain.path) as client:
        without_channels(client, "no channels: its kernel")
    plain.close()


def test_a_forked_child_has_no_part_in_it(client, other):
    channel = client.create_channel("c")
    frames = other.subscribe("c")
    arrays = other.subscribe("c").arrays()
    publish(client, channel, 1)
    next(arrays)
    child = os.fork()
    if not child:
        refused = 0
        try:
            for call in (lambda: next(frames), lambda: next(arrays), lambda: channel.publish(np.zeros(4))):
                try:
                    call()
                except poolbridge.ForkError:
                    refused += 1
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert next(frames).seq == 1


# Asyncio


def test_many_async_consumers_wait_at_a_time(service):
    async def consume(frames, seen):
        async for frame in frames:
            seen.append(int(np.asarray(frame)[0]))

    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("frames", max_bytes=1 << 20)
            channel = await client.create_channel("c", capacity=4)
            subscriptions = [client.subscribe("c") for _ in range(12)]
            seen: list[list[int]] = [[] for _ in subscriptions]
            tasks = []
            for frames, numbers in zip(subscriptions, seen, strict=True):
                await frames.__aenter__()
                tasks.append(asyncio.create_task(consume(frames, numbers)))
            for value in range(10):
                await channel.publish(np.full(1, value))
                await asyncio.sleep(0.01)
            await channel.close()
            await asyncio.gather(*tasks)
            assert seen == [list(range(10))] * 12

    asyncio.run(main())
