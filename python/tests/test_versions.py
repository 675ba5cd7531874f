"""Tests the versions of a name's content, how programs follow them, and copies that take newer ones."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fakeservice import Service as FakeService
from realservice import RealService, leases, until
from test_members import service as service  # noqa: PLC0414 - a fixture

import poolbridge
from poolbridge import InvalidArgumentError, NotFoundError, WaitTimeoutError


def model(n: float, shape: Any = (2, 3)) -> dict[str, Any]:
    return {"w": np.full(shape, n, "float32"), "b": np.full(2, -n)}


def put(client: poolbridge.Client, n: float, **options: Any) -> None:
    client.put(model(n), "m", replace=True, **options).release()


def content(lease: poolbridge.BaseLease) -> set[float]:
    return {float(n) for n in np.asarray(lease["w"]).flat} | {float(-n) for n in np.asarray(lease["b"]).flat}


def test_versions_count_the_publications_of_a_name(client, other):
    for n in (1, 2, 3):
        put(client, n)
        got = other.get("m")
        assert (got.version, content(got), other.names()[0].version) == (n, {float(n)}, n)
    put(client, 50, version=1000)
    assert other.get("m").version == 1000
    put(client, 51)
    assert other.get("m").version == 1001
    assert other.lease(got.buffer_id, got.generation).version is None
    assert client.allocate(3).version is None


def test_a_publisher_knows_its_version(service, client, other):
    for n, options in ((1, {}), (30, {"version": 30}), (31, {})):
        with client.put(model(n), "m", replace=True, **options) as mine:
            assert mine.version == n
    with pytest.raises(NotFoundError, match="nothing newer than version 31"):
        client.get("m", other_than=mine)
    copy = other.get_copy("m")
    copy.publish("n")
    assert (copy.version, other.get("n").version) == (1, 1)
    with pytest.raises(NotFoundError, match="nothing newer than version 1"):
        client.get("n", other_than=copy)
    put(client, 32)
    assert client.get("m", other_than=mine).version == 32

    async def main() -> None:
        async with await poolbridge.connect_async(service.path) as writer:
            assert (await writer.put(model(33), "m", replace=True)).version == 33

    asyncio.run(main())


def test_who_asks_an_old_service_for_other_content_is_told_that_it_has_no_versions(tmp_path):
    old = FakeService(str(tmp_path / "old.sock"))
    with poolbridge.connect(old.path) as client:
        client.create_pool("frames", kind="host", max_bytes=1 << 20)
        lease = client.put(np.zeros(3), "x")
        copy = client.get_copy("x")
        assert (lease.version, copy.version) == (None, None)
        for ask in (lambda: next(client.watch("x")), lambda: client.get("x", other_than=lease), copy.refresh):
            with pytest.raises(poolbridge.UnsupportedError, match="names have no versions"):
                ask()
    old.close()


def test_a_version_that_does_not_grow_is_refused_and_the_old_content_stays(client, other):
    put(client, 7, version=7)
    for version in (7, 3):
        with pytest.raises(InvalidArgumentError, match=f'version {version} of "m" is not newer than version 7'):
            put(client, 8, version=version)
    assert other.get("m").version == 7
    until(lambda: leases(client) == 0)
    for bad in (0, -1, 2**64, 1.5, "1", True):
        with pytest.raises(InvalidArgumentError, match="version"):
            put(client, 8, version=bad)


def test_after_the_greatest_version_the_name_stays_readable(client, other):
    put(client, 1, version=2**63 - 1)
    with pytest.raises(InvalidArgumentError, match='"m" has the greatest version: unpublish it first'):
        put(client, 2)
    assert (other.get("m").version, other.names()[0].version) == (2**63 - 1, 2**63 - 1)
    client.unpublish("m")
    put(client, 3)
    assert other.get("m").version == 1


def test_only_other_content_than_that_of_a_lease_is_got(client, other):
    put(client, 1)
    first = other.get("m")
    with pytest.raises(NotFoundError, match="nothing newer than version 1"):
        other.get("m", other_than=first)
    with pytest.raises(WaitTimeoutError, match="nothing newer than version 1"):
        other.get("m", other_than=first, timeout=0.05)
    first.release()
    put(client, 2)
    assert content(other.get("m", other_than=first)) == {2.0}
    for wrong in (client.allocate(3), "m", 1):
        with pytest.raises(InvalidArgumentError, match="no lease of a name"):
            other.get("m", other_than=wrong)


def test_content_that_is_written_in_place_is_another_version(client, other):
    client.put(np.zeros(3), "x").release()
    seen = other.get("x")
    seen.release()
    with client.get("x", write=True, timeout=60) as mine:
        mine[:] = 5
        mine.publish("x", replace=True)
    new = other.get("x", other_than=seen)
    assert (new.buffer_id, new.version, new[0]) == (seen.buffer_id, 2, 5)


def test_a_name_that_another_process_made_again_is_other_content(service, client, other):
    with poolbridge.connect(service.path) as writer:
        put(writer, 1)
        old = other.get("m")
    until(lambda: not client.names())
    put(client, 9)
    new = other.get("m", other_than=old, timeout=60)
    assert (new.version, content(new)) == (1, {9.0})


def test_all_content_of_another_service_is_other_content(tmp_path, client):
    put(client, 1)
    seen = client.get("m")
    again = RealService(str(tmp_path / "again.sock"))
    try:
        with poolbridge.connect(again.path, timeout=60) as writer:
            writer.create_pool("frames", max_bytes=1 << 22)
            put(writer, 2)
            new = writer.get("m", other_than=seen)
            assert (new.buffer_id, new.version, content(new)) == (seen.buffer_id, seen.version, {2.0})
            new.release()
    finally:
        again.close()


def test_a_watch_goes_on_after_an_error(service, client, other):
    models = other.watch("m", timeout=0.01)
    for n in (1, 2):
        with pytest.raises(WaitTimeoutError):
            next(models)
        put(client, n)
        assert content(next(models)) == {float(n)}

    async def main() -> None:
        async with await poolbridge.connect_async(service.path) as follower:
            models = follower.watch("m")
            assert (await anext(models)).version == 2
            waits = asyncio.ensure_future(anext(models))
            await asyncio.to_thread(until, lambda: any(one.waits_for for one in client.sessions()))
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            await asyncio.to_thread(put, client, 3)
            assert (await anext(models)).version == 3

    asyncio.run(main())


def test_who_watches_gets_what_is_there_and_then_each_newest(client, other):
    put(client, 1)
    models = other.watch("m", timeout=60)
    assert content(next(models)) == {1.0}
    put(client, 2)
    put(client, 3)
    assert content(next(models)) == {3.0}
    got: list[set[float]] = []
    thread = threading.Thread(target=lambda: got.append(content(next(models))))
    thread.start()
    until(lambda: any(one.waits for one in client.sessions()))
    put(client, 4)
    thread.join(60)
    assert got == [{4.0}]
    until(lambda: leases(client) == 0)
    with pytest.raises(WaitTimeoutError):
        next(other.watch("never", timeout=0.01))


def test_a_slow_watcher_does_not_keep_old_versions(client, other):
    put(client, 1)
    models = other.watch("m", timeout=60)
    with next(models):
        assert leases(client) == 1
    put(client, 2)
    until(lambda: (leases(client), len(client.buffers())) == (0, 1))


def test_tasks_watch_a_name(service, client):
    async def main() -> list[int | None]:
        got = []
        async with await poolbridge.connect_async(service.path) as follower:
            put(client, 1)
            async for lease in follower.watch("m", timeout=60):
                got.append(lease.version)
                await lease.release()
                if len(got) == 3:
                    return got
                task = asyncio.create_task(asyncio.to_thread(put, client, 2))
                await task
        return got

    assert asyncio.run(main()) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["several", "one"])
def test_a_copy_keeps_its_addresses_when_it_takes_newer_content(client, other, kind):
    def publish(n: float) -> None:
        client.put(model(n) if kind == "several" else model(n)["w"], "m", replace=True).release()

    publish(1)
    with other.get_copy("m") as copy:
        array = np.asarray(copy["w"] if kind == "several" else copy)
        assert (copy.version, copy.name, array[0, 0]) == (1, None, 1)
        assert not copy.refresh()
        for n in (2, 3):
            publish(n)
            assert copy.refresh()
            assert (copy.version, array[0, 0], array[1, 2]) == (n, n, n)
            until(lambda: leases(client) == 1)
        client.unpublish("m")
        assert not copy.refresh()
        publish(4)
        assert copy.refresh(timeout=60)
        assert (copy.version, array[1, 1]) == (1, 4)
        del array


def test_a_copy_takes_newer_content_with_other_metadata(client, other):
    client.put(model(1), "m", metadata={"step": "1"}).release()
    copy = other.get_copy("m")
    assert copy.metadata == {"step": "1"}
    for n, metadata in ((2, {"step": "2"}), (3, {}), (4, {"step": "4" * 9000, "state": "good"}), (5, {"": ""})):
        client.put(model(n), "m", replace=True, metadata=metadata).release()
        assert copy.refresh()
        assert (copy.metadata, content(copy)) == (metadata, {float(n)})
    copy.publish("mine")
    assert (copy.metadata, client.get("mine").metadata, content(client.get("mine"))) == ({}, {}, {5.0})


def test_a_copy_waits_for_newer_content(client, other):
    put(client, 1)
    copy = other.get_copy("m")
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(copy.refresh(timeout=60)))
    thread.start()
    until(lambda: any(one.waits for one in client.sessions()))
    put(client, 2)
    thread.join(60)
    assert (done, content(copy)) == ([True], {2.0})
    assert content(other.get("m", timeout=0)) == {2.0}
    with pytest.raises(NotFoundError):
        other.get("m", other_than=copy)


def test_a_copy_of_other_arrays_is_refused_whole(client, other):
    put(client, 1)
    copy = other.get_copy("m")
    client.put(model(2, (3, 3)), "m", replace=True).release()
    differs = r"now has w: float32\[3, 3\].*the copy has w: float32\[2, 3\].*nothing was copied"
    with pytest.raises(InvalidArgumentError, match=differs):
        copy.refresh()
    assert (content(copy), copy.version) == ({1.0}, 1)
    until(lambda: leases(client) == 1)
    put(client, 3)
    assert copy.refresh()
    assert content(copy) == {3.0}


def test_only_a_writeable_copy_takes_newer_content(client, other):
    put(client, 1)
    with pytest.raises(InvalidArgumentError, match="is no copy that can be written"):
        other.get("m").refresh()
    copy = other.get_copy("m")
    copy.publish("mine")
    put(client, 2)
    with pytest.raises(InvalidArgumentError, match="is no copy that can be written"):
        copy.refresh()
    copy.release()
    with pytest.raises(poolbridge.LeaseReleasedError):
        copy.refresh()
    with pytest.raises(NotFoundError):
        other.get_copy("nothing")
    until(lambda: leases(client) == 0)


def test_content_that_fails_is_not_copied(client, other):
    put(client, 1)
    copy = other.get_copy("m")
    lease = client.allocate({name: (a.shape, a.dtype) for name, a in model(2).items()})
    promise = lease.promise()
    lease.publish("m", replace=True)
    promise.fail("out of paper")
    with pytest.raises(poolbridge.ContentFailedError, match="out of paper"):
        copy.refresh()
    assert (content(copy), copy.version) == ({1.0}, 1)


def test_tasks_refresh_a_copy(service, client):
    async def main() -> None:
        put(client, 1)
        async with await poolbridge.connect_async(service.path) as follower, await follower.get_copy("m") as copy:
            assert not await copy.refresh()
            put(client, 2)
            assert await copy.refresh(timeout=60)
            assert (copy.version, content(copy)) == (2, {2.0})

    asyncio.run(main())


def test_content_that_is_written_in_place_without_its_name_is_another_version(client, other):
    client.put(np.zeros(3), "x").release()
    seen, copy = other.get("x"), other.get_copy("x")
    seen.release()
    with client.get("x", write=True, timeout=60) as mine:
        client.unpublish("x")
        mine[:] = 5
        with pytest.raises(InvalidArgumentError, match="not newer than version 1"):
            mine.publish("x", version=1)
        mine.publish("x")
    assert other.get("x", other_than=seen).version == 2
    assert (copy.refresh(), copy.version, copy[0]) == (True, 2, 5)


def fail(client: poolbridge.Client, why: str) -> None:
    with client.allocate({name: (a.shape, a.dtype) for name, a in model(0).items()}) as lease:
        promise = lease.promise()
        lease.publish("m", replace=True)
        promise.fail(why)


def test_who_waits_for_a_newer_version_waits_on_if_the_newest_has_failed(client, other):
    def next_of(get: Any) -> tuple[int, set[float]]:
        waits = threads.submit(get)
        until(lambda: waits.done() or any(one.waits_for for one in client.sessions()))
        put(client, 5)
        got = waits.result(60)
        return got.version, content(got)

    threads = ThreadPoolExecutor()

    fail(client, "out of ink")
    models = other.watch("m", timeout=0.01)
    with pytest.raises(poolbridge.ContentFailedError, match="out of ink"):
        next(models)
    models = other.watch("m", timeout=60)
    assert next_of(lambda: next(models)) == (2, {5.0})
    seen, copy = other.get("m"), other.get_copy("m")
    fail(client, "out of paper")
    for timeout in (0, 0.01):
        with pytest.raises(poolbridge.ContentFailedError, match="out of paper"):
            other.get("m", other_than=seen, timeout=timeout)
    assert next_of(lambda: other.get("m", other_than=seen, timeout=60)) == (4, {5.0})
    fail(client, "out of time")
    assert next_of(lambda: next(models)) == (6, {5.0})
    fail(client, "out of luck")
    assert next_of(lambda: copy.refresh(timeout=60) and copy) == (8, {5.0})
