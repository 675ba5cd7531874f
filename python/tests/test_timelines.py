"""Tests timelines and fences on the CPU: waits, time limits and deaths."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from faketimelines import TimelineService
from nativeworld import Interrupted, interrupt

import poolbridge
from poolbridge._cuda import stream as _cuda_stream
from poolbridge._memory.session_blocks import SessionBlock
from poolbridge._order import fences as _fences
from poolbridge._order.page import FILE_BYTES, PAGES, TOMBSTONE, Page
from poolbridge._order.streams import stream_key
from poolbridge._order.timeline import StreamKey, Timeline
from poolbridge._order.timelines import Timelines
from poolbridge._sys import futex as _futex
from poolbridge._sys.native import NATIVE
from poolbridge._sys.process import this_thread
from poolbridge._wire import messages as m
from poolbridge._wire.transport import Descriptors

__all__ = ["interrupt"]  # a fixture


@pytest.fixture(autouse=True)
def no_capture(monkeypatch):
    monkeypatch.setattr(_cuda_stream, "refuse_capture", lambda ordinal, stream: None)


@pytest.fixture
def service(tmp_path):
    running = TimelineService(str(tmp_path / "t.sock"))
    yield running
    running.close()


def make_page():
    fd = os.memfd_create("words", os.MFD_ALLOW_SEALING)
    try:
        os.truncate(fd, FILE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return Page(fd, write=True)
    finally:
        os.close(fd)


@pytest.fixture
def page(monkeypatch):
    """Give a page of a timeline, which GPUs use at the address 4096."""
    monkeypatch.setattr(_cuda_stream, "register", lambda *arguments, write: 4096)
    monkeypatch.setattr(_cuda_stream, "unregister", lambda *arguments, wait: None)
    made = make_page()
    yield made
    made.close()


class Writer:
    """A producer that publishes before its work is complete; the test writes the words of its timeline."""

    def __init__(self, service, path):
        self.service = service
        self.client = poolbridge.connect(path)
        self.client.open_pool("frames")
        session = self.client._session
        reply = self.client._reader.call(m.GetTimeline(), m.TimelineReply, 60)
        session.adopt(reply.timeline, own=True)
        assert session.timelines.own is not None
        self.own = session.timelines.own
        self.client.stats()

    def publish(self, name, value, word=0):
        lease = self.client.allocate(4, "int32")
        self.client._reader.call(
            m.Publish(lease=lease._lease_state.grant.id, name=name, ready=m.Fence(self.own.id, word, value), keep=True),
            m.Reply,
            60,
        )
        lease._lease_state.write = False
        return lease

    def die(self):
        connection = self.service.connections[-1]
        self.client.close()
        connection.join(60)
        with self.service.changed:
            self.service.bury(connection)


@pytest.fixture
def writer(service, client):
    made = Writer(service, service.path)
    yield made
    made.client.close()


def test_the_cpu_waits_for_what_is_not_complete(client, writer):
    lease = writer.publish("x", 1)
    got = client.get("x")
    client._session.patience = 0.01
    with pytest.raises(poolbridge.WaitTimeoutError, match="not ready after"):
        np.asarray(got)
    with pytest.raises(poolbridge.WaitTimeoutError):
        got.wait(0.001)
    for export in (got.to_numpy, got.__dlpack__, got.memoryview, lambda: np.asarray(got.view())):
        with pytest.raises(TimeoutError):
            export()
    client._session.patience = 60
    seen: list[list[int]] = []
    reader = threading.Thread(target=lambda: seen.append(np.asarray(got).tolist()))
    reader.start()
    np.asarray(lease._lease_state.array(write=True))[:] = 7
    writer.own.page.store(0, 1)
    reader.join(60)
    assert seen == [[7] * 4]
    assert not got.failed
    got.check()


def test_a_store_wakes_who_sleeps(tmp_path):
    fd = os.memfd_create("words", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, FILE_BYTES)
    import fcntl

    with pytest.raises(poolbridge.ProtocolError, match="sealed"):
        Page(fd, write=True)
    fcntl.fcntl(fd, 1033, 2)
    page, other = Page(fd, write=True), Page(fd, write=False)
    os.close(fd)
    with pytest.raises(TypeError):
        other.words[3] = 1
    assert not other.wait(3, 1, 0.001)
    woken = threading.Event()

    def sleep():
        while not other.reached(3, 1):
            _futex.wait(other.address + 24, 0, 30)
        woken.set()

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    page.store(3, 1)
    assert woken.wait(60)
    sleeper.join()
    assert other.wait(3, 1, 0)
    page.close()
    other.close()


def test_a_producer_that_died_lets_go_of_who_waits(client, writer):
    writer.publish("x", 5)
    got = client.get("x")
    caught: list[type[BaseException]] = []

    def read():
        try:
            np.asarray(got)
        except poolbridge.PoolbridgeError as error:
            caught.append(type(error))

    reader = threading.Thread(target=read)
    reader.start()
    writer.die()
    reader.join(60)
    assert caught == [poolbridge.ProducerDiedError]
    client.stats()
    assert got.failed
    with pytest.raises(poolbridge.ProducerDiedError):
        got.check()
    with pytest.raises(poolbridge.ProducerDiedError):
        got.wait()


def test_what_was_complete_before_its_producer_died_stays_good(client, writer):
    writer.publish("x", 5)
    got = client.get("x")
    writer.own.page.store(0, 5)
    writer.die()
    client.stats()
    assert np.asarray(got).shape == (4,)
    assert not got.failed


def test_a_timeline_that_nobody_names_any_more_is_unmapped(client, writer):
    before = len(PAGES)
    writer.publish("x", 1)
    writer.own.page.store(0, 1)
    writer.publish("y", 2)
    got = client.get("y")
    assert np.array_equal([len(PAGES)], [before])
    assert len(client._session.timelines.pages) == 1
    writer.own.page.store(0, 2)
    got.wait(60)
    writer.die()
    client.stats()
    assert client._session.timelines.pages == {}


def test_a_timeline_that_is_gone_before_it_was_asked_for_holds_nothing_up(service, client, writer):
    writer.publish("x", 1)
    service.tricks["timeline"] = lambda c, r: c.send(m.Reply(number=r.number, error=m.Error("not-found", "forgotten")))
    PAGES._pages.pop((client._session.core.epoch, writer.own.id))
    got = client.get("x")
    assert np.asarray(got).shape == (4,)
    del service.tricks["timeline"]
    PAGES._pages[client._session.core.epoch, writer.own.id] = writer.own.page


def test_a_writer_waits_for_readers_and_does_not_mind_their_death(service, client, writer):
    lease = client.allocate(4, "int32")
    block = lease._lease_state.grant.block
    lease.publish("x", keep=True)
    lease.release()
    reader = writer.client.get("x")
    writer.client._reader.call(
        m.Release(lease=reader._lease_state.grant.id, done=(m.Fence(writer.own.id, 1, 3),)), m.Reply, 60
    )
    reader._lease_state.released, reader._lease_state.owed = True, False
    with writer.client._session.lock:
        writer.client._session.disown(reader._lease_state.grant)
    client.unpublish("x")
    again = client.allocate(4, "int32")
    assert again._lease_state.grant.block == block
    assert again._lease_state.fences == (m.Fence(writer.own.id, 1, 3),)
    client._session.patience = 0.01
    with pytest.raises(poolbridge.WaitTimeoutError):
        np.asarray(again)
    writer.die()
    np.asarray(again)[:] = 1
    assert not again.failed


def test_waiting_from_asyncio_leaves_the_loop_free(service, client, writer):
    async def main():
        async with await poolbridge.connect_async(service.path) as other:
            writer.publish("x", 1)
            got = await other.get("x")
            with pytest.raises(poolbridge.WaitTimeoutError):
                await got.wait(0.001)
            waiting = asyncio.create_task(got.wait(60))
            await other.stats()
            assert not waiting.done()
            writer.own.page.store(0, 1)
            await waiting
            assert np.asarray(got).shape == (4,)

    asyncio.run(main())


def test_a_session_seals_its_timeline_once(service, writer):
    writer.client._session.adopt(writer.own.id, own=True)
    writer.client.stats()
    assert len(service.seen(m.Seal)) == 1
    assert writer.own.page.write


def test_words_are_used_again_once_their_streams_are_done(page, monkeypatch):
    written = []
    monkeypatch.setattr(_cuda_stream, "write", lambda *arguments: written.append(arguments))
    timeline = Timeline(1, page)
    for handle in range(10, 522):
        assert timeline.write(StreamKey(0, handle)) == m.Fence(1, handle - 10, 1)
    with pytest.raises(poolbridge.PoolLimitError, match="512 streams"):
        timeline.write(StreamKey(0, 9))
    page.words[7] = 1
    assert timeline.write(StreamKey(0, 9)) == m.Fence(1, 7, 2)
    assert written[-1] == (0, 9, 4096 + 56, 2)
    assert timeline.word(StreamKey(0, 17)) is None


def test_a_word_that_fails_again_stays_failed_for_a_thread_that_asked_about_its_first_failure(page):
    timeline = Timeline(1, page)
    first = timeline.promise()
    assert timeline.fail(first, "first", 1, 1)
    asked = timeline.failed[first.word]
    timeline.free(first.word, asked)  # by another thread, which has had the same answer
    while (second := timeline.promise()).word != first.word:
        page.store(second.word, second.value)
    assert timeline.fail(second, "second", 2, 1)
    timeline.free(first.word, asked)
    assert page.reason(second.word) == "second"
    assert page.died(second.word, second.value)
    with pytest.raises(poolbridge.PoolLimitError, match="512 streams and promises"):
        for _ in range(512):
            timeline.promise()


def test_who_waits_for_a_stream_is_told_before_the_stream_is(page, monkeypatch):
    happened: list[object] = []
    monkeypatch.setattr(_cuda_stream, "write", lambda *arguments: happened.append(arguments[2:]))
    timeline = Timeline(1, page)
    key = StreamKey(0, 10)
    timeline.write(key)
    assert timeline.tell(key, happened.append, lambda: happened.append("finished"))
    assert happened == [(4096, 1), (m.Fence(1, 0, 2),), (4096, 2)]
    assert timeline.write(key) == m.Fence(1, 0, 3)


def test_what_was_told_is_written_by_the_cpu_where_the_stream_takes_no_work(page, monkeypatch):
    def refuse(*arguments):
        raise poolbridge.DriverError("no more work")

    def fail():
        happened.append("finished")
        raise poolbridge.DriverError("and none is done")

    happened: list[object] = []
    monkeypatch.setattr(_cuda_stream, "write", refuse)
    timeline = Timeline(1, page)
    key = StreamKey(0, 10)
    with pytest.raises(poolbridge.DriverError, match="no more work"):
        timeline.write(key)
    assert timeline.tell(key, happened.append, lambda: happened.append("finished"))
    assert happened == [(m.Fence(1, 0, 1),), "finished"]
    assert page.words[0] == 1
    with pytest.raises(poolbridge.DriverError, match="none is done"):
        timeline.tell(key, happened.append, fail)
    assert page.words[0] == 2


def test_a_finaliser_in_the_midst_of_telling_neither_waits_nor_overtakes(page, monkeypatch):
    def finaliser(fences):
        assert timeline.write(key) is None
        assert not timeline.tell(key, lambda fences: pytest.fail("it would be written before"), lambda: None)
        assert timeline.upcoming(key) == (0, 2)
        happened.append(fences)

    happened: list[object] = []
    monkeypatch.setattr(_cuda_stream, "write", lambda *arguments: happened.append(arguments[2:]))
    timeline = Timeline(1, page)
    key = StreamKey(0, 10)
    assert timeline.tell(key, finaliser, lambda: None)
    assert happened == [(m.Fence(1, 0, 1),), (4096, 1)]
    assert timeline.write(key) == m.Fence(1, 0, 2)


def test_what_was_told_is_written_even_if_a_signal_comes_between(page, monkeypatch):
    def write(*arguments):
        happened.append(arguments[3])
        if len(happened) == 1:
            raise KeyboardInterrupt

    happened: list[int] = []
    monkeypatch.setattr(_cuda_stream, "write", write)
    timeline = Timeline(1, page)
    key = StreamKey(0, 10)
    with pytest.raises(KeyboardInterrupt):
        timeline.tell(key, lambda fences: None, lambda: None)
    assert happened == [1, 1]
    assert timeline.write(key) == m.Fence(1, 0, 2)


def test_a_stream_that_takes_no_work_is_waited_for_though_its_memory_is_mapped_no_more(page, monkeypatch):
    def refuse(*arguments):
        raise poolbridge.DriverError("no more work")

    happened: list[object] = []
    timelines = Timelines()
    timelines.own = Timeline(1, page)
    monkeypatch.setattr(_cuda_stream, "write", refuse)
    monkeypatch.setattr(_cuda_stream, "write_functions", lambda stream: (0, 0))
    follower = _fences.Follower(
        timelines.own, StreamKey(1, 10), timelines, None, lambda: happened.append(page.words[0])
    )
    follower.done(happened.append)
    assert happened == [(m.Fence(1, 0, 1),), 0]
    assert page.words[0] == 1


@pytest.fixture
def following(page, monkeypatch):
    """Give a follower, a list of its driver calls, and the list `answers`, from which the driver takes its results."""
    if NATIVE is None:
        pytest.skip("followers are made for channels, which need the native module")
    calls: list[tuple[int, ...]] = []
    answers: list[int] = []

    def called(*arguments):
        calls.append(arguments)
        return answers.pop() if answers else 0

    driver = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)(called)
    captures: list[int] = []

    def is_capturing(_stream, status):
        status[0] = bool(captures)
        return 0

    capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int))(is_capturing)
    functions = tuple(ctypes.cast(function, ctypes.c_void_p).value for function in (capturing, driver))
    monkeypatch.setattr(_cuda_stream, "write_functions", lambda stream: functions)
    monkeypatch.setattr(_cuda_stream, "write", lambda *arguments: None)
    timelines = Timelines()
    own = timelines.own = Timeline(1, page)
    timelines.pages[1] = page
    own.promise()  # takes the first word of the timeline
    key = StreamKey(0, 10)
    assert own.write(key) == m.Fence(1, 1, 1)
    return SimpleNamespace(
        follower=_fences.Follower(own, key, timelines, None, lambda: None),
        calls=calls,
        answers=answers,
        captures=captures,
        timelines=timelines,
        own=own,
        functions=(capturing, driver),  # keeps these functions alive as long as the follower
    )


def test_a_follower_writes_the_next_value_of_its_word(following):
    assert following.follower.queue() == m.Fence(1, 1, 2)
    assert following.follower.write() == m.Fence(1, 1, 3)
    assert following.calls == [(10, 4096 + 8, 2, 0), (10, 4096 + 8, 3, 0)]


def test_what_the_driver_refuses_is_not_counted_as_written(following):
    following.answers.append(999)
    assert following.follower.queue() is None
    assert following.follower.queue() == m.Fence(1, 1, 2)


def test_a_follower_writes_nothing_while_its_stream_is_captured(following):
    following.captures.append(1)
    assert following.follower.queue() is None
    following.captures.clear()
    assert following.follower.queue() == m.Fence(1, 1, 2)
    assert following.calls == [(10, 4096 + 8, 2, 0)]


def test_a_page_that_could_not_be_registered_in_a_capture_is_registered_later(monkeypatch):
    answers = [poolbridge.StreamCaptureError("captured"), 4096]

    def register(*arguments, write):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(_cuda_stream, "register", register)
    monkeypatch.setattr(_cuda_stream, "unregister", lambda *arguments, wait: None)
    made = make_page()
    assert [made.on_device(0) for _ in range(3)] == [0, 4096, 4096]
    made.close()


def test_a_follower_leaves_to_python_what_is_out_of_the_ordinary(following):
    follower, own = following.follower, following.own
    with own.lock:
        assert follower.queue() is None, "this thread holds the lock: it would write in the middle of another write"
    words, own.words = own.words, {}
    follower.words = {}
    assert follower.queue() is None, "the stream has no word"
    follower.words = own.words = words
    following.timelines.own = None
    assert follower.queue() is None
    assert follower.poll([], True) is None
    following.timelines.own = own
    assert follower.queue() == m.Fence(1, 1, 2)
    own.close()
    assert follower.queue() is None, "the page may be unmapped"
    assert len(following.calls) == 1


def test_threads_write_the_values_of_a_word_in_order(following):
    def write():
        for _ in range(500):
            following.follower.queue()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value for _, _, value, _ in following.calls] == list(range(2, 2002))


def test_a_follower_finds_which_fences_are_reached(following, page):
    poll = following.follower.poll
    following.follower.patience = following.follower.shortest = 0.0
    page.words[5], page.words[6] = 7, TOMBSTONE + 3
    assert poll([(1, 5, 7), (1, 5, 6), (1, 6, 3)], False) == []
    assert poll([(1, 5, 7), (1, 5, 8), (1, 1, 1000)], False) == [(1, 5, 8)], "the stream's own word needs no wait"
    assert poll([(1, 6, 4)], False) is None, "its process died, so the content is incomplete"
    assert poll([(1, 6, 4)], True) == [], "but the memory may be written"
    assert poll([(2, 5, 1)], True) is None, "the page is not known"
    assert poll([(1, 512, 1)], True) is None, "there is no such word"
    page.words.release()
    assert poll([(1, 5, 7)], True) is None, "the page is unmapped"


@pytest.mark.parametrize("fences", [5, [1], [(1, 2)], [(1, 2, "3")], [(-1, 2, 3)]])
def test_what_is_no_list_of_fences_is_refused(following, fences):
    with pytest.raises((TypeError, IndexError, OverflowError)):
        following.follower.poll(fences, False)


def test_a_poll_lets_the_thread_run_that_it_waits_for(following, page):
    following.follower.patience = following.follower.longest = 60.0
    timer = threading.Timer(0.01, lambda: page.words.__setitem__(5, 1))
    timer.start()
    assert following.follower.poll([(1, 5, 1)], False) == []
    timer.join()


def test_a_signal_ends_a_poll(following, interrupt):
    following.follower.patience = following.follower.longest = 60.0
    with pytest.raises(Interrupted):
        interrupt(lambda: True)
        following.follower.poll([(1, 5, 1)], False)


def test_polls_in_vain_take_longer_up_to_a_limit(following, page):
    follower = following.follower
    follower.patience, follower.shortest, follower.longest = 1e-6, 1e-6, 3e-6
    for seconds in (2e-6, 3e-6, 3e-6):
        assert follower.poll([(1, 5, 1)], False)
        assert follower.patience == seconds
    assert follower.poll([], False) == []
    assert follower.patience == 3e-6, "nothing was polled"


def test_a_timeline_that_is_closed_is_not_written(page, monkeypatch):
    monkeypatch.setattr(_cuda_stream, "write", lambda *arguments: pytest.fail("its page may be gone"))
    timeline = Timeline(1, page)
    timeline.close()
    key = StreamKey(0, 10)
    assert timeline.write(key) is None
    assert not timeline.tell(key, lambda fences: pytest.fail("nobody writes this"), lambda: None)


@pytest.mark.parametrize(
    ("stream", "key"),
    [
        (None, StreamKey(0, 1)),
        (1, StreamKey(0, 1)),
        (2, StreamKey(0, 2, this_thread())),
        (-1, None),
        (np.int64(4096), StreamKey(0, 4096)),
    ],
)
def test_streams_by_number(stream, key):
    assert stream_key((2, 0), stream) == key


def test_no_two_threads_have_the_same_per_thread_stream():
    keys = []
    for _ in range(10):  # each thread ends before the next begins, so their identities may be equal
        thread = threading.Thread(target=lambda: keys.append(stream_key((2, 0), 2)))
        thread.start()
        thread.join()
    assert len(set(keys)) == 10
    assert all(key is not None and not key.reachable for key in keys)


def test_a_block_is_in_use_until_the_last_of_a_streams_fences():
    block = SessionBlock(1, 1, 64, b"", Descriptors())
    for value in (5, 7, 6):  # two threads may report their values in this order
        block.used(m.Fence(1, 3, value))
    block.used(m.Fence(1, 4, 2))
    assert block.uses == {3: 7, 4: 2}


def test_streams_by_object():
    class Protocol:
        def __cuda_stream__(self):
            return (0, 77)

    class Pointer:
        ptr = 0

    class Torch:
        cuda_stream = 99

    assert [stream_key((2, 1), stream()) for stream in (Protocol, Pointer, Torch)] == [
        StreamKey(1, 77), StreamKey(1, 1), StreamKey(1, 99),
    ]  # fmt: skip
    for bad in (0, -2):
        with pytest.raises(ValueError, match="stream"):
            stream_key((2, 0), bad)
    with pytest.raises(ValueError, match="CPU"):
        stream_key((1, 0), 1)
    assert TOMBSTONE == 2**62


def test_words_are_compared_like_the_gpu_does(page):
    for now, reached, died in [
        (4, False, False),
        (5, True, False),
        (TOMBSTONE - 1, True, False),
        (TOMBSTONE + 4, True, True),
        (TOMBSTONE + 5, True, False),
        ((1 << 63) + 4, True, True),
        ((1 << 63) + 5, False, False),
        ((1 << 64) - 1, False, False),
    ]:
        page.words[0] = now
        assert (page.reached(0, 5), page.died(0, 5), page.wait(0, 5, 0.0002)) == (reached, died, reached), hex(now)


def test_a_page_that_comes_as_the_session_ends_is_not_gone_on_without(service):
    client = poolbridge.connect(service.path, timeout=60)
    fd = os.memfd_create("words", os.MFD_ALLOW_SEALING)
    client._session.core.pages[9] = Descriptors([fd])
    client.close()
    with pytest.raises(poolbridge.ClientClosedError):
        client._session.adopt(9, own=False)
