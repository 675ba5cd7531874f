"""Tests the work that a session does in threads of its own, because the work may wait for a device."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakeservice import Service

import poolbridge
from poolbridge._session import background
from poolbridge._wire import messages as m


def refuse(*_arguments: object) -> None:
    raise RuntimeError("can't start new thread")


def test_work_that_waits_holds_up_neither_other_work_nor_notices(service: Service, client: poolbridge.Client) -> None:
    lease = client.allocate(4)
    block = lease._lease_state.grant.block
    lease.release()
    client.stats()
    may_end, ended, ran = threading.Event(), threading.Event(), threading.Event()

    def waits() -> None:
        may_end.wait()
        ended.set()

    client._session.later(waits)
    service.connections[0].recall(block)
    service.wait(lambda: service.seen(m.Dropped) == [m.Dropped(blocks=(block,))])
    client._session.later(ran.set)
    assert ran.wait(60)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)


def test_work_of_an_asyncio_client_needs_no_thread_of_the_program(service: Service) -> None:
    async def main() -> None:
        loop, may_end, ran = asyncio.get_running_loop(), threading.Event(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            waiting = loop.run_in_executor(None, may_end.wait)
            client._session.later(ran.set)
            assert ran.wait(60)
            may_end.set()
            await waiting

    asyncio.run(main())


def test_a_bounded_number_of_threads_does_the_work(client: poolbridge.Client) -> None:
    begun: set[int] = set()
    may_end, done = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.add(threading.get_ident())
        may_end.wait()
        done.release()

    for _ in range(100):
        client._session.later(work)
    may_end.set()
    assert all(done.acquire(timeout=60) for _ in range(100))
    assert len(begun) <= background._MOST_THREADS


def test_work_that_fails_leaves_the_other_work_to_be_done(
    client: poolbridge.Client, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError

    for _ in range(2 * background._MOST_THREADS):
        client._session.later(fail)
    client._session.later(ran.set)
    assert ran.wait(60)
    assert "ZeroDivisionError" in caplog.text


def test_work_is_done_where_no_thread_can_start(client: poolbridge.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = threading.Event()
    monkeypatch.setattr(background, "start_new_thread", refuse)
    client._session.later(ran.set)
    assert ran.wait(60)


def test_a_thread_of_the_program_does_no_work_of_a_session_that_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with poolbridge.connect(service.path, timeout=60) as client:
        pass
    done, count = threading.Semaphore(0), 2 * background._MOST_THREADS
    with monkeypatch.context() as without_threads:
        without_threads.setattr(background, "start_new_thread", refuse)
        for _ in range(count):
            client._session.later(done.release)
    assert not done.acquire(blocking=False), "a finaliser's thread may hold the lock for which the work waits"
    client._session.later(done.release)
    assert all(done.acquire(timeout=60) for _ in range(count + 1))


def test_work_of_an_asyncio_client_is_done_where_no_thread_can_start(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            ran = threading.Event()
            await asyncio.to_thread(int)  # so that the executor has a thread
            monkeypatch.setattr(background, "start_new_thread", refuse)
            client._session.later(ran.set)
            assert await asyncio.to_thread(ran.wait, 60)

    asyncio.run(main())
