"""Test channels on a GPU: members wait for the fences of other members.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import threading

import numpy as np
import pytest
from gates import Gate, fill, finish, idle, new_stream, read
from realservice import until
from rig import CHANNELS, ENVIRONMENT, N, address, client, device_service, gate, other, use

import poolbridge
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._wire.limits import MIN_SLOTS

pytestmark = CHANNELS

__all__ = ["client", "device_service", "gate", "other"]  # fixtures


def test_memory_of_a_frame_is_not_allocated_again_before_all_streams_of_its_consumer_are_done(client, other, gate):
    channel = client.create_channel("c", mode="queue", capacity=1)
    frames = other.subscribe("c", credit=1)
    producer, first, second = new_stream(), new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    at = use(lease, producer)
    fill(at, N, 1, producer)
    channel.publish(lease)
    frame = next(frames)
    seen = read(use(frame, first), N, first)
    gate.hold(second)
    again = read(use(frame, second), N, second)
    frame.release()
    del lease
    lease = client.allocate(N, "uint8")
    assert address(lease) != at, "work on the first one is under way"
    fill(use(lease, producer), N, 2, producer)
    assert not idle(second)
    gate.open()
    for stream in (producer, first, second):
        finish(stream)
    assert (seen == 1).all()
    assert (again == 1).all(), "not overwritten"
    channel.publish(lease)
    assert (next(frames).to_numpy() == 2).all()


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_readers_see_the_dtype_and_shape_of_what_was_published_after_other_frames(client, other, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=1)
    frames = other.subscribe("c")
    for _ in range(3):
        channel.publish(np.ones(6, "float32"))
        next(frames).release()
    content = np.arange(6, dtype="int32").reshape(2, 3)
    client.put(content, "w", pool=kind, keep=True).release()
    named = other.get("w")
    for lease in (named, other.lease(named.buffer_id, named.generation)):
        assert (lease.dtype_name, lease.shape) == ("int32", (2, 3))
        assert (lease.to_numpy() == content).all()


class OnGPU:
    """An array of a library on the GPU, as far as poolbridge sees it."""

    def __init__(self, lease):
        self.source = lease.view(device="cuda") if lease.kind == "pinned" else lease
        self.__cuda_array_interface__ = self.source.__cuda_array_interface__


class OfALibrary:
    """An array of a library whose streams poolbridge does not know."""

    def __init__(self, lease):
        self.lease = lease
        self.__dlpack_device__ = lease.__dlpack_device__
        self.__dlpack__ = lease.__dlpack__


def test_an_array_whose_stream_is_not_known_is_copied_before_the_program_can_write_it(client, other, gate, monkeypatch):
    client.create_pool("mine", kind="device", max_bytes=64 << 20)
    channel = client.create_channel("c", pool="gpu", capacity=4)
    frames = other.subscribe("c")
    mine, own = client.allocate(N, "uint8", pool="mine"), _cuda.own_stream(0)
    wait, waited = _cuda_stream.synchronize_stream, []
    mine.copy_from(np.full(N, 1, np.uint8))
    gate.hold(own)

    def open_and_wait(ordinal, stream):
        gate.open()
        wait(ordinal, stream)
        waited.append(stream)

    monkeypatch.setattr(_cuda_stream, "synchronize_stream", open_and_wait)
    channel.publish(OfALibrary(mine))
    assert waited == [own], "publish returns after the copy"
    writer = new_stream()
    fill(address(mine), N, 2, writer)
    finish(writer)
    assert (next(frames).to_numpy() == 1).all()


WRITES_TENSORS_AFTER_PUBLICATION = """
import sys
import poolbridge, torch

if not torch.cuda.is_available():
    sys.exit("this PyTorch uses no GPU")
count = 64 << 20
with poolbridge.connect(sys.argv[1]) as client, poolbridge.connect(sys.argv[1]) as other:
    client.create_pool("large", kind="device", max_bytes=4 * count)
    channel = client.create_channel("c", pool="large", capacity=1)
    frames = other.subscribe("c")
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            tensor = torch.ones(count, dtype=torch.uint8, device="cuda")
            channel.publish(tensor)
            tensor.zero_()
        with next(frames) as frame:
            print(bool((torch.from_dlpack(frame.lease) == 1).all()))
