"""Tests `put` and `get_array`, leases that NumPy reads, lists of pools, and clients in other processes."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from fakeservice import Service
from realservice import leases, until

import poolbridge
from poolbridge._client import makers as _makers

NATIVE = importlib.util.find_spec("poolbridge._native") is not None

# Arrays put and got


@pytest.mark.parametrize(
    "given",
    [
        np.arange(6, dtype="int16").reshape(2, 3),
        np.float64(2.5),
        np.empty((0, 3)),
        np.arange(12)[::-2],
        bytearray(b"abc"),
    ],
    ids=["matrix", "scalar", "empty", "strided", "bytes"],
)
def test_what_is_put_under_a_name_is_got_by_it(client, other, given):
    lease = client.put(given, "it")
    assert lease.name == "it"
    assert lease.readonly
    got = other.get_array("it")
    np.testing.assert_array_equal(got, np.asarray(given))
    assert got.dtype == np.asarray(given).dtype
    assert not (got.size and got.flags.writeable)


def test_the_name_keeps_what_was_put(client, other):
    client.put(np.arange(3), "it")
    assert other.get_array("it").tolist() == [0, 1, 2]


def test_the_array_keeps_its_lease(service, client, other):
    with client.put(np.arange(3), "it"):
        pass
    array = other.get_array("it")
    client.unpublish("it")
    client.put(np.arange(3) + 7, "it")
    assert array.tolist() == [0, 1, 2]


def test_an_array_may_be_got_to_be_written(client, other):
    client.put(np.zeros(3), "it").release()
    until(lambda: leases(client) == 0)
    array = other.get_array("it", write=True)
    array[:] = 5
    del array
    until(lambda: leases(client) == 0)
    assert client.get_array("it").tolist() == [5, 5, 5]


def test_a_lease_is_put_as_an_array(client):
    lease = client.allocate(3, "int32")
    lease[:] = 4
    client.put(lease, "copy")
    lease[0] = 5
    assert client.get_array("copy").tolist() == [4, 4, 4]


def test_what_was_put_is_replaced_when_asked_for(client):
    client.put(np.arange(3), "it")
    with pytest.raises(poolbridge.AlreadyExistsError):
        client.put(np.arange(4), "it")
    client.put(np.arange(4), "it", replace=True)
    assert client.get_array("it").shape == (4,)


def test_a_put_that_fails_leaves_no_memory_taken(client):
    client.put(np.arange(3), "it")
    before = client.stats().leases
    with pytest.raises(poolbridge.AlreadyExistsError):
        client.put(np.arange(3), "it")
    assert client.stats().leases == before
    with pytest.raises(poolbridge.InvalidArgumentError, match="is no array: .*give `put` or `publish` a dict"):
        client.put([1, 2], "list")
    with pytest.raises(poolbridge.PoolLimitError):
        client.put(np.empty(1 << 23, np.uint8), "large")
    with pytest.raises(poolbridge.InvalidArgumentError, match="has 0 bytes"):
        client.put(np.arange(3), "")
    assert client.stats().leases == before


def test_bfloat16_comes_to_numpy_as_float32(client):
    lease = client.allocate(2, "bfloat16")
    lease.copy_from(np.array([1.5, -2.0]))
    lease.publish("it")
    got = client.get_array("it")
    assert got.dtype == np.float32
    assert got.tolist() == [1.5, -2.0]


def test_a_library_that_is_none_or_missing_is_named(client, monkeypatch):
    client.put(np.arange(3), "it")
    with pytest.raises(poolbridge.InvalidArgumentError, match="'pandas' is not known: .* numpy, cupy, torch, jax"):
        client.get_array("it", library="pandas")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(poolbridge.UnavailableError, match="pip install torch"):
        client.get_array("it", library="torch")


def test_a_fault_within_a_library_is_its_own(client, monkeypatch):
    def broken(lease):
        raise ModuleNotFoundError("No module named 'libcudart'", name="libcudart")

    monkeypatch.setitem(_makers._MAKERS, "torch", broken)
    client.put(np.arange(3), "it")
    with pytest.raises(ModuleNotFoundError, match="libcudart"):
        client.get_array("it", library="torch")


GETS_ITS_ARRAY_TWICE = """
import sys
import numpy, poolbridge

with poolbridge.connect(sys.argv[1]) as client:
    one, two = (client.get_array("it", library=sys.argv[2]) for _ in range(2))
    for array in one, two:
        print(numpy.asarray(array).tolist(), numpy.from_dlpack(array).ctypes.data == numpy.from_dlpack(one).ctypes.data)
"""


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries_get_the_memory_in_place(service, client, library):
    """Another process loads the library: a library keeps files open, and poolbridge warns each process that has one."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install {library}")
    client.put(np.arange(3, dtype="float32"), "it")
    program = [sys.executable, "-c", GETS_ITS_ARRAY_TWICE, service.path, library]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines() == ["[0.0, 1.0, 2.0] True"] * 2, done.stderr


