"""Tests promises: buffers that are published before their content is complete."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faketimelines import TimelineService

import poolbridge
from poolbridge._order.page import Page
from poolbridge._order.timeline import Timeline
from poolbridge._session.lease_state import LeaseState
from poolbridge._wire.limits import TIMELINE_WORDS


@pytest.fixture
def service(tmp_path):
    running = TimelineService(str(tmp_path / "p.sock"))
    yield running
    running.close()


def promised(client):
    """Return a lease, an array with which the test writes the content, and the promise of the lease."""
    lease = client.allocate(4, "int32")
    return lease, np.asarray(lease), lease.promise()


def test_a_reader_waits_until_the_promise_is_completed(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    with pytest.raises(poolbridge.WaitTimeoutError):
        got.wait(0.001)
    with pytest.raises(poolbridge.WaitTimeoutError):
        lease.wait(0.001)
    seen: list[list[int]] = []
    reader = threading.Thread(target=lambda: seen.append(np.asarray(got).tolist()))
    reader.start()
    array[:] = 7
    assert not promise.completed
    assert repr(promise) == "<poolbridge.Promise not completed yet>"
    promise.complete()
    reader.join(60)
    assert seen == [[7] * 4]
    assert promise.completed
    assert not array.flags.writeable
    promise.complete()


@pytest.mark.parametrize("way", ["put", "copy_from", "view"])
def test_promised_content_is_copied_only_when_it_is_complete(client, way):
    client.create_pool("elsewhere", max_bytes=1 << 20)
    lease, array, promise = promised(client)
    to = client.allocate(4, "int32", pool="elsewhere")
    ways = {
        "put": lambda: client.put(lease, "copy", pool="elsewhere"),
        "copy_from": lambda: to.copy_from(lease),
        "view": lambda: to.copy_from(lease.view()),
    }
    with pytest.raises(
        poolbridge.InvalidArgumentError, match="is promised and not complete.*complete the promise first"
    ):
        ways[way]()
    array[:] = 7
    promise.complete()
    assert np.asarray(ways[way]() or to).tolist() == [7] * 4
    failing, _, failed = promised(client)
    failed.fail("the camera is gone")
    with pytest.raises(poolbridge.ContentFailedError, match="the camera is gone"):
        to.copy_from(failing)


def test_a_promise_completed_before_publishing_is_nothing_to_wait_for(client, other):
    lease, array, promise = promised(client)
    array[:] = 1
    promise.complete()
    array[:] = 2
    lease.publish("x")
    got = other.get("x")
    assert got._lease_state.fences == ()
    assert np.asarray(got).tolist() == [2] * 4


def test_a_promise_outlives_its_lease(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    del array
    lease.release()
    del lease
    promise.complete()
    got.wait(0)


def test_a_process_that_dies_breaks_its_promises(service, client, other, monkeypatch):
    monkeypatch.setattr(Timeline, "fail_promises", lambda *_: None)  # a process that dies fails none itself
    lease, array, promise = promised(client)
    lease.publish("x", keep=True)
    got = other.get("x")
    del array
    lease.release()
    connection = service.connections[0]
    client.close()
    connection.join(60)
    with service.changed:
        service.bury(connection)
    with pytest.raises(poolbridge.ProducerDiedError):
        got.wait(60)
    with pytest.raises(poolbridge.ClientClosedError):
        promise.complete()


def test_only_what_is_yet_to_be_published_is_promised_and_once(client, other):
    lease, array, promise = promised(client)
    with pytest.raises(poolbridge.InvalidArgumentError, match="promised already"):
        lease.promise()
    promise.complete()
    again = lease.promise()
    lease.publish("x")
    with pytest.raises(poolbridge.InvalidArgumentError, match="is complete"):
        lease.promise()
    again.complete()
    with pytest.raises(poolbridge.InvalidArgumentError, match="is complete"):
        other.get("x").promise()
    del array


def test_a_name_that_is_taken_costs_no_promise(client, other):
    client.allocate(4, "int32").publish("x", keep=True)
    lease, array, promise = promised(client)
    with pytest.raises(poolbridge.AlreadyExistsError):
        lease.publish("x")
    assert array.flags.writeable
    np.asarray(lease)[:] = 3
    lease.publish("y")
    promise.complete()
    assert other.get("y").to_numpy().tolist() == [3] * 4


def test_words_are_used_again_but_not_before_their_promise_is_completed(client):
    lease = client.allocate(4, "int32")
    for _ in range(2 * TIMELINE_WORDS):
        lease.promise().complete()
    leases = [client.allocate(1, "int8") for _ in range(TIMELINE_WORDS + 1)]
    promises = [each.promise() for each in leases[:-1]]
    with pytest.raises(poolbridge.PoolLimitError, match="no more words"):
        leases[-1].promise()
    promises[7].complete()
    leases[-1].promise().complete()
    for promise in promises:
        promise.complete()


def test_a_promise_that_is_dropped_says_so(client):
    lease, array, promise = promised(client)
    with pytest.warns(ResourceWarning, match="dropped before it was completed"):
        del promise
        gc.collect()
    del lease, array


def test_a_service_without_timelines_takes_no_promises(service, client, monkeypatch):
    monkeypatch.setattr(TimelineService, "features", ())
    with poolbridge.connect(service.path) as plain:
        plain.open_pool("frames")
        with pytest.raises(poolbridge.UnsupportedError, match="timelines"):
            plain.allocate(4, "int32").promise()


def test_promises_of_the_asyncio_client(service, client, other):
    async def run():
        async with await poolbridge.connect_async(service.path) as twin:
            await twin.open_pool("frames")
            lease = await twin.allocate(4, "int32")
            array = np.asarray(lease)
            promise = await lease.promise()
            await lease.publish("x")
            got = other.get("x")
            with pytest.raises(poolbridge.WaitTimeoutError):
                got.wait(0.001)
            array[:] = 9
            promise.complete()
            assert got.to_numpy().tolist() == [9] * 4

    asyncio.run(run())


FORK = """
import os, sys
import numpy as np
import poolbridge

