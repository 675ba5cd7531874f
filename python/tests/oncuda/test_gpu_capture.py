"""Test streams whose work is being captured into a CUDA graph.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from cuda.bindings import driver
from gates import ask, fill, finish, new_stream, read
from realservice import until
from rig import CHANNELS, ENVIRONMENT, N, client, device_service, gate, other, use

import poolbridge
from poolbridge._cuda import stream as _cuda_stream
from poolbridge._cuda.cuda import Allocation, call, current
from poolbridge._wire.messages import Fence

pytestmark = CHANNELS
ALL = 64 << 20

__all__ = ["client", "device_service", "gate", "other"]  # fixtures


def wrap(lease):
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_dlpack(lease, stream_ptr=-1)


@contextmanager
def capture(stream):
    """Capture the work of a stream into a graph, and check that the graph is intact and empty at the end.

    First, wait for poolbridge's threads that write fences: a fence that such a thread writes at the moment at which
    this capture begins would be in the graph, and the driver crashes if the capture ends meanwhile.
    """
    for one in CLIENTS:
        written = threading.Event()
        one._session.later(written.set)
        assert written.wait(60)
    until(lambda: all(thread.name != "poolbridge-capture" for thread in threading.enumerate()))
    with current(0):
        call("cuStreamBeginCapture", stream, 0)
    try:
        yield
    finally:
        with current(0):
            graph = ask("cuStreamEndCapture", stream)
            if int(graph):
                *_, nodes = driver.cuGraphGetNodes(graph, 0)
                assert nodes == 0
                ask("cuGraphDestroy", graph)


CLIENTS: list[poolbridge.Client] = []


@pytest.fixture(params=["native", "python"])
def streams(request, monkeypatch, client, other):
    """Give two streams; either the native module or the Python bindings of CUDA make them write words."""
    if request.param == "python":
        monkeypatch.setattr(_cuda_stream, "_stream_words", None)
    CLIENTS[:] = client, other
    yield new_stream(), new_stream()
    CLIENTS.clear()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_lease_goes_back_after_the_capture(client, streams, dropped):
    for used in (streams, streams[:1]):
        lease = client.allocate(ALL, "uint8", timeout=60)
        for stream in used:
            use(lease, stream)
        with capture(streams[0]):
            if not dropped:
                lease.release()
            del lease
            gc.collect()
            with pytest.raises(poolbridge.PoolLimitError):
                client.allocate(ALL, "uint8", timeout=0.1)
    client.allocate(ALL, "uint8", timeout=60)


def test_other_threads_use_poolbridge_during_a_capture(client, streams):
    def work():
        client.create_pool("more", kind="device", max_bytes=ALL)
        lease = client.allocate(N, "uint8", pool="more")
        use(lease, streams[1])
        lease.release()
        finish(streams[1])
        done.append(client.allocate(ALL, "uint8", pool="more", timeout=60).pool)

    done: list[str] = []
    with capture(streams[0]):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    assert done == ["more"]


PEER = """
import sys
import poolbridge
from gates import Gate, fill, finish, new_stream
from rig import N, use
gate, stream = Gate(), new_stream()
with poolbridge.connect(sys.argv[1], timeout=60) as client:
    lease = client.allocate(N, "uint8", pool="gpu")
    at = use(lease, stream)
    gate.hold(stream)
    fill(at, N, 5, stream)
    lease.publish("x")
    print("published", flush=True)
    sys.stdin.readline()
    gate.open()
    finish(stream)
    print("written", flush=True)
    sys.stdin.readline()
