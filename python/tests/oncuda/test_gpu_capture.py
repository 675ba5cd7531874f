"""Streams whose work is being captured into a CUDA graph. Run by `test_device`, or by hand where there is a GPU."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import pytest
from gates import fill, finish, new_stream, read
from rig import CHANNELS, N, client, device_service, gate, other, use

import poolbridge
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._cuda.cuda import call, current

pytestmark = CHANNELS
ALL = 64 << 20

__all__ = ["client", "device_service", "gate", "other"]  # fixtures


def wrap(lease):
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_dlpack(lease, stream_ptr=-1)


@contextmanager
def capture(stream):
    """Capture the work of a stream into a graph, which must be intact and empty at the end."""
    with current(0):
        call("cuStreamBeginCapture", stream, 0)
    try:
        yield
    finally:
        with current(0):
            graph = call("cuStreamEndCapture", stream)
            if int(graph):
                *_, nodes = _cuda.bindings().cuGraphGetNodes(graph, 0)
                assert nodes == 0
                call("cuGraphDestroy", graph)


@pytest.fixture(params=["native", "python"])
def streams(request, monkeypatch):
    """Two streams that write words by the native module, or through the bindings."""
    if request.param == "python":
        monkeypatch.setattr(_cuda_stream, "_stream_words", None)
    return new_stream(), new_stream()


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