client = poolbridge.connect(sys.argv[1])
client.create_pool("forked", kind="host", max_bytes=1 << 20)
lease = client.allocate(4, "int32", pool="forked")
array, promise = np.asarray(lease), lease.promise()
lease.publish("promised to a child")
child = os.fork()
if not child:
    again = poolbridge.connect(sys.argv[1])
    got = again.get("promised to a child", timeout=60)
    try:
        got.wait(0.01)
    except poolbridge.WaitTimeoutError:
        os._exit(3)
    os._exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
promise.complete()
"""


def test_a_forked_child_that_connects_anew_waits_for_its_parents_promise(service):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, service.path]
    source = str(Path(poolbridge.__file__).parents[1])
    done = subprocess.run(command, env={"PYTHONPATH": source}, check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) == 3


FORK_AND_DROP = """
import gc, os, sys
import poolbridge

client = poolbridge.connect(sys.argv[1])
client.create_pool("forked", kind="host", max_bytes=1 << 20)
lease = client.allocate(4, "int32", pool="forked")
promise = lease.promise()
lease.publish("dropped in a child")
got = client.get("dropped in a child")
child = os.fork()
if not child:
    del promise
    gc.collect()
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
got.check()
promise.complete()
got.wait(0)
"""


def test_a_forked_child_drops_its_copy_of_a_promise_and_the_parent_completes_it(service):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_AND_DROP, service.path]
    source = str(Path(poolbridge.__file__).parents[1])
    done = subprocess.run(command, env={"PYTHONPATH": source}, check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) == 3
    assert not done.stderr


# Promises that fail


def test_readers_that_wait_are_told_why_a_promise_failed(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    got.check()
    seen: list[poolbridge.ContentFailedError] = []

    def read():
        with pytest.raises(poolbridge.ContentFailedError) as raised:
            got.wait(60)
        seen.append(raised.value)

    reader = threading.Thread(target=read)
    reader.start()
    promise.fail(ValueError("no light"))
    reader.join(60)
    assert [(type(error), error.code) for error in seen] == [(poolbridge.ContentFailedError, "content-failed")]
    assert str(seen[0]).endswith("its producer says: ValueError: no light")
    for use in (got.check, got.wait, got.to_numpy, lambda: np.asarray(got)):
        with pytest.raises(poolbridge.ContentFailedError, match="no light"):
            use()
    assert (promise.failed, promise.completed) == (True, False)
    assert repr(promise) == "<poolbridge.Promise failed>"
    assert not array.flags.writeable


def test_a_reader_that_has_its_array_asks_whether_the_content_failed(client, other):
    lease, array, promise = promised(client)
    with promise:
        lease.publish("x")
        got = other.get("x")
        array[:] = 1
    view = np.asarray(got)
    got.check()
    assert view.tolist() == [1] * 4


def test_a_block_that_an_exception_leaves_fails_the_promise(client, other):
    lease, array, promise = promised(client)
    with pytest.raises(ZeroDivisionError), promise:
        lease.publish("x")
        got = other.get("x")
        array[:] = 1 // 0
    with pytest.raises(poolbridge.ContentFailedError, match="its producer says: ZeroDivisionError"):
        got.wait(60)


def test_a_promise_fails_once_and_not_after_it_is_completed(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    promise.fail("no light")
    promise.fail("another reason")
    with pytest.raises(poolbridge.InvalidArgumentError, match="has failed"):
        promise.complete()
    with pytest.raises(poolbridge.ContentFailedError, match="no light$"):
        got.wait(60)
    _, array, promise = promised(client)
    promise.complete()
    with pytest.raises(poolbridge.InvalidArgumentError, match="is completed"):
        promise.fail("too late")
    del array


@pytest.fixture
def after_seal(monkeypatch):
    """Give a function that takes a handler: the next call of `LeaseState.seal` ends with a call of the handler.

    So the handler runs like a signal handler at this point.
    """
    handlers: list[Callable[[], object]] = []
    seal = LeaseState.seal

    def sealed(state):
        seal(state)
        if handlers:
            handlers.pop()()

    monkeypatch.setattr(LeaseState, "seal", sealed)
    return handlers.append


def test_a_signal_handler_fails_a_promise_that_is_about_to_be_completed(client, other, after_seal):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    after_seal(lambda: promise.fail("stopped by a signal"))
    with pytest.raises(poolbridge.InvalidArgumentError, match="has failed"):
        promise.complete()
    assert (promise.failed, promise.completed) == (True, False)
    with pytest.raises(poolbridge.ContentFailedError, match="stopped by a signal"):
        got.wait(0)
    del array


def test_a_thread_that_fails_a_promise_while_another_completes_it_is_told(client, other, after_seal):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    told: list[str] = []

    def fail():
        try:
            promise.fail("too late")
        except poolbridge.InvalidArgumentError as error:
            told.append(str(error))

    failing = threading.Thread(target=fail)
    after_seal(failing.start)  # the thread waits until the promise is completed
    promise.complete()
    failing.join(60)
    assert told == ["the promise is completed: its content cannot fail any more"]
    assert promise.completed
    got.wait(0)
    del array


@pytest.fixture
def closed_meanwhile(client, monkeypatch):
    """Make another thread close the client after a call has checked a promise, before the call writes the timeline."""

    def closing(work):
        def closed(*args):
            if threading.current_thread() is threading.main_thread():  # the thread that closes fails the promise, too
                thread = threading.Thread(target=client.close)
                thread.start()
                thread.join(60)
            return work(*args)

        return closed

    monkeypatch.setattr(Page, "store", closing(Page.store))
    monkeypatch.setattr(Page, "fail", closing(Page.fail))


@pytest.mark.parametrize("decide", [poolbridge.Promise.complete, lambda promise: promise.fail("no light")])
def test_a_thread_that_closes_the_client_meanwhile_is_the_reason(client, closed_meanwhile, decide):
    lease, array, promise = promised(client)
    lease.publish("x")
    with pytest.raises(poolbridge.ClientClosedError, match="the client is closed"):
        decide(promise)
    assert not promise.completed
    assert not promise.failed
    del array


def test_a_promise_is_dropped_while_a_thread_closes_the_client(client, closed_meanwhile, monkeypatch):
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_value))
    lease, array, promise = promised(client)
    lease.publish("x")
    del promise
    gc.collect()
    assert client.closed
    assert not raised
    del lease, array


def test_several_threads_fail_a_promise_once(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    together = threading.Barrier(4)

    def fail(reason):
        together.wait(60)
        promise.fail(reason)

    threads = [threading.Thread(target=fail, args=(f"reason {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with pytest.raises(poolbridge.ContentFailedError, match=r"its producer says: reason \d$"):
        got.wait(0)
    assert promise.failed
    del array


class Mute(Exception):
    """An exception that cannot be converted to a text: the conversion raises an error."""

    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("ü" * 300, "ü" * 128),
        ("a" + "ü" * 300, "a" + "ü" * 127),
        ("one\ntwo\0\x1b[31m", "one two  [31m"),
        ("", "no reason given"),
        (KeyError(), "KeyError"),
        (Mute(), "Mute"),
    ],
)
def test_readers_get_one_bounded_line(client, other, reason, said):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    promise.fail(reason)
    with pytest.raises(poolbridge.ContentFailedError) as raised:
        got.wait(60)
    assert str(raised.value).partition("its producer says: ")[2] == said
    del array


def test_only_an_exception_or_a_text_says_why(client):
    lease, array, promise = promised(client)
    with pytest.raises(poolbridge.InvalidArgumentError, match="an exception or a text, not 7"):
        promise.fail(7)
    assert not promise.failed
    promise.complete()
    del lease, array


def test_the_word_of_a_promise_that_failed_is_not_used_again_while_somebody_has_the_buffer(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    promise.fail("no light")
    spare = client.allocate(4, "int32")
    for _ in range(2 * TIMELINE_WORDS):
        spare.promise().complete()
    for _ in range(TIMELINE_WORDS):
        client.allocate(4, "int32").promise().fail("again")
    with pytest.raises(poolbridge.ContentFailedError, match="no light$"):
        got.wait(60)
    del array


def test_a_promise_that_is_dropped_fails(client, other):
    lease, array, promise = promised(client)
    lease.publish("x")
    got = other.get("x")
    with pytest.warns(ResourceWarning, match="its content has failed"):
        del promise
        gc.collect()
    with pytest.raises(poolbridge.ContentFailedError, match="the promise was dropped before it was completed"):
        got.wait(60)
    del array
