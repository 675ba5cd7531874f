"""Test what happens when a block, a process or a service ends while a GPU still uses the memory.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from gates import fill, finish, idle, new_stream, read
from realservice import until
from rig import (
    CHANNELS,
    ENVIRONMENT,
    HERE,
    ONE_BLOCK,
    N,
    address,
    client,
    device_service,
    gate,
    has_poolsvc,
    service_command,
    use,
)

import poolbridge
from poolbridge._client import borrowed

__all__ = ["client", "device_service", "gate"]  # fixtures


def test_a_block_that_a_stream_still_uses_is_not_unmapped(client, gate):
    stream = new_stream()
    lease = client.allocate(N, "uint8")
    lease.used_on(stream)
    gate.hold(stream)
    lease.release()
    blocks = client._session.core.blocks
    assert len(blocks) == 1
    client.trim()
    client.stats()
    assert len(blocks) == 1
    gate.open()
    finish(stream)
    while blocks:
        client.stats()


@pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service has one kind")
@pytest.mark.parametrize("kind", ["device", "pinned", "vmm"])
def test_the_memory_of_a_closed_client_comes_back_when_its_last_array_dies(device_service, client, kind):
    client.create_pool("one block", kind=kind, max_bytes=2 << 20)
    for _ in range(3):
        with poolbridge.connect(device_service, timeout=60) as closed:
            array = closed.allocate(2 << 20, "uint8", pool="one block", timeout=60).view()
        with pytest.raises(poolbridge.PoolLimitError):
            client.allocate(2 << 20, "uint8", pool="one block", timeout=0)
        del array


@pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service buries nobody")
@CHANNELS
def test_a_producer_that_is_killed_lets_the_consumers_streams_go(device_service, client):
    channel = client.create_channel("c", capacity=4)
    frames = client.subscribe("c")
    code = f"""
