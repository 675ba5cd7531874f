"""Tests tracers: the data that they get for each operation, spans of OpenTelemetry, and ranges of NVTX."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

pytest.importorskip("opentelemetry", reason="OpenTelemetry is not installed: pip install 'poolbridge[otel]'")

import asyncio
import contextlib
import pickle
import sys
import threading
from functools import partial

import numpy as np
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from realservice import until
from test_members import service  # noqa: F401 - a fixture

import poolbridge


class Notes:
    """A tracer that records each operation when it ends, with the exception that the operation raised."""

    def __init__(self):
        self.begun = []
        self.ended = []

    @contextlib.contextmanager
    def trace(self, operation):
        self.begun.append(operation.title)
        error = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.ended.append((operation, error))

    def take(self):
        """Return title, bytes and exception of each operation that has ended since the last call of `take`."""
        ended, self.ended = self.ended, []
        return [(operation.title, operation.nbytes, type(error) if error else None) for operation, error in ended]


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def seen(service, client, notes):  # noqa: F811
    """Give a client whose tracer is `notes`."""
    with poolbridge.connect(service.path, timeout=60, tracer=notes) as connected:
        connected.open_pool("frames")
        yield connected


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans):
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    yield made
    made.shutdown()


def test_every_operation_on_a_frame_is_traced_with_its_results(seen, notes):
    channel = seen.create_channel("c")
    frames = seen.subscribe(channel)
    channel.publish(seen.allocate(4, "int32"), meta={"a": "b"})
    frame = next(frames)
    frame.release()
    assert notes.take() == [
        ("allocate frames", 16, None),
        ("publish c", 16, None),
        ("receive c", 16, None),
        ("release c", 16, None),
    ]
    channel.publish(np.zeros(4, "int32"), meta={"a": "b"})
    with frames.receive(60) as frame:
        pass
    [(published, _), (received, _), (released, _)] = notes.ended
    assert (published.seq, published.meta, published.pool) == (2, {"a": "b"}, "frames")
    assert (received.seq, received.meta, received.dropped, released.seq) == (2, {"a": "b"}, 0, 2)
    assert not published.concurrent


def test_names_are_traced_and_leases_of_them(seen, notes):
    with seen.put(np.zeros(4, "int32"), "put"):
        pass
    lease = seen.allocate(4, "int32")
    lease.publish("named")
    seen.get_array("named")
    seen.lease(lease.buffer_id, lease.generation).release()
    assert notes.take() == [
        ("publish frames", 16, None),
        ("release frames", 16, None),
        ("allocate frames", 16, None),
        ("publish frames", 16, None),
        ("get frames", 16, None),
        ("lease frames", 16, None),
        ("release frames", 16, None),
    ]


def test_publishers_and_borrowed_arrays_are_traced_and_the_end_of_a_stream_is_no_error(seen, notes):
    channel = seen.create_channel("c")
    arrays = seen.subscribe(channel).arrays()
    with channel.publisher(4, "int32") as publisher:
        for value in range(3):
            publisher.loan()[:] = value
            publisher.publish({"value": str(value)} if value else None)
            assert next(arrays)[0] == value
    channel.close()
    assert list(arrays) == []
    each = [("allocate c", 16, None), ("publish c", 16, None), ("receive c", 16, None)]
    assert [operation.seq for operation, _ in notes.ended] == [None, 1, 1, None, 2, 2, None, 3, 3, None]
    assert notes.take() == [*each, *each, *each, ("receive c", None, None)]


def test_an_error_goes_through_the_tracer(seen, notes):
    with pytest.raises(poolbridge.NotFoundError):
        seen.get("nothing")
    frames = seen.subscribe(seen.create_channel("c"))
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0)
    lease = seen.allocate(4)
    array = np.asarray(lease)
    with pytest.raises(poolbridge.LeaseInUseError):
        lease.release()
    del array
    assert notes.take() == [
        ("get", None, poolbridge.NotFoundError),
        ("receive c", None, poolbridge.WaitTimeoutError),
        ("allocate frames", 16, None),
        ("release frames", 16, poolbridge.LeaseInUseError),
    ]


def test_a_call_that_waits_ends_when_another_thread_closes_the_client(seen, notes):
    frames = seen.subscribe(seen.create_channel("c"))
    failed = []

    def receive():
        try:
            frames.receive()
        except poolbridge.ClosedError as error:
            failed.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    until(lambda: notes.begun == ["receive c"])
    seen.close()
    waiting.join()
    assert notes.take() == [("receive c", None, type(failed[0]))]


def test_a_cancelled_call_of_an_asyncio_client_ends_its_operation(service, client, notes):  # noqa: F811
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60, tracer=notes) as connected:
            await connected.open_pool("frames")
            channel = await connected.create_channel("c")
            async with connected.subscribe(channel) as frames:
                await channel.publish(await connected.allocate(4, "int32"))
                async with await anext(frames) as frame:
                    assert frame.seq == 1
                waiting = asyncio.ensure_future(anext(frames))
                while notes.begun[-1:] != ["receive c"] or len(notes.begun) == len(notes.ended):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                async with channel.publisher(4, "int32") as publisher:
                    (await publisher.loan())[:] = 7
                    await publisher.publish({"a": "b"})
                arrays = frames.arrays()
                assert (await anext(arrays))[0] == 7
                await channel.close()
                assert [array async for array in arrays] == []
            lease = await connected.put(np.zeros(4, "int32"), "name")
            await lease.release()
            await connected.get_array("name")

    asyncio.run(main())
    assert all(operation.concurrent for operation, _ in notes.ended)
    assert notes.take() == [
        ("allocate frames", 16, None),
        ("publish c", 16, None),
        ("receive c", 16, None),
        ("release c", 16, None),
        ("receive c", None, asyncio.CancelledError),
        ("allocate c", 16, None),
        ("publish c", 16, None),
        ("receive c", 16, None),
        ("receive c", None, None),
        ("publish frames", 16, None),
        ("release frames", 16, None),
        ("get frames", 16, None),
    ]


def test_what_a_client_with_a_tracer_makes_has_the_classes_that_the_guide_names(seen):
    channel = seen.create_channel("c")
    frames = seen.subscribe(channel)
    lease = seen.allocate(4)
    channel.publish(np.zeros(4))
    frame = next(frames)
    kinds = {
        seen: poolbridge.Client,
        channel: poolbridge.Channel,
        channel.publisher(4): poolbridge.Publisher,
        frames: poolbridge.Subscription,
        frames.arrays(): poolbridge.BorrowedArrays,
        lease: poolbridge.Lease,
        frame: poolbridge.Frame,
        frame.lease: poolbridge.Lease,
    }
    for made, kind in kinds.items():
        assert type(made) is kind


def test_a_call_on_a_closed_client_is_traced_with_its_error(seen, notes):
    lease = seen.allocate(4)
    publisher = seen.create_channel("c").publisher(4)
    seen.close()
    notes.take()
    for call in (partial(seen.get, "name"), partial(lease.publish, "name"), publisher.loan, publisher.publish):
        with pytest.raises(poolbridge.ClientClosedError):
            call()
    assert notes.take() == [
        ("get", None, poolbridge.ClientClosedError),
        ("publish frames", 16, poolbridge.ClientClosedError),
        ("allocate c", 16, poolbridge.ClientClosedError),
        ("publish c", 16, poolbridge.ClientClosedError),
    ]


@pytest.mark.parametrize("tracer", [object(), "otel", poolbridge.NvtxTracer])
def test_what_is_no_tracer_is_refused(service, tracer):  # noqa: F811
    with pytest.raises(poolbridge.InvalidArgumentError, match="expected an object with a method trace"):
        poolbridge.connect(service.path, tracer=tracer)


def test_spans_have_the_names_and_attributes_of_the_conventions(service, client, spans, provider):  # noqa: F811
    tracer = poolbridge.OpenTelemetryTracer(provider)
    with poolbridge.connect(service.path, timeout=60, tracer=tracer) as connected:
        connected.open_pool("frames")
        channel = connected.create_channel("c")
        frames = connected.subscribe(channel)
        with provider.get_tracer("test").start_as_current_span("step") as step:
            channel.publish(connected.allocate(4, "int32"))
        next(frames).release()
    allocate, publish, _, receive, release = spans.get_finished_spans()
    assert [span.name for span in (allocate, publish, receive, release)] == [
        "allocate frames",
        "publish c",
        "receive c",
        "release c",
    ]
    assert {span.kind for span in (allocate, publish, receive, release)} == {trace.SpanKind.CLIENT}
    assert publish.parent.span_id == step.get_span_context().span_id
    assert dict(allocate.attributes) == {
        "poolbridge.pool.name": "frames",
        "poolbridge.operation.name": "allocate",
        "poolbridge.buffer.size": 16,
    }
    frame = {
        "poolbridge.pool.name": "frames",
        "messaging.system": "poolbridge",
        "messaging.destination.name": "c",
        "messaging.message.id": "1",
        "messaging.message.body.size": 16,
    }
    operations = (("publish", "send"), ("receive", "receive"), ("release", "settle"))
    for span, (name, kind) in zip((publish, receive, release), operations, strict=True):
        assert dict(span.attributes) == {
            **frame,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }
    assert receive.links == ()
    assert publish.instrumentation_scope.name == "poolbridge"


def test_a_span_of_a_failed_operation_has_the_exception(service, client, spans, provider):  # noqa: F811
    tracer = poolbridge.OpenTelemetryTracer(provider)
    with (
        poolbridge.connect(service.path, timeout=60, tracer=tracer) as connected,
        pytest.raises(poolbridge.NotFoundError),
    ):
        connected.get("nothing")
    [span] = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes["error.type"] == "poolbridge.errors.NotFoundError"
    assert [event.attributes["exception.type"] for event in span.events] == ["poolbridge.errors.NotFoundError"]


def test_the_span_of_a_cancelled_call_ends_and_names_the_cancellation(service, client, spans, provider):  # noqa: F811
    class Started(SpanProcessor):
        def on_start(self, span, parent_context=None):
            started.append(span.name)

    started: list[str] = []
    provider.add_span_processor(Started())

    async def main():
        tracer = poolbridge.OpenTelemetryTracer(provider)
        async with await poolbridge.connect_async(service.path, timeout=60, tracer=tracer) as connected:
            await connected.open_pool("frames")
            channel = await connected.create_channel("c")
            waiting = asyncio.ensure_future(anext(connected.subscribe(channel)))
            while not started:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not trace.get_current_span().get_span_context().is_valid

    asyncio.run(main())
    [span] = spans.get_finished_spans()
    assert (span.name, span.attributes["error.type"]) == ("receive c", "asyncio.exceptions.CancelledError")


def test_a_frame_carries_the_span_of_its_publication_where_that_was_asked_for(service, client, spans, provider):  # noqa: F811
    tracer = poolbridge.OpenTelemetryTracer(provider, propagate=True)
    with poolbridge.connect(service.path, timeout=60, tracer=tracer) as connected:
        connected.open_pool("frames")
        channel = connected.create_channel("c")
        frames = connected.subscribe(channel)
        channel.publish(np.zeros(4), meta={"a": "b"})
        assert set(next(frames).meta) == {"a", "traceparent"}
        with channel.publisher(4) as publisher:
            publisher.loan()
            publisher.publish()
        next(frames)
        # The tracer leaves `meta` as it is if the program has set `traceparent`, or if `meta` is full.
        own = f"00-{'1' * 32}-{'2' * 16}-01"
        channel.publish(np.zeros(4), meta={"traceparent": own})
        full = {"full": "x" * 8270}
        channel.publish(np.zeros(4), meta=full)
        assert next(frames).meta == {"traceparent": own}
        assert next(frames).meta == full
    finished = spans.get_finished_spans()
    published = [span for span in finished if span.name == "publish c"]
    links = [span.links for span in finished if span.name == "receive c"]
    assert {span.kind for span in published} == {trace.SpanKind.PRODUCER}
    assert [link.context.span_id for (link,) in links[:2]] == [span.context.span_id for span in published[:2]]
    assert [f"{link.context.span_id:016x}" for link in links[2]] == ["2" * 16]
    assert links[3] == ()


def test_a_client_that_is_unpickled_has_the_tracer_too(service, client):  # noqa: F811
    tracer = poolbridge.OpenTelemetryTracer(propagate=True)
    with poolbridge.connect(service.path, tracer=tracer) as traced, pickle.loads(pickle.dumps(traced)) as again:
        assert type(again) is poolbridge.Client
        assert isinstance(again._session.tracer, poolbridge.OpenTelemetryTracer)
        assert again._session.tracer._propagate


class Domain:
    """An NVTX domain that records the calls of its methods."""

    def __init__(self):
        self.told = []

    def get_event_attributes(self, message):
        return message

    def push_range(self, message):
        self.told.append(("push", message))

    def pop_range(self):
        self.told.append(("pop", None))

    def start_range(self, message):
        self.told.append(("start", message))
        return len(self.told)

    def end_range(self, number):
        self.told.append(("end", self.told[number - 1][1]))


@pytest.fixture
def domain(monkeypatch):
    nvtx = pytest.importorskip("nvtx")
    made = Domain()
    monkeypatch.setattr(nvtx, "get_domain", lambda name: made if name == "poolbridge" else None)
    return made


def test_ranges_of_a_thread_are_nested_also_after_an_error(service, client, domain):  # noqa: F811
    with poolbridge.connect(service.path, timeout=60, tracer=poolbridge.NvtxTracer()) as connected:
        connected.open_pool("frames")
        connected.allocate(4).release()
        with pytest.raises(poolbridge.NotFoundError):
            connected.get("nothing")
    names = ["allocate frames", "release frames", "get"]
    assert domain.told == [step for name in names for step in (("push", name), ("pop", None))]


def test_ranges_of_tasks_are_not_nested(service, client, domain):  # noqa: F811
    async def main():
        async with await poolbridge.connect_async(service.path, tracer=poolbridge.NvtxTracer()) as connected:
            await connected.open_pool("frames")
            await (await connected.allocate(4)).release()

    asyncio.run(main())
    names = ["allocate frames", "release frames"]
    assert domain.told == [step for name in names for step in (("start", name), ("end", name))]


def test_the_real_nvtx_takes_the_ranges(service, client):  # noqa: F811
    pytest.importorskip("nvtx")
    tracer = pickle.loads(pickle.dumps(poolbridge.NvtxTracer("frames of a test")))
    with poolbridge.connect(service.path, timeout=60, tracer=tracer) as connected:
        connected.open_pool("frames")
        connected.allocate(4).release()
    with tracer.trace(poolbridge.Operation("allocate", concurrent=True)):
        pass


@pytest.mark.parametrize(
    ("tracer", "module", "extra"),
    [
        (poolbridge.OpenTelemetryTracer, "opentelemetry", "otel"),
        (poolbridge.NvtxTracer, "nvtx", "nvtx"),
    ],
)
def test_a_tracer_whose_package_is_missing_says_what_to_install(monkeypatch, tracer, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(poolbridge.UnavailableError, match=rf"pip install 'poolbridge\[{extra}\]'"):
        tracer()
