"""Tests arenas: arrays in memory that a program divides by itself, and that it shares without a copy."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import sys
import threading
import traceback
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, strategies as st
from realservice import leases, until
from test_members import service as service  # noqa: PLC0414 - a fixture

import poolbridge
from poolbridge import ClosedError, InvalidArgumentError, PoolLimitError
from poolbridge._client import allocators as _allocators
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._session.division import ALIGN, Block, Division, Part
from poolbridge._session.flow import Ask
from poolbridge._session.grants import know_timeline
from poolbridge._session.lease_state import LeaseState
from poolbridge._session.producer import producer_of
from poolbridge._wire.messages import Fence

KIB = 1 << 10


@pytest.fixture
def requests(client, monkeypatch):
    """Return the names of the requests that `client` makes."""
    made: list[str] = []
    perform = client._perform

    def note(step: Any) -> Any:
        if isinstance(step, Ask):
            made.append(type(step.request).__name__)
        return perform(step)

    monkeypatch.setattr(client, "_perform", note)
    return made


def writeable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that stays writeable when `array` is published, to see whether others have the same memory."""
    return array.view()


def functions_of(thread: threading.Thread) -> list[str]:
    """Return the names of the functions in which a thread is."""
    frame = sys._current_frames().get(cast("int", thread.ident))
    return [one.name for one in traceback.extract_stack(frame)] if frame is not None else []


def reserved(client: poolbridge.Client) -> int:
    return client.stats().pools[0].reserved


def test_arrays_of_an_arena_take_no_requests(client, requests):
    with client.arena("64KiB") as arena:
        before = list(requests)
        kept = [arena.full(1000, n, "uint8") for n in range(20)]
        for _ in range(1000):
            arena.empty((10, 10))
        assert requests == before
        assert [int(array.sum()) for array in kept] == [1000 * n for n in range(20)]
        assert not any(array.ctypes.data % ALIGN for array in kept)
        assert (arena.zeros(3) == 0).all()
        assert (arena.nbytes, arena.used_nbytes, arena.pool) == (64 * KIB, 20 * 1024, "frames")
        assert repr(arena) == "<poolbridge.Arena in pool 'frames', 20480 of 65536 bytes in use>"
        assert "<td>65,536</td>" in arena._repr_html_()


@pytest.mark.parametrize("kind", ["arena", "client"])
def test_put_shares_an_array_of_an_arena_without_a_copy(client, other, kind):
    maker = client.arena("64KiB") if kind == "arena" else client
    array = maker.full((3, 4), 1.5)
    again = writeable(array)
    before = reserved(client)
    lease = client.put(array, "whole")
    part = client.put(array[1:], "part", replace=True)
    found, found_part = other.get_array("whole"), other.get_array("part")
    assert (found == 1.5).all()
    again[1] = 7
    assert (found[1] == 7).all()
    assert (found_part == again[1:]).all()
    assert (found_part.shape, found.shape) == ((2, 4), (3, 4))
    assert reserved(client) == before
    assert (lease.nbytes, part.nbytes) == (48, 32)
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_channel_shares_arrays_of_an_arena_without_a_copy(client, other):
    channel = client.create_channel("c", capacity=4, mode="queue")
    frames = other.subscribe("c")
    arena = client.arena("1MiB")
    arrays = [arena.full(1 << 14, n, "int32") for n in range(3)]
    again = [writeable(array) for array in arrays]
    for array in arrays:
        channel.publish(array)
    taken = [frames.receive(60) for _ in arrays]
    for n, (frame, view) in enumerate(zip(taken, again, strict=True)):
        assert (np.asarray(frame) == n).all()
        view[:] = 50 + n
        assert (np.asarray(frame) == 50 + n).all()
    for frame in taken:
        frame.release()
    del arrays, array, again, view
    until(lambda: leases(client) == 1)
    small = arena.full(100, 3, "int32")
    channel.publish(small)
    assert small.flags.writeable, "a small one is copied"