import sys, poolbridge
sys.path[:0] = [{str(HERE)!r}]
from gates import Gate, fill, new_stream
client = poolbridge.connect({device_service!r})
lease = client.open_channel("c") and client.allocate({N}, "uint8", pool="gpu")
stream = new_stream()
lease.used_on(stream)
Gate().hold(stream)
fill(lease._evidence()["pointer"], {N}, 1, stream)
client.open_channel("c").publish(lease)
print("sent", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        frame = next(frames)
        stream = new_stream()
        use(frame, stream)
        assert not idle(stream)
        assert not frame.failed
        frame.check()
        process.kill()
    finish(stream)
    with pytest.raises(poolbridge.ProducerDiedError):
        frame.check()
    assert frame.failed
    frame.release()
    lease = client.allocate(N, "uint8")
    channel.publish(lease)
    assert next(frames).seq == 2


@pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service buries nobody")
@ONE_BLOCK
def test_a_reader_that_is_killed_does_not_hold_the_next_writer_up(device_service, client):
    lease = client.allocate(N, "uint8")
    lease.used_on(1)
    at = address(lease)
    lease.publish("x", keep=True)
    code = f"""
import sys, poolbridge
sys.path[:0] = [{str(HERE)!r}]
from gates import Gate, new_stream
client = poolbridge.connect({device_service!r})
lease = client.get("x")
stream = new_stream()
lease.used_on(stream)
Gate().hold(stream)
lease.release()
client.stats()
print("released", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "released\n"
        lease.release()
        client.unpublish("x")
        writer, again = new_stream(), client.allocate(N, "uint8")
        assert address(again) == at
        use(again, writer)
        assert not idle(writer)
        process.kill()
    finish(writer)
    again.publish("y")
    assert not again.failed


class OfStream:
    """An array in a lease's memory that a stream uses."""

    def __init__(self, lease, stream):
        self.address = address(lease)
        self._capsule = lease.view(device="cuda").__dlpack__(stream=stream, max_version=(1, 0))


def arrays_of(client, stream):
    return client.subscribe("c").arrays(partial(OfStream, stream=stream), stream=stream)


def read_last_frame(client, reader, gate, pool):
    """Let `reader` read a frame whose array exists already, and is held up. Return the blocks, the array, and the rest.

    The iterator has released the frame.
    """
    producer, stream = new_stream(), new_stream()
    channel = client.create_channel("c", pool=pool, capacity=2)
    arrays = arrays_of(reader, stream)
    with channel.publisher(N, "uint8", wrap=partial(OfStream, stream=producer)) as publisher:
        for number in range(100):
            loan = publisher.loan(60, stream=producer)
            fill(loan.address, N, number, producer)
            publisher.publish()
            array = next(arrays)
            if number < 99:
                del array
    assert arrays._lease_state is None, "the array existed already"
    gate.hold(stream)
    seen = read(array.address, N, stream)
    arrays.release()
    return reader._session.core.blocks, array, seen, stream


def assert_mapped_until_read(gate, blocks, seen, stream):
    assert not idle(stream)
    assert blocks
    gate.open()
    finish(stream)
    assert (seen == 99).all()
    until(lambda: not blocks)


@CHANNELS
@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_a_closed_client_does_not_unmap_frames_that_a_stream_still_reads(device_service, client, gate, kind):
    pool = client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    reader = poolbridge.connect(device_service, timeout=60)
    blocks, array, seen, stream = read_last_frame(client, reader, gate, pool)
    del array
    reader.close()
    assert_mapped_until_read(gate, blocks, seen, stream)


@CHANNELS
@pytest.mark.parametrize("late", [False, True])
def test_a_client_whose_service_died_does_not_unmap_frames_that_a_stream_still_reads(tmp_path, gate, late):
    path = str(tmp_path / "run" / "e.sock")
    with subprocess.Popen([*service_command(path), "--guard=false"], env=ENVIRONMENT) as process:
        client, reader = (poolbridge.connect(path, timeout=60, wait=60) for _ in range(2))
        pool = client.create_pool("gpu", kind="device", max_bytes=64 << 20)
        blocks, array, seen, stream = read_last_frame(client, reader, gate, pool)
        if not late:
            del array
        process.kill()
    for one in (client, reader):
        with pytest.raises(poolbridge.ClosedError):
            one.stats()
    until(lambda: reader._session._lost)
    if late:
        del array
    with reader._session.lock:
        pass  # all deferred work is done
    assert_mapped_until_read(gate, blocks, seen, stream)


@CHANNELS
def test_a_closed_client_does_not_unmap_frames_that_wait_for_a_common_fence(device_service, client, gate, monkeypatch):
    monkeypatch.setattr(borrowed, "_TOGETHER_SECONDS", 60)
    stream, size = new_stream(), 2 << 20  # each frame has a block of its own
    reader = poolbridge.connect(device_service, timeout=60)
    channel = client.create_channel("c", capacity=16)
    arrays = arrays_of(reader, stream)
    for number in range(60):
        channel.publish(client.allocate(size, "uint8", timeout=60))
        if number < 58:
            next(arrays)
            arrays.release()
    at = next(arrays).address
    assert arrays._lease_state is None, "the array existed already"
    gate.hold(stream)
    read(at, size, stream)
    next(arrays)
    assert len(arrays._unfenced) == 1
    blocks = reader._session.core.blocks
    reader.close()
    assert not idle(stream)
    until(lambda: len(blocks) == 2)
    del arrays
    assert not idle(stream)
    assert blocks
    gate.open()
    finish(stream)
    until(lambda: not blocks)


EXITS_WHILE_IT_UNMAPS = """
import sys, time
import poolbridge
from gates import Gate, fill, new_stream

gate, stream = Gate(), new_stream()
client = poolbridge.connect(sys.argv[1], timeout=60, wait=60)
client.create_pool("gpu", kind="device", max_bytes=1 << 20)
lease = client.allocate(4096, "uint8", pool="gpu")
lease.__dlpack__(stream=stream, max_version=(1, 0))
gate.hold(stream)
fill(int(lease._evidence()["pointer"]), 4096, 1, stream)
lease.release()
client.close()  # a thread unmaps the memory that the stream still uses
gate.open()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("pause", [0, 0.002, 0.02])
def test_a_process_may_end_while_memory_is_unmapped(device_service, pause):
    environment = {**ENVIRONMENT, "SIMCUDA_FAULTS": "call=cuMemFreeAsync every=1 delay_ms=25"}
    command = [sys.executable, "-c", EXITS_WHILE_IT_UNMAPS, device_service, str(pause)]
    done = subprocess.run(command, env=environment, cwd=HERE, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service lets nobody go")
def test_a_service_that_shuts_down_lets_words_go_but_memory_stays_while_a_stream_works(tmp_path, gate):
    path = str(tmp_path / "run" / "e.sock")
    with subprocess.Popen(service_command(path), env=ENVIRONMENT) as process:
        client = poolbridge.connect(path, timeout=60, wait=60)
        client.create_pool("gpu", kind="device", max_bytes=64 << 20)
        lease = client.allocate(N, "uint8")
        stream = new_stream()
        at = use(lease, stream)
        gate.hold(stream)
        fill(at, N, 1, stream)
        lease.release()
        client.stats()
        process.terminate()
    with pytest.raises(poolbridge.ClosedError):
        client.stats()
    client.close()
    assert not idle(stream)
    gate.open()
    finish(stream)


def test_memory_that_readers_cannot_write_is_mapped_after_a_pool_of_pinned_memory_was_closed(device_service, client):
    # The driver then reserves the addresses of the closed pool again, and calls memory there mapped.
    with poolbridge.connect(device_service) as first:
        first.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
        lease = first.allocate(1 << 20, "uint8", pool="pinned")
        lease.copy_from(np.ones(1 << 20, np.uint8))
        lease.release()
    client.create_pool("vmm", kind="vmm", max_bytes=64 << 20)
    leases = [client.allocate(2 << 20, "uint8", pool="vmm") for _ in range(20)]
    for number, lease in enumerate(leases):
        lease.copy_from(np.full(2 << 20, number, np.uint8))
    for number, lease in enumerate(leases):
        assert (lease.to_numpy() == number).all()