"""


def test_a_peer_that_ends_does_not_harm_a_capture(client, device_service, streams):
    with subprocess.Popen(
        [sys.executable, "-c", PEER, device_service],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{os.path.dirname(__file__)}"},
    ) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        assert peer.stdout.readline() == "published\n"
        got = client.get("x")
        use(got, streams[1])  # the stream waits for the peer's page
        peer.stdin.write("\n")
        peer.stdin.flush()
        assert peer.stdout.readline() == "written\n"
        finish(streams[1])
        got.release()
        client.stats()
        pages = client._session.timelines.pages
        (page,) = (page for page in pages.values() if not page.write)
        assert page.registered
        with capture(streams[0]):
            peer.stdin.close()
            assert peer.wait(60) == 0
            until(lambda: client.stats() and page not in pages.values())
            until(lambda: not page.registered)


class Outside:
    """An array of GPU memory that belongs to no pool."""

    def __init__(self, memory):
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (N,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
            "strides": None,
        }


def test_no_copy_of_an_array_that_is_published_is_captured(client, streams, monkeypatch):
    made: list[str] = []

    def spy(name, *arguments):
        made.append(name)
        return call(name, *arguments)

    monkeypatch.setattr(_cuda_stream, "call", spy)
    channel = client.create_channel("c", capacity=4)
    given = Outside(Allocation(0, N))
    with capture(streams[0]), pytest.raises(poolbridge.StreamCaptureError):
        channel.publish(given, stream=streams[0])
    assert "cuMemcpyAsync" not in made
    assert channel.publish(given, stream=streams[0]) == 1
    assert "cuMemcpyAsync" in made


def test_a_capture_that_begins_while_a_lease_is_released_does_not_release_it_twice(client, other, streams, monkeypatch):
    for used in (streams[:1], streams):
        lease = client.allocate(N, "uint8")
        fill(use(lease, streams[0]), N, 5, streams[0])
        lease.publish("x", replace=True)
        one, another = other.get("x"), other.get("x")
        for stream in used:
            use(one, stream)
        block = other._session.core.blocks[one._lease_state.grant.block]
        assert block.leases == 2
        said: list[tuple[Fence, ...]] = []
        real = other._session.release
        begun = threading.Event()

        def release(state, fences, real=real, said=said, begun=begun, **how):
            said.append(fences)
            real(state, fences, **how)
            if not begun.is_set():
                begun.set()
                with current(0):
                    call("cuStreamBeginCapture", streams[0], 0)

        monkeypatch.setattr(other._session, "release", release)
        one.release()
        assert begun.is_set()
        with current(0):
            ask("cuStreamEndCapture", streams[0])
        page = other._session.timelines.own.page
        assert all(page.wait(fence.word, fence.value, 60) for fence in said[0])
        assert (len(said), block.leases) == (1, 1)
        monkeypatch.undo()
        another.release()
        lease.release()


def test_one_thread_releases_what_was_released_in_a_capture(client, streams):
    before = threading.active_count()
    leases = [client.allocate(N, "uint8") for _ in range(50)]
    for lease in leases:
        use(lease, streams[0])
    with capture(streams[0]):
        for lease in leases:
            lease.release()
        assert threading.active_count() <= before + 1
    client.allocate(ALL, "uint8", timeout=60)


def test_the_cpu_waits_for_an_event_where_a_graph_would_wait_at_each_launch(client, other, gate, streams):
    producer, consumer = streams
    event = client.event("cuda:0")
    lease = client.allocate(N, "uint8")
    at = use(lease, producer)
    gate.hold(producer)
    fill(at, N, 5, producer)
    event.record(producer)
    lease.publish("x", event=event)
    got = other.get("x")
    other._session.patience = 0.01
    with capture(consumer):
        with pytest.raises(poolbridge.WaitTimeoutError):
            use(got, consumer)
        gate.open()
        other._session.patience = 60
        at = use(got, consumer)
    seen = read(at, N, consumer)
    finish(consumer)
    assert (seen == 5).all()


@pytest.mark.parametrize("stream", [-1, 12345678], ids=["unknown", "no stream"])
def test_a_wait_for_the_gpu_that_cuda_forbids_releases_nothing_before_the_capture_ends(client, gate, streams, stream):
    lease = client.allocate(N, "uint8")
    block = lease._lease_state.grant.block
    lease.__dlpack__(stream=stream, max_version=(1, 0))
    lease.__dlpack__(stream=-1, max_version=(1, 0))
    gc.collect()
    gate.hold(streams[1])
    with current(0):
        call("cuStreamBeginCapture", streams[0], 0)
    lease.release()
    assert client.allocate(N, "uint8")._lease_state.grant.block != block
    with current(0):
        result, _ = driver.cuStreamEndCapture(streams[0])
    assert result == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    gate.open()
    client.allocate(ALL, "uint8", timeout=60)


def test_content_is_not_passed_on_while_it_is_captured(client, other, streams):
    lease = client.allocate(N, "uint8")
    fill(use(lease, streams[0]), N, 5, streams[0])
    with capture(streams[0]), pytest.raises(poolbridge.StreamCaptureError):
        lease.publish("x")
    lease.publish("x")
    seen = read(use(other.get("x"), streams[1]), N, streams[1])
    finish(streams[1])
    assert (seen == 5).all()


def test_the_cpu_waits_for_content_where_a_graph_would_wait_at_each_launch(client, other, gate, streams):
    producer, consumer = streams
    lease = client.allocate(N, "uint8")
    at = use(lease, producer)
    gate.hold(producer)
    fill(at, N, 5, producer)
    lease.publish("x")
    got = other.get("x")
    other._session.patience = 0.01
    with capture(consumer):
        with pytest.raises(poolbridge.WaitTimeoutError):
            use(got, consumer)
        gate.open()
        other._session.patience = 60
        at = use(got, consumer)
    seen = read(at, N, consumer)
    finish(consumer)
    assert (seen == 5).all()


def test_streams_of_frames_go_on_after_a_capture(client, other, streams):
    producer, consumer = streams
    channel = client.create_channel("c", capacity=4)
    arrays = other.subscribe("c").arrays(wrap, stream=consumer)
    with channel.publisher(N, "uint8", wrap=wrap) as publisher:
        for byte in range(60):
            fill(publisher.loan(60, stream=producer).ptr, N, byte, producer)
            if byte % 7 == 0:
                with capture(producer), pytest.raises(poolbridge.StreamCaptureError):
                    publisher.publish()
            assert publisher.publish() == byte + 1
            if byte % 3 == 0:
                with capture(consumer):
                    array = next(arrays)
            else:
                array = next(arrays)
            seen = read(array.ptr, N, consumer)
            finish(consumer)
            assert (seen == byte).all()
            if byte % 5 == 0:
                with capture(consumer):
                    arrays.release()
