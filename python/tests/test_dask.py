"""Tests which arrays Dask workers of one service share in memory, and which arrays Dask moves."""

# ruff: noqa: F401 - fixtures

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from daskcluster import (  # skips this file if Dask is not installed, so it comes before `dask_workers`
    MARKS,
    POOL,
    SECONDS,
    built,
    cluster,
    counted,
    distributed,
    keep,
    mapping,
    no_leaks,
    nothing_left,
    numbers,
    on,
    ordinary,
    result,
    ship,
    total,
    workers,
)

import dask_workers  # isort: skip
from realservice import RealService, until

import poolbridge
import poolbridge.dask
from poolbridge.dask import _link, _requirements

ship(sys.modules[__name__])

pytestmark = MARKS

EXAMPLES = Path(__file__).parents[2] / "examples" / "dask"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Give Dask's client for two workers, and the service that the two workers share."""
    running = RealService(str(tmp_path_factory.mktemp("node") / "s.sock"), "--pool", POOL)
    try:
        with cluster(running.path, running.path) as client:
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
            yield client, running
    finally:
        running.close()


# One service


def test_a_receiver_has_the_senders_memory(node):
    client, _ = node

    def write(dask_worker):
        dask_worker.kept[0] = 42

    def read(dask_worker):
        return dask_worker.kept.tolist(), dask_worker.kept.flags.writeable, mapping(dask_worker.kept)

    def make():
        made = numbers(3)
        distributed.get_worker().kept = made[:]  # a slice that was made before the transfer stays writeable
        return made

    made = client.submit(make, workers=[on(client, "a")], pure=False)
    kept = client.submit(lambda array: keep(array).nbytes, made, workers=[on(client, "b")], pure=False)
    assert result(kept) == 24
    client.run(write, workers=[on(client, "a")])
    elements, writeable, where = client.run(read, workers=[on(client, "b")])[on(client, "b")]
    assert elements == [42, 1, 2]
    assert not writeable
    assert where.startswith("r--s /memfd:poolbridge:frames")
    assert counted(client, "a").sent_in_place.arrays >= 1
    assert counted(client, "b").received_in_place.arrays >= 1

    def drop(dask_worker):
        del dask_worker.kept

    client.run(drop)


def test_a_sent_array_is_read_only_where_it_was_made(node):
    client, _ = node
    made = client.submit(numbers, 4, 1, workers=[on(client, "a")], pure=False)
    assert result(client.submit(lambda array: array.flags.writeable, made, workers=[on(client, "a")], pure=False))
    assert result(client.submit(total, made, workers=[on(client, "b")], pure=False)) == 10
    assert not result(client.submit(lambda array: array.flags.writeable, made, workers=[on(client, "a")], pure=False))


def test_an_array_is_handed_on_in_place_and_in_collections(node):
    client, _ = node
    before = counted(client, "b")
    made = client.submit(numbers, 5, 7, workers=[on(client, "a")], pure=False)
    passed = client.submit(lambda array: {"it": [array[1:], array]}, made, workers=[on(client, "b")], pure=False)
    where = client.submit(lambda of: [mapping(one) for one in of["it"]], passed, workers=[on(client, "a")], pure=False)
    assert [one.split(":")[0] for one in result(where)] == ["r--s /memfd"] * 2
    after = counted(client, "b")
    assert after.received_in_place.arrays - before.received_in_place.arrays == 1
    assert after.sent_in_place.arrays - before.sent_in_place.arrays == 2


def test_a_program_gets_the_bytes_which_are_counted_with_the_reason(node):
    client, _ = node
    before = counted(client, "a")
    made = client.submit(numbers, 6, workers=[on(client, "a")], pure=False)
    assert result(made).tolist() == [0, 1, 2, 3, 4, 5]
    after = counted(client, "a")
    reason = _link.WITHOUT
    assert after.sent_by_dask.nbytes - before.sent_by_dask.nbytes == 48
    assert after.reasons[reason] == before.reasons.get(reason, 0) + 1
    assert any(reason in event["text"] for _, event in client.get_events("poolbridge"))


def test_the_scheduler_has_the_counts_as_a_metric(node):
    client, _ = node
    address = on(client, "a")
    result(client.submit(total, client.submit(numbers, 6, 1, workers=[address]), workers=[on(client, "b")]))

    def metric():
        return workers(client)[address]["metrics"].get("poolbridge", {})

    until(lambda: metric().get("sent_in_place", {"arrays": 0})["arrays"] >= 1, 60)


