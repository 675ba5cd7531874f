"""Tests that failed promises do not use up a client: their words are used again when nobody can read them any more."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

from realservice import RealService

import poolbridge

TIMES = 2000


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


def fail(client, reason, publish):
    """Publish a buffer with `publish`, and fail its promise."""
    lease = client.allocate(4, "int32", pool="frames", timeout=60)
    promise = lease.promise()
    publish(lease)
    promise.fail(reason)
    return lease


def test_two_thousand_promises_of_named_buffers_fail_in_one_client_and_old_readers_get_each_reason(client, other):
    readers = {}
    for n in range(TIMES):
        lease = client.allocate(4, "int32")
        promise = lease.promise()
        lease.publish("x", replace=True)
        if n % 10 == 0:
            readers[n] = other.get("x")
        promise.fail(f"reason {n}")
        lease.release()
    assert len(readers) == TIMES // 10
    for n, reader in readers.items():
        with pytest.raises(poolbridge.ContentFailedError, match=f"its producer says: reason {n}$"):
            reader.check()
    with pytest.raises(poolbridge.ContentFailedError, match=f"its producer says: reason {TIMES - 1}$"):
        other.get("x")


def test_two_thousand_promises_of_frames_fail_in_one_client_and_old_readers_get_each_reason(client, other):
    channel = client.create_channel("c", capacity=4, full="drop-oldest")
    frames = other.subscribe("c", credit=256)
    held = {}
    for n in range(TIMES):
        lease = client.allocate(4, "int32", timeout=60)
        promise = lease.promise()
        channel.publish(lease)
        frame = next(frames)
        if n % 10 == 0:
            held[n] = frame.lease
        promise.fail(f"reason {n}")
        with pytest.raises(poolbridge.ContentFailedError, match=f"its producer says: reason {n}$"):
            frame.wait(60)
    for n, lease in held.items():
        with pytest.raises(poolbridge.ContentFailedError, match=f"its producer says: reason {n}$"):
            lease.check()


def test_any_number_of_promises_that_were_never_published_fail(client):
    for n in range(TIMES // 3):
        promise = client.allocate(4, "int32").promise()
        promise.fail(f"reason {n}")


def test_any_number_of_promises_of_the_asyncio_client_fail(service, client):
    async def run():
        async with await poolbridge.connect_async(service.path, timeout=60) as twin:
            await twin.open_pool("frames")
            for _ in range(TIMES // 3):
                lease = await twin.allocate(4, "int32")
                promise = await lease.promise()
                await lease.publish("x", replace=True)
                promise.fail("no light")
                await lease.release()

    asyncio.run(run())


def test_failed_content_that_somebody_still_has_takes_words_until_it_is_released(client, other):
    spare = client.allocate(4, "int32")
    for n in range(256):
        lease = fail(client, "no light", lambda lease, n=n: lease.publish(f"x{n}"))
        lease.release()
    with pytest.raises(poolbridge.PoolLimitError, match="256 buffers whose promises failed are still .*unpublish"):
        spare.promise()
    client.unpublish("x7")
    promise = spare.promise()
    spare.publish("good")
    got = other.get("good")
    with pytest.raises(poolbridge.WaitTimeoutError):
        got.wait(0.001)
    promise.complete()
    got.wait(0)
    got.check()


def test_a_reader_that_has_released_its_lease_is_not_told_that_all_went_well(client, other):
    lease = client.allocate(4, "int32")
    promise = lease.promise()
    lease.publish("x")
    reader = other.get("x")
    reader.release()
    with pytest.raises(poolbridge.LeaseReleasedError):
        reader.check()
    promise.complete()