"""


def test_a_tensor_of_torch_can_be_written_after_its_publication(device_service):
    """Another process loads PyTorch: PyTorch keeps files open, and poolbridge warns each process that has loaded it."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: pip install torch")
    done = subprocess.run(
        [sys.executable, "-c", WRITES_TENSORS_AFTER_PUBLICATION, device_service],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    if "uses no GPU" in done.stderr:
        pytest.skip("this PyTorch uses no GPU: run the test on a machine with one, with `make gpu-bundle`")
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_an_array_in_memory_that_was_published_as_a_frame_is_not_published_again(client, other, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=4)
    frames = other.subscribe("c")
    array = OnGPU(client.allocate(N, "uint8", pool=kind))
    channel.publish(array)
    for again in (channel.publish, lambda one: client.put(one, "name", pool=kind)):
        with pytest.raises(poolbridge.LeaseReleasedError, match="from a new lease"):
            again(array)
    assert channel.publish(OnGPU(client.allocate(N, "uint8", pool=kind))) == 2
    received = OnGPU(next(frames).lease)
    assert other.open_channel("c").publish(received) == 3, "the array of a frame is copied"


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_a_session_publishes_the_arrays_of_its_own_frames(client, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=4)
    frames = client.subscribe("c")
    array = OnGPU(client.allocate(N, "uint8", pool=kind))
    channel.publish(array)
    assert channel.publish(OnGPU(next(frames).lease)) == 2


def test_a_lease_that_came_back_is_released_once_work_on_it_is_done(client, other, gate):
    channel = client.create_channel("c", mode="queue", capacity=1)
    frames = other.subscribe("c", credit=1)
    stream = new_stream()
    channel.publish(client.allocate(N, "uint8"))
    frame = next(frames)
    use(frame, stream)
    gate.hold(stream)
    frame.release()
    client.allocate(N, "uint8").release()
    assert client.stats().leases == 1, "the consumer's stream still uses it"
    gate.open()
    finish(stream)
    client.close()
    until(lambda: other.stats().leases == 0)


def test_frames_of_ever_other_streams_are_all_waited_for(client, other, gate):
    channel = client.create_channel("c", mode="queue", capacity=1)
    frames = other.subscribe("c", credit=1)
    streams = [new_stream() for _ in range(3)]
    for number in range(200):  # each entry of the cursor is overwritten, with a fence of another stream
        channel.publish(client.allocate(N, "uint8"))
        frame = next(frames)
        use(frame, streams[number % 3])
        frame.release()
        other.stats()
    for stream in streams:
        finish(stream)
    until(lambda: other._session.core.members[0].native.in_hand == [])


def test_a_frame_that_is_released_late_does_not_replace_the_fence_of_a_later_frame(client, other, gate, monkeypatch):
    pool = client.create_pool("small", kind="device", max_bytes=6 * N)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=4)
    frames = other.subscribe("c", ack="manual", credit=200)
    producer, reader, second = new_stream(), new_stream(), new_stream()
    kept = {}
    for number in range(1, 2 * MIN_SLOTS + 2):
        lease = client.allocate(N, "uint8", pool=pool)
        fill(use(lease, producer), N, number, producer)
        finish(producer)
        channel.publish(lease)
        del lease
        frame = frames.receive(60)
        frame.ack()
        if number % MIN_SLOTS == 1:
            kept[number] = frame
        else:
            frame.release()
        del frame
    late, last = MIN_SLOTS + 1, 2 * MIN_SLOTS + 1
    waits, page = [], other._session.timelines.own.page
    wait = page.wait

    def waiting(*fence):
        waits.append(fence)
        return wait(*fence)

    monkeypatch.setattr(page, "wait", waiting)
    with contextlib.closing(Gate()) as other_gate, contextlib.closing(Gate()) as last_gate:
        gates = ((1, reader, gate), (late, second, other_gate), (last, reader, last_gate))
        seen = {}
        for number, stream, held in gates:  # one slot has the fences of all three frames, one after the other
            held.hold(stream)
            at = use(kept[number], stream)
            seen[number] = read(at, N, stream)
            kept.pop(number).release()
            if number == late:
                until(lambda: waits)  # the late frame waits before the last one is released
                ran = threading.Event()
                other._session.later(ran.set)
                assert ran.wait(60), "it holds up no other work of the session"
        native = other._session.core.members[0].native
        assert native.in_hand == [late], "it would replace the fence of the first frame"
        gate.open()
        other_gate.open()
        finish(second)
        until(lambda: native.in_hand == [])
        leases = []
        with contextlib.suppress(poolbridge.PoolLimitError):
            while True:
                leases.append(client.allocate(N, "uint8", pool=pool, timeout=1))
                fill(use(leases[-1], producer), N, 255, producer)
                assert address(leases[-1]) != at or not idle(producer)
        assert not idle(reader)
        last_gate.open()
        finish(reader)
        assert {number: set(found.tolist()) for number, found in seen.items()} == {number: {number} for number in seen}


def test_a_publisher_gets_no_buffer_that_a_consumers_stream_still_reads(client, other, gate):
    try:
        pool = client.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
    except poolbridge.UnavailableError as error:
        pytest.skip(str(error))
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c", credit=1)
    stream = new_stream()
    with channel.publisher(N, "uint8") as publisher:
        first = publisher.loan(60)
        first[:] = 1
        publisher.publish()
        frame = next(frames)
        seen = use(frame, stream)
        gate.hold(stream)
        again = read(seen, N, stream)
        frame.release()
        for value in range(2, 12):
            array = publisher.loan(60)
            assert array is not first
            array[:] = value
            publisher.publish()
            frame = next(frames)
            assert (np.asarray(frame) == value).all()
            frame.release()
        gate.open()
        finish(stream)
        assert (again == 1).all(), "not overwritten"


def test_a_lease_of_another_pool_is_copied_and_can_be_released(client):
    client.create_pool("cpu", max_bytes=1 << 20)
    lease = client.allocate(3, "int32")
    lease.copy_from([1, 2, 3])
    channel = client.create_channel("c", pool="cpu")
    channel.publish(lease)
    lease.release()
    assert client.subscribe(channel).receive(60).to_numpy().tolist() == [1, 2, 3]


def test_a_frame_that_was_requeued_twice_and_then_released_does_not_come_again(client, other, gate):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c", ack="manual", credit=3)
    channel.publish(client.allocate(N, "uint8"))
    streams = new_stream(), new_stream()
    with contextlib.closing(Gate()) as other_gate, contextlib.ExitStack() as at_last:
        at_last.callback(gate.open)
        first = frames.receive(60)
        gate.hold(streams[0])
        use(first, streams[0])
        first.requeue()
        second = frames.receive(60)
        other_gate.hold(streams[1])
        use(second, streams[1])
        first.release()  # leaves its fence in the slot, so that the second one waits for its own
        del second  # goes back, because the program has not settled it
        frames.receive(60).release()
        native = other._session.core.members[0].native
        assert len(native.in_hand) == 1, "the second one waits"
    until(lambda: native.in_hand == [])
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0.1)