def test_an_array_in_no_lease_is_moved_and_counted(node):
    client, _ = node
    before, receiver = counted(client, "a"), counted(client, "b")
    made = client.submit(ordinary, 100, workers=[on(client, "a")], pure=False)
    assert result(client.submit(total, made, workers=[on(client, "b")], pure=False)) == 4950
    after = counted(client, "a")
    assert after.sent_by_dask.arrays - before.sent_by_dask.arrays == 1
    assert counted(client, "b").received_by_dask.nbytes - receiver.received_by_dask.nbytes == 800
    for new, old in ((after, before), (counted(client, "b"), receiver)):
        assert new.reasons[_link.NOT_LEASED] == old.reasons.get(_link.NOT_LEASED, 0) + 1


def test_a_task_that_returns_a_lease_hands_it_on_in_place(node):
    client, running = node

    def lease():
        made = poolbridge.dask.pool_client().allocate(4, "int32")
        made[...] = 6
        return made

    def look(lease):
        return type(lease).__name__, lease.buffer_id, int(lease[...].sum())

    made = client.submit(lease, workers=[on(client, "a")], pure=False)
    here = client.submit(look, made, workers=[on(client, "a")], pure=False)
    there = client.submit(look, made, workers=[on(client, "b")], pure=False)
    assert result(here) == result(there) == ("Lease", result(here)[1], 24)
    assert result(made).tolist() == [6, 6, 6, 6], "the program has no pool, and gets an array"
    del made, here, there
    nothing_left(running.path)


def test_asarray_copies_into_the_pool_once(node):
    client, _ = node

    def copies():
        copy = poolbridge.dask.asarray(np.arange(4))
        return mapping(copy), poolbridge.dask.asarray(copy) is copy, copy.tolist()

    where, same, elements = result(client.submit(copies, pure=False))
    assert "memfd:poolbridge:frames" in where
    assert same
    assert elements == [0, 1, 2, 3]


def test_a_thousand_objects_leave_nothing(node):
    client, running = node
    before = counted(client, "b")

    def twenty(start):
        return [numbers(256, start + number) for number in range(20)]

    def totals(arrays):
        return [total(array) for array in arrays]

    made = client.map(twenty, range(0, 1000, 20), workers=[on(client, "a")], pure=False)
    sums = client.map(totals, made, workers=[on(client, "b")], pure=False)
    found = [each for sums_of in client.gather(sums) for each in sums_of]
    assert found == [sum(range(start, start + 256)) for start in range(1000)]
    assert counted(client, "b").received_in_place.arrays - before.received_in_place.arrays == 1000
    del made, sums
    nothing_left(running.path)


def test_an_array_larger_than_the_pool_is_refused(node):
    client, _ = node
    future = client.submit(poolbridge.dask.empty, 1 << 27, "uint8", pure=False)
    with pytest.raises(poolbridge.PoolLimitError):
        result(future)


@pytest.mark.parametrize("dtype", ["O", [("x", "O")]])
def test_python_objects_are_refused(node, dtype):
    client, _ = node
    with pytest.raises(poolbridge.InvalidArgumentError, match="Python objects"):
        result(client.submit(poolbridge.dask.empty, 3, np.dtype(dtype), pure=False))


@pytest.mark.parametrize("dtype", ["nope", 3])
def test_what_is_no_dtype_is_refused(node, dtype):
    client, _ = node
    with pytest.raises(poolbridge.InvalidArgumentError, match="is no dtype"):
        result(client.submit(poolbridge.dask.empty, 3, dtype, pure=False))


def test_dask_arrays_go_from_worker_to_worker_in_place(node):
    array = pytest.importorskip("dask.array")
    client, running = node
    before = sum(of.received_in_place.arrays for of in poolbridge.dask.stats(client).values())
    whole = np.arange(64).reshape(8, 8)
    x = array.from_array(whole, chunks=4)
    x = x.map_blocks(poolbridge.dask.asarray, dtype=x.dtype)
    np.testing.assert_array_equal((x + x.T).compute(), whole + whole.T)
    assert sum(of.received_in_place.arrays for of in poolbridge.dask.stats(client).values()) > before
    nothing_left(running.path)


def test_a_plugin_that_is_removed_leaves_workers_as_they_were(node):
    client, running = node
    made = client.submit(numbers, 10, workers=[on(client, "a")], pure=False)
    distributed.wait(made, timeout=SECONDS)
    with poolbridge.connect(running.path, timeout=60) as of:
        attached = of.stats().sessions
        client.unregister_worker_plugin("poolbridge")
        try:
            until(lambda: of.stats().sessions == attached - 1, 60)  # the other session has an array that lives
            assert poolbridge.dask.stats(client) == {}
            assert result(client.submit(total, made, workers=[on(client, "b")], pure=False)) == 45
            with pytest.raises(poolbridge.InvalidArgumentError, match="register_plugin"):
                result(client.submit(numbers, 3, workers=[on(client, "a")], pure=False))
            del made
            until(lambda: of.stats().sessions == attached - 2, 60)
        finally:
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))


