"""Promises: what is published before it is complete."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from faketimelines import TimelineService

import poolbridge
from poolbridge._order.page import WORDS


@pytest.fixture
def service(tmp_path):
    running = TimelineService(str(tmp_path / "p.sock"))
    yield running
    running.close()


def promised(client):
    """A lease, the array that writes it, and the promise."""
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


def test_a_process_that_dies_breaks_its_promises(service, client, other):
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
    for _ in range(2 * WORDS):
        lease.promise().complete()
    leases = [client.allocate(1, "int8") for _ in range(WORDS + 1)]
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