def test_asyncio_puts_and_gets_as_well(service):
    async def main():
        async with await poolbridge.connect_async(service.path) as client:
            await client.create_pool("p", max_bytes="1MiB")
            lease = await client.put(np.arange(3), "it")
            array = await client.get_array("it")
            assert lease.readonly
            assert [pool.name for pool in await client.pools()] == ["p"]
            with pytest.raises(TypeError, match="send its path"):
                pickle.dumps(client)
            return array.tolist()

    assert asyncio.run(main()) == [0, 1, 2]


def test_pools_are_listed(client):
    made = client.create_pool("more", kind="host", max_bytes="1MiB")
    assert [pool.name for pool in client.pools()] == ["frames", "more"]
    assert made in client.pools()


# The tests below index leases like arrays of NumPy.


def test_a_lease_has_a_length_and_elements(client):
    lease = client.allocate((2, 3), "int32")
    lease[...] = np.arange(6).reshape(2, 3)
    assert len(lease) == 2
    assert lease[1, 2] == 5
    assert lease[1].tolist() == [3, 4, 5]
    assert bytes(lease) == np.arange(6, dtype="int32").tobytes()
    assert lease.memoryview().shape == (2, 3)
    lease[0, 0] = 7
    assert np.asarray(lease)[0, 0] == 7


def test_numpy_is_given_a_lease_s_own_array_and_no_bare_bytes(client):
    lease = client.allocate(3, "int32")
    array = np.asarray(lease)
    for exports in (lease, lease.view()):
        with pytest.raises(TypeError, match="call its method memoryview" if NATIVE else "bytes-like"):
            memoryview(exports)
    lease.publish("it")
    assert not array.flags.writeable


def test_what_was_indexed_keeps_the_lease(client):
    part = client.put(np.arange(6), "it")[2:4]
    client.unpublish("it")
    client.put(np.zeros(6, int), "next")
    assert part.tolist() == [2, 3]


def test_a_read_lease_is_not_written_by_an_index(client):
    lease = client.put(np.arange(6), "it")
    with pytest.raises(ValueError, match="read-only"):
        lease[0] = 1


def test_every_lease_is_true_and_a_scalar_has_no_length(client):
    scalar, empty = client.allocate((), "int32"), client.allocate((0, 3), "int32")
    assert scalar
    assert empty
    assert len(empty) == 0
    with pytest.raises(TypeError, match="no length"):
        len(scalar)


def test_a_lease_is_no_sequence_to_go_through(client):
    lease = client.allocate(3, "int32")
    with pytest.raises(TypeError):
        iter(lease)
    with pytest.raises(TypeError):
        _ = 1 in lease


def test_a_released_lease_has_no_elements(client):
    lease = client.allocate(3, "int32")
    lease.release()
    with pytest.raises(poolbridge.LeaseReleasedError):
        _ = lease[0]
    with pytest.raises(poolbridge.LeaseReleasedError):
        bytes(lease)


def test_a_list_that_contains_itself_is_no_array(client):
    endless: list[object] = []
    endless.extend([endless, endless])
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    lease = client.allocate(3, "int32")
    for given in (endless, deep):
        for use in (lambda: lease.copy_from(given), lambda: client.put(given, "x")):  # noqa: B023
            with pytest.raises(poolbridge.InvalidArgumentError, match="contains itself"):
                use()


# Clients in other processes


def test_an_unpickled_client_is_connected_to_the_same_service(client):
    client.put(np.arange(3), "it")
    with pickle.loads(pickle.dumps(client)) as again:
        assert again.epoch == client.epoch
        assert again.timeout == client.timeout
        assert again.get_array("it").tolist() == [0, 1, 2]
        assert again.allocate(2).pool == "frames"