def test_the_benchmark_sends_both_ways(node):
    client, _ = node
    before = counted(client, "b").received_in_place.arrays
    ways = dask_workers.measure(client, on(client, "a"), on(client, "b"), 4096, times=2)
    assert [len(seconds) for seconds in ways] == [2, 2]
    assert counted(client, "b").received_in_place.arrays == before + 2


# What is refused at once


@pytest.mark.parametrize("client", [3, None, poolbridge.dask])
def test_only_a_client_of_dask_can_ask_for_stats(client):
    with pytest.raises(poolbridge.InvalidArgumentError, match=r"expected a distributed\.Client"):
        poolbridge.dask.stats(client)


def test_an_asynchronous_client_cannot_ask_for_stats(node):
    client, _ = node

    async def ask():
        async with distributed.Client(client.scheduler.address, asynchronous=True) as other:
            poolbridge.dask.stats(other)

    with pytest.raises(poolbridge.InvalidArgumentError, match="an asynchronous client"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    "options",
    [
        {"pool": ""},
        {"kind": "device"},
        {"missing": "perhaps"},
        {"copy_from": "much"},
        {"copy_from": -1},
        {"max_bytes": "much"},
        {"max_bytes": 0},
    ],
)
def test_a_plugin_refuses_what_it_cannot_do(options):
    with pytest.raises(poolbridge.InvalidArgumentError):
        poolbridge.dask.PoolbridgePlugin(**options)


@pytest.mark.parametrize("call", [poolbridge.dask.pool_client, lambda: poolbridge.dask.empty(3)])
def test_outside_of_a_task_there_is_no_pool(call):
    with pytest.raises(poolbridge.InvalidArgumentError, match="no task"):
        call()


@pytest.mark.parametrize("arguments", [["--times", "0"], ["--mib", "0"], ["--size", "1"]])
def test_the_benchmark_refuses_arguments_before_it_starts_workers(monkeypatch, capsys, arguments):
    monkeypatch.setattr("sys.argv", ["dask_workers", *arguments])
    with pytest.raises(SystemExit, match="2"):
        dask_workers.main()
    assert "--times" in capsys.readouterr().err


def test_distributed_has_to_be_there_and_new_enough():
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'poolbridge\[dask\]'"):
        _requirements.check(None)
    with pytest.raises(ImportError, match=r"2024\.12\.1 is installed"):
        _requirements.check("2024.12.1")
    _requirements.check("2025.1.0")


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("frames", r"\(0.0, 1.0, .*\)\n8 frames in place, 0 copied\n"),
        ("blocks", r"0.0 1998.5\n[1-9]\d* blocks in place\n"),
    ],
)
@pytest.mark.long
def test_an_example_runs_on_a_cluster_of_its_own(example, says, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{example}.py"],
        env=os.environ | {"POOLBRIDGE_SOCKET": str(tmp_path / "s.sock")},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(says, done.stdout), done.stdout


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("metadata.PackageNotFoundError()", "ModuleNotFoundError: .* not installed"),
        ("['2024.12.1']", "ImportError: .* 2024.12.1"),
    ],
)
def test_import_says_which_distributed_is_needed(version, says):
    text = f"""
from importlib import metadata
from unittest import mock
with mock.patch.object(metadata, "version", side_effect={version}):
    import poolbridge.dask
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert re.search(f"{says}.*: pip install 'poolbridge\\[dask\\]'", done.stderr), done.stderr


def test_poolbridge_itself_does_not_load_dask():
    text = "import sys, poolbridge; sys.exit('dask' in sys.modules or 'distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], timeout=60, check=False).returncode == 0


def test_asarray_takes_leases(node):
    client, _ = node

    def made():
        pool = poolbridge.dask.pool_client()
        lease = pool.allocate(4, "int32")
        lease[...] = 6
        array = poolbridge.dask.asarray(lease)
        same = array.__array_interface__["data"][0] == lease[...].__array_interface__["data"][0]
        short = pool.allocate(4, "bfloat16")
        short.copy_from(np.full(4, 2, "float32"))
        wide = poolbridge.dask.asarray(short)
        return mapping(array), same, array.tolist(), mapping(wide), wide.tolist()

    where, same, elements, wide, twos = result(client.submit(made, pure=False))
    assert same
    assert elements == [6] * 4
    assert twos == [2.0] * 4
    assert where.count("memfd:poolbridge:frames") == wide.count("memfd:poolbridge:frames") == 1