def test_a_range_lives_until_its_last_reader_is_done_also_when_the_array_is_gone(client, other):
    arena = client.arena(4 * KIB)
    array = arena.full(512, 7, "uint8")
    client.put(array, "x").release()
    lease = other.get("x")
    client.unpublish("x")
    del array
    gc.collect()
    assert arena.used_nbytes == 512
    rest = arena.full(4 * KIB - 512, 1, "uint8")
    further = arena.empty(512, "uint8")
    assert arena.nbytes == 8 * KIB, "a reader has the first range"
    assert (np.asarray(lease) == 7).all()
    lease.release()
    del rest, further
    until(lambda: leases(client) == 1)
    assert arena.empty(4 * KIB, "uint8").size == arena.nbytes, "it has come back"


def test_frames_of_an_arena_seldom_take_a_request_once_their_memory_came_back(client, other, requests):
    channel = client.create_channel("c", capacity=4)
    arena = client.arena("1MiB")
    subscription = other.subscribe("c")
    held: list[Any] = []
    for number in range(600):
        if number == 100:
            requests.clear()
        if number == 400:
            assert len(requests) < 100, "for 300 frames"
        size = 64 * KIB if number < 400 else 64 * KIB + 512 * random.randrange(20)  # then a range often is another one
        array = arena.full(size // 4, number, "u4")
        if number % 50:
            channel.publish(array)
        else:
            for _ in range(2):  # the second time while a reader has the first frame
                channel.publish(array)
                held.append((number, subscription.receive(timeout=10)))
        del array
        if number % 50:
            frame = subscription.receive(timeout=10)
            held.insert(random.randrange(len(held) + 1), (number, frame))
        while len(held) > 3:
            written, frame = held.pop()
            content = np.asarray(frame)
            assert (content == written).all()
            del content
            frame.release()
    for written, frame in held:
        assert (np.asarray(frame) == written).all()
        frame.release()


def test_memory_of_an_array_that_was_published_twice_is_not_used_again_while_a_reader_has_it(client, other):
    channel = client.create_channel("c", capacity=4)
    arena = client.arena("3MiB")
    subscription = other.subscribe("c")
    array, *others = [arena.full(64 * KIB, n, "u1") for n in range(6)]
    for one in [array, *others]:  # then the first frame has come back
        channel.publish(one)
        subscription.receive(timeout=10).release()
    channel.publish(array)
    frame = subscription.receive(timeout=10)
    content = np.asarray(frame)
    del array
    assert (arena.full(64 * KIB, 7, "u1") == 7).all()
    assert (content == 0).all()
    del content
    frame.release()


def test_threads_that_publish_one_array_in_two_channels_have_a_range_each(client, other, monkeypatch):
    arena = client.arena("1MiB")
    channels = [client.create_channel(f"c{n}", capacity=4, mode="queue") for n in range(2)]
    readers = [other.subscribe(f"c{n}") for n in range(2)]
    array = arena.full(256 * KIB, 7, "u1")
    ready, go = threading.Event(), threading.Event()

    def wait(*given: Any) -> Any:
        found = yield from producer_of(*given)
        if threading.current_thread() is first:
            ready.set()
            go.wait(60)
        return found

    monkeypatch.setattr("poolbridge._client.channel_operations.producer_of", wait)
    first = threading.Thread(target=channels[0].publish, args=(array,))
    first.start()
    ready.wait(60)
    channels[1].publish(array)
    go.set()
    first.join()
    readers[0].receive(timeout=10).release()
    frame = readers[1].receive(timeout=10)
    content = np.asarray(frame)
    del array
    for _ in range(4):
        assert (arena.full(256 * KIB, 8, "u1") == 8).all()
    assert (content == 7).all()
    del content
    frame.release()


def test_memory_whose_readers_were_late_goes_to_others_and_a_dropped_arena_leaves_nothing(client, other, monkeypatch):
    session, limit = client._session, client.pools()[0].max_bytes
    late, fence = [True], Fence(99, 0, 1)
    reached = session.returns.reached
    monkeypatch.setattr(session.returns, "reached", lambda one: not late[0] if one is fence else reached(one))
    arena = client.arena(KIB)
    division = ref(arena._division)
    first, array = arena.empty(KIB, "u1"), arena.full(limit // 2, 1, "u1")
    block = arena._division.blocks[1]
    client.put(array, "x").release()
    client.unpublish("x")
    arena._division.returned(block, tuple(block.ranges), (fence,))
    del array, block
    with pytest.raises(PoolLimitError):
        other.allocate(limit // 2, "u1", timeout=0.3)
    late[0] = False
    other.allocate(limit // 2, "u1", timeout=10).release()
    client.put(first, "y").release()
    with pytest.raises(PoolLimitError):  # so that the client asks the service
        other.allocate(limit, "u1", timeout=0.3)
    client.unpublish("y")
    del first
    gc.collect()
    gc.disable()
    try:
        del arena
        until(lambda: division() is None)
    finally:
        gc.enable()


def test_an_interrupt_while_an_arena_grows_does_no_harm(client, monkeypatch):
    arena = client.arena(KIB)
    first = arena.empty(KIB, "u1")
    take = Block.take

    def interrupted(block: Block, *given: Any) -> Any:
        take(block, *given)
        raise KeyboardInterrupt

    grow = Division.add

    def add(*given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Block, "take", interrupted)
            return grow(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Division, "add", add)
        arena.empty(KIB // 2, "u1")
    assert [arena.full(KIB // 2, n, "u1")[0] for n in range(3)] == [0, 1, 2]
    assert first.size == KIB


def test_an_arena_uses_the_memory_of_ranges_again_that_came_back(client, other, requests):
    arena = client.arena(2 * KIB)
    for n in range(10):
        array = arena.full(2 * KIB, n, "uint8")
        client.put(array, "x", replace=True).release()
        lease = other.get("x")
        assert (np.asarray(lease) == n).all()
        lease.release()
        other.stats()  # when this is answered, the lease has ended
        client.unpublish("x")
        del array
        until(lambda: leases(client) == 1)
    assert arena.nbytes == 2 * KIB
    assert requests.count("Returned") == 9


def test_further_blocks_come_and_go(client):
    arena = client.arena(4 * KIB)
    arrays = [arena.full(KIB, n, "uint8") for n in range(16)]
    assert arena.nbytes == 16 * KIB
    large = arena.empty(100 * KIB, "uint8")
    assert arena.nbytes == 116 * KIB
    del large
    assert arena.nbytes == 16 * KIB
    assert [set(array) for array in arrays] == [{n} for n in range(16)]
    del arrays
    assert (arena.nbytes, arena.used_nbytes, leases(client)) == (4 * KIB, 0, 1)


def test_a_closed_arena_goes_back_with_its_last_array(client):
    with client.arena(KIB) as arena:
        array = arena.zeros(10)
        view = array[2:4]
    with pytest.raises(ClosedError, match="arena was closed"):
        arena.empty(1)
    assert leases(client) == 1
    del array
    assert leases(client) == 1
    del view
    assert leases(client) == 0
    client.arena(KIB)
    assert leases(client) == 0, "nothing refers to it"


def test_a_closed_arena_goes_back_though_its_arrays_were_shared(client, other):
    with client.arena(KIB) as arena:
        first, second = arena.full(100, 1, "uint8"), arena.full(100, 2, "uint8")
        client.put(first, "first").release()
    client.put(second, "second").release()
    lease = other.get("second")
    client.unpublish("first")
    client.unpublish("second")
    del first, second
    gc.collect()
    assert (leases(client), arena.nbytes) == (1, 0), "only the reader's lease is left"
    assert (np.asarray(lease) == 2).all()
    lease.release()
    until(lambda: client.stats().pools[0].leased == 0)


def test_memory_whose_last_reader_still_works_on_a_gpu_is_used_again_later(client, other):
    arena = client.arena(4 * KIB)
    array = arena.full(4 * KIB, 7, "uint8")
    client.put(array, "x").release()
    del array
    lease = other.get("x")
    other._run(know_timeline(other._session, 0))
    own, state = other._session.timelines.own, lease._lease_state
    state.released = True
    other._session.release(state, (Fence(own.id, 0, 5),), failed=False)
    client.unpublish("x")
    until(lambda: leases(client) == 1)
    further = arena.empty(4 * KIB, "uint8")
    assert arena.nbytes == 8 * KIB, "the reader's work is under way"
    own.page.store(0, 5)
    again = arena.empty(4 * KIB, "uint8")
    assert arena.nbytes == 8 * KIB
    del further, again


def test_an_arena_does_not_outlive_its_client_but_its_arrays_do(service):
    client = poolbridge.connect(service.path, timeout=60)
    client.create_pool("frames", max_bytes="1MiB")
    with poolbridge.connect(service.path) as other:
        arena = client.arena(KIB)
        array = arena.full(10, 3.0)
        client.close()
        with pytest.raises(ClosedError):
            arena.empty(1)
        assert (array == 3).all()
        assert leases(other) == 1
        del array
        until(lambda: leases(other) == 0)


def test_other_arrays_of_an_arena_are_copied(client, other):
    channel = client.create_channel("c", capacity=4)
    arena = client.arena("64KiB")
    array = arena.full((4, 4), 1, "int32")
    for given_array in (array[:, 1:], array.T[1:], array[::-1]):
        client.put(given_array, "x", replace=True)
        assert np.asarray(other.get("x")).tolist() == given_array.tolist()
        channel.publish(given_array)
    client.put({"a": array}, "several")
    assert (other.get_dict("several")["a"] == 1).all()
    assert array.flags.writeable
    client.create_pool("q", max_bytes="1MiB")
    assert client.put(array, "y", pool="q").pool == "q"
    with pytest.raises(InvalidArgumentError):
        client.put(array, "z", metadata={"a": "b"})


def test_the_same_array_is_shared_several_times(client, other):
    arena = client.arena("64KiB")
    array = arena.full(100, 5, "uint8")
    for name in "abc":
        client.put(array, name)
    assert all((other.get_array(name) == 5).all() for name in "abc")
    assert arena.nbytes == 64 * KIB


def test_an_arena_waits_for_readers_when_the_pool_is_full(client, other):
    arena = client.arena("4MiB")
    array = arena.zeros(4 << 20, "uint8")
    client.put(array, "x", keep="used").release()
    del array
    gc.collect()
    arena.zeros(4 << 20, "uint8", timeout=60)  # nobody has read it
    array = arena.zeros(4 << 20, "uint8")
    mine = client.put(array, "x")
    lease = other.get("x")
    mine.release()
    client.unpublish("x")
    del array
    with pytest.raises(PoolLimitError):
        arena.zeros(4 << 20, "uint8")
    made: list[Any] = []
    waits = threading.Thread(target=lambda: made.append(arena.full(4 << 20, 9, "uint8", timeout=60)))
    waits.start()
    lease.release()
    waits.join()
    assert made[0][-1] == 9


def test_several_threads_allocate_and_free(client):
    arena = client.arena("256KiB")

    def work(number: int) -> None:
        for step in range(200):
            array = arena.full(100 + 300 * (step % 7), number, "uint8")
            assert set(array) == {number}
            del array

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (arena.used_nbytes, arena.nbytes) == (0, 256 * KIB)


def test_memory_is_freed_once_though_a_signal_handler_ends_the_finaliser(client, monkeypatch):
    arena = client.arena(4 * KIB)
    other, array = arena.full(512, 1, "uint8"), arena.full(512, 2, "uint8")
    array.base.__del__()  # as the native module does after a signal handler has raised
    del array
    assert arena.used_nbytes == 512
    arrays = [arena.full(512, 3, "uint8") for _ in range(7)]
    assert len({one.ctypes.data for one in (other, *arrays)}) == 8
    assert (other == 1).all()
    del arrays

    def make(*arguments):  # a handler raises when the part is made
        Part(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("poolbridge._session.division.Part", make)
    with pytest.raises(KeyboardInterrupt):
        arena.empty(512, "uint8")
    assert arena.used_nbytes == 512


def test_a_forked_child_frees_nothing(client):
    arena = client.arena("64KiB")
    array = arena.full(10, 3.0)
    child = os.fork()
    if child == 0:
        del array
        gc.collect()
        os._exit(arena.used_nbytes != ALIGN)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 3).all()


def test_what_a_killed_program_shared_stays_and_the_rest_goes(service, client, other):
    started, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with poolbridge.connect(service.path) as own:
            own.open_pool("frames")
            arena = own.arena("64KiB")
            own.put(arena.full(10, 3, "uint8"), "kept", keep=True)
            own.put(arena.full(10, 4, "uint8"), "lost")
            os.write(started[1], b"x")
            os.read(done[0], 1)
    os.read(started[0], 1)
    lease = other.get("lost")
    os.kill(child, 9)
    os.waitpid(child, 0)
    until(lambda: [one.name for one in client.names()] == ["kept"])
    assert (np.asarray(lease) == 4).all()
    assert client.stats().pools[0].leased == 64 * KIB
    lease.release()
    assert (other.get_array("kept") == 3).all()
    client.unpublish("kept")
    until(lambda: client.stats().pools[0].leased == 0)
    for fd in (*started, *done):
        os.close(fd)


def test_bad_arguments_of_arenas_are_refused(client):
    arena = client.arena(KIB)
    for shape, dtype in (((-1,), "uint8"), (3, "bfloat16"), (3, object), ((1 << 40, 1 << 40), "uint8")):
        with pytest.raises(InvalidArgumentError):
            arena.empty(shape, dtype)
    for value in ("x", [1, 2], object()):
        with pytest.raises(InvalidArgumentError, match="cannot fill"):
            arena.full(3, value)
    with pytest.raises(InvalidArgumentError, match="nbytes"):
        client.arena(0)
    with pytest.raises(PoolLimitError):
        client.arena("8MiB")
    assert arena.used_nbytes == 0


def test_trim_gives_the_arena_of_a_client_back(client):
    array = client.empty(10)
    assert leases(client) == 1
    client.trim()
    assert leases(client) == 1
    del array
    assert leases(client) == 1
    client.trim()
    until(lambda: leases(client) == 0)
    client.zeros(10)


def test_trim_returns_when_the_free_memory_is_unmapped(client):
    for _ in range(50):
        client.allocate(10).release()
        client.trim()
        assert reserved(client) == 0


def test_trim_waits_while_another_thread_unmaps(client):
    client.allocate(10).release()
    mapped = len(MAPPINGS)
    left: list[int] = []

    def trim() -> None:
        client.trim()
        left.append(len(MAPPINGS))

    trimming = threading.Thread(target=trim)
    with MAPPINGS._lock:
        trimming.start()
        until(lambda: left or "settle" in functions_of(trimming))
    trimming.join()
    assert left == [mapped - 1]


def test_memory_that_came_back_to_an_arena_goes_to_others_who_want_it(service, client, other):
    pool = client.pools()[0]
    array = client.zeros(KIB, "u1")
    client.put(array, "x").release()
    got = other.get_array("x")
    client.unpublish("x")
    del array
    with pytest.raises(PoolLimitError):
        other.allocate(pool.max_bytes, "u1", timeout=0)
    assert got.sum() == 0
    del got
    other.allocate(pool.max_bytes, "u1", timeout=10).release()

    arena = client.arena(KIB, timeout=10)  # the service may hear of the release after it hears of this request
    kept, more = arena.zeros(KIB, "u1"), arena.zeros(pool.max_bytes // 2, "u1")
    client.put(more[:10], "y").release()
    client.unpublish("y")
    del kept, more
    other.allocate(pool.max_bytes // 2, "u1", timeout=10).release()
    assert arena.nbytes == KIB

    async def main() -> None:
        async with await poolbridge.connect_async(service.path) as own:
            await own.open_pool("frames")
            array = await own.zeros(KIB, "u1")
            await (await own.put(array, "z")).release()
            await own.unpublish("z")
            del array
            arena.close()
            await asyncio.to_thread(lambda: other.allocate(pool.max_bytes, "u1", timeout=10).release())

    asyncio.run(main())


def test_asyncio_has_arenas_too(service, client, other):
    async def main() -> None:
        async with await poolbridge.connect_async(service.path) as own:
            await own.open_pool("frames")
            async with await own.arena(KIB) as arena:
                array = await arena.full(4, 2)
                lease = await own.put(array, "x")
                assert (other.get_array("x") == 2).all()
                await lease.release()
            assert ((await own.full(2, 5)).sum(), (await own.zeros(2)).sum()) == (10, 0)
            assert (await own.empty(3)).shape == (3,)
            with pytest.raises(ClosedError):
                await arena.zeros(1)

    asyncio.run(main())


def test_an_array_that_is_shared_many_times_does_not_fill_the_list_of_ranges(client):
    arena = client.arena(64 * KIB)
    array = arena.zeros(KIB, "u1")
    for _ in range(100):
        client.put(array, "x", replace=True).release()
    assert sum(len(block.ranges) for block in arena._division.blocks) < 20


@given(st.lists(st.integers(1, 20), max_size=60), st.integers())
def test_memory_for_pytorch_never_overlaps_and_is_whole_again_when_all_is_freed(sizes, seed):
    region, failing, chosen = _allocators._region(), False, random.Random(seed)
    synchronize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda stream: failing)
    callback = ctypes.cast(synchronize, ctypes.c_void_p)
    assert region.poolbridge_torch_alloc(1, 63, None) is None, "there is no region"
    assert region.poolbridge_torch_begin(64, ALIGN, 64 * ALIGN, callback) == -1
    assert region.poolbridge_torch_begin(63, ALIGN, 64 * ALIGN, callback) == 0
    assert region.poolbridge_torch_begin(63, ALIGN, 64 * ALIGN, callback) == -2
    parts: list[tuple[int, int]] = []
    for size in sizes:
        at = region.poolbridge_torch_alloc(size * ALIGN - 1, 63, None)
        if at is None:
            at, nbytes = parts.pop(chosen.randrange(len(parts)))
            region.poolbridge_torch_free(at, nbytes, 63, None)
            continue
        assert at + size * ALIGN <= 65 * ALIGN
        assert all(at >= other + n or at + size * ALIGN <= other for other, n in parts)
        parts.append((at, size * ALIGN))
    chosen.shuffle(parts)
    for at, nbytes in parts:
        assert not region.poolbridge_torch_end(63)
        failing = True
        region.poolbridge_torch_free(at, nbytes, 63, None)
        assert not region.poolbridge_torch_end(63), "the driver did not say that the work is done"
        failing = False
        region.poolbridge_torch_free(at, nbytes, 63, None)
    assert region.poolbridge_torch_alloc(2**64 - 1, 63, None) is None
    whole = region.poolbridge_torch_alloc(64 * ALIGN, 63, None)
    assert whole == ALIGN
    region.poolbridge_torch_free(whole, 64 * ALIGN, 63, None)
    assert region.poolbridge_torch_end(63)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), max_size=60))
def test_parts_never_overlap_and_free_parts_are_joined(steps):
    block = Block(cast("LeaseState", SimpleNamespace(grant=SimpleNamespace(nbytes=64 * ALIGN))))
    parts: list[tuple[int, int]] = []

    def take(size: int) -> int | None:
        back: list[Any] = []
        return back[0][1] if block.take(size, None, back) else None

    def put_back(offset: int, size: int) -> None:
        block.put_back([(ref(block), offset, size, None)])

    for size, freed in steps:
        offset = take(size * ALIGN)
        if offset is None:
            block.join()
            offset = take(size * ALIGN)
        if offset is None:
            free = sorted(block._free)
            assert all(room < size * ALIGN for _, room in free)
            assert all(a + n < b for (a, n), (b, _) in pairwise(free)), "neighbours are joined"
        else:
            assert offset + size * ALIGN <= block.size
            assert all(offset >= at + n or offset + size * ALIGN <= at for at, n in parts)
            parts.append((offset, size * ALIGN))
        for _ in range(min(freed, len(parts))):
            put_back(*parts.pop(freed % len(parts)))
        assert block.used == sum(n for _, n in parts)
    for part in parts:
        put_back(*part)
    assert take(block.size) == 0