SPAWNER = """
import multiprocessing, sys
import poolbridge

def work(client):
    with client:
        client.put(client.get_array("it") * 2, "doubled", keep=True)

if __name__ == "__main__":
    with poolbridge.connect(sys.argv[1]) as client:
        client.open_pool("frames")
        process = multiprocessing.get_context("spawn").Process(target=work, args=(client,))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


def test_a_client_may_be_given_to_a_process_that_is_spawned(service, client, tmp_path):
    client.put(np.arange(3), "it")
    program = tmp_path / "spawner.py"
    program.write_text(SPAWNER)
    subprocess.run([sys.executable, str(program), service.path], check=True, timeout=120)
    assert client.get_array("doubled").tolist() == [0, 2, 4]


def test_a_client_of_a_pool_that_is_gone_says_so_where_it_is_unpickled(client):
    text = pickle.dumps(client)
    client.destroy_pool("frames")
    with pytest.raises(poolbridge.NotFoundError):
        pickle.loads(text)


def test_a_closed_client_cannot_be_pickled(service):
    closed = poolbridge.connect(service.path)
    closed.close()
    with pytest.raises(poolbridge.ClientClosedError):
        pickle.dumps(closed)


def test_a_service_that_was_restarted_meanwhile_is_told_of(tmp_path, caplog):
    path = str(tmp_path / "s.sock")
    first = Service(path)
    with poolbridge.connect(path) as client:
        text = pickle.dumps(client)
    first.close()
    second = Service(path)
    try:
        with caplog.at_level(logging.WARNING, "poolbridge"), pickle.loads(text):
            pass
    finally:
        second.close()
    assert "another one than when the client was pickled" in caplog.text


def test_a_forked_child_is_told_that_the_client_is_its_parents(client):
    if (child := os.fork()) == 0:
        try:
            client.pools()
        except poolbridge.ForkError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_nobody_who_does_not_listen_hears_of_it():
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("poolbridge").handlers)


class Unshowable(str):
    __slots__ = ()

    def __repr__(self):
        raise RuntimeError("no")


class Endless(str):
    __slots__ = ()

    def __repr__(self):
        return "x" * 10_000_000


@pytest.mark.parametrize(
    ("given", "text"), [(Unshowable, "<Unshowable, whose repr raises RuntimeError>"), (Endless, "x… (10,000,000 c")]
)
def test_the_repr_of_an_argument_hides_no_error(client, given, text):
    for wrong in (
        lambda: client.create_pool("p", max_bytes=given("much")),
        lambda: client.get(given("a/b" * 300)),
        lambda: client.allocate(8, given("no type")),
        lambda: client.put("n", np.zeros(1), pool=given("")),
    ):
        with pytest.raises(poolbridge.InvalidArgumentError) as found:
            wrong()
        assert text in str(found.value)
        assert len(str(found.value)) < 500


# What people see of counts, clients and channels


def test_print_shows_counts_one_a_line_and_pools_as_a_table(client):
    client.create_pool("second", max_bytes=1 << 20)
    kept = client.allocate(1000, "uint8")
    text = str(client.stats())
    lines = text.splitlines()
    assert [line.split() for line in lines[:2]] == [["sessions", "1"], ["leases", "1"]]
    head, first, second = lines[lines.index("pools:") + 1 :]
    assert "device_ordinal" not in head, "a column without a value is left out"
    assert [row.split()[head.split().index("pool.name")] for row in (first, second)] == ["frames", "second"]
    assert head.index("pool.max_bytes") == first.index("4,194,304") == second.index("1,048,576")
    assert str(client.session_stats()).splitlines()[-1] == "channels              none"
    assert repr(client.stats()).startswith("ServiceStats(sessions=1, ")
    kept.release()


# The default pool


def test_the_only_pool_is_the_default_pool(service, client):
    async def run():
        async with await poolbridge.connect_async(service.path) as third:
            return (await third.put(np.arange(2), "b")).pool

    with poolbridge.connect(service.path) as other:
        assert other.allocate(4).pool == "frames"
    assert asyncio.run(run()) == "frames"


def test_without_a_default_pool_the_error_names_the_pools(service, client):
    client.create_pool("second", max_bytes=1 << 20)
    with poolbridge.connect(service.path) as other:
        with pytest.raises(poolbridge.InvalidArgumentError, match=r"open one of 'frames', 'second', or pass pool="):
            other.allocate(4)
        assert other.allocate(4, pool="second").pool == "second"
        assert other.allocate(4).pool == "second", "the first pool that the client has opened"
        client.destroy_pool("frames")
        client.destroy_pool("second")
    with (
        poolbridge.connect(service.path) as other,
        pytest.raises(poolbridge.InvalidArgumentError, match=r"there is no pool: create one \(create_pool\)"),
    ):
        other.put(np.arange(3), "x")


def test_a_pool_of_another_service_is_no_pool_of_this_one(service, client, tmp_path):
    other_service = Service(str(tmp_path / "other.sock"))
    try:
        with poolbridge.connect(other_service.path, timeout=60) as elsewhere:
            theirs = elsewhere.create_pool("theirs", max_bytes=1 << 20)
            same = elsewhere.create_pool("frames", max_bytes=1 << 20)
            with pytest.raises(poolbridge.NotFoundError):
                client.allocate(4, pool=theirs)
            with pytest.raises(poolbridge.InvalidArgumentError, match="is of another service, or destroyed"):
                client.allocate(4, pool=same)
            for pool in (theirs, same):
                with pytest.raises(poolbridge.NotFoundError):
                    client.destroy_pool(pool)
    finally:
        other_service.close()
    (ours,) = client.pools()
    assert client.allocate(4, pool=ours).pool == "frames"


def test_a_pool_that_was_made_again_is_used_by_its_new_description(client):
    old = client.open_pool("frames")
    client.destroy_pool(old)
    new = client.create_pool("frames", max_bytes=1 << 20)
    assert client.allocate(4, pool=new).pool == "frames"
    with pytest.raises(poolbridge.InvalidArgumentError, match="or destroyed"):
        client.allocate(4, pool=old)
    with pytest.raises(poolbridge.NotFoundError):
        client.destroy_pool(old)
