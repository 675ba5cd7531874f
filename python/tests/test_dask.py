"""Dask workers on one service, on two, and on none: what is the same memory, what Dask moves, and what remains."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from realservice import POOLSVC, RealService, until

import poolbridge

distributed = pytest.importorskip("distributed", reason="distributed is not installed: pip install 'poolbridge[dask]'")

import cloudpickle  # noqa: E402 - a dependency of distributed
from distributed.protocol.serialize import deserialize, deserialize_bytes, serialize, serialize_bytes  # noqa: E402

import poolbridge.dask  # noqa: E402
from poolbridge.dask import _arrays, _link, _requirements, bench  # noqa: E402
from poolbridge.dask._counts import Counts  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

pytestmark = [
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
    pytest.mark.filterwarnings("default"),  # Dask's own, such as of sockets that it has not closed yet
]

POOL = "name=frames,kind=host,max=64MiB"
SECONDS = 200.0


@pytest.fixture(autouse=True)
def no_leaks():
    """Let Dask keep its connections: its scheduler runs in this process, and closes them when it likes."""


@pytest.fixture(scope="module", autouse=True)
def built():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
        for what in ("CONNECT", "TCP"):  # a busy machine is slow, and that is no fault of a worker
            patch.setenv(f"DASK_DISTRIBUTED__COMM__TIMEOUTS__{what}", f"{SECONDS:g}s")
        yield


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "s.sock"), "--pool", POOL)
    yield running
    running.close()


class Process(distributed.Nanny):  # type: ignore[name-defined, misc]
    """Runs a worker in a process of its own, once: a worker that was killed stays away."""

    started = False

    async def instantiate(self):
        if self.started:
            return self.status
        self.started = True
        return await super().instantiate()


@contextmanager
def cluster(*sockets):
    """Run a cluster of one process for each socket, "a", "b" and so on, and give Dask's client."""
    workers = {
        name: {
            "cls": Process,
            "options": {"nthreads": 1, "memory_limit": 0, "env": {"POOLBRIDGE_SOCKET": socket}},
        }
        for name, socket in zip("abcde", sockets, strict=False)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "dashboard_address": ":0", "port": 0}}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=False) as running,
        distributed.Client(running, timeout=SECONDS) as client,
    ):
        client.wait_for_workers(len(workers), timeout=SECONDS)
        yield client


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Give Dask's client of two workers that share a service, and the service."""
    running = RealService(str(tmp_path_factory.mktemp("node") / "s.sock"), "--pool", POOL)
    try:
        with cluster(running.path, running.path) as client:
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
            yield client, running
    finally:
        running.close()


def on(client, name):
    """Give the address of a worker."""
    (address,) = [
        address for address, of in client.scheduler_info(n_workers=-1)["workers"].items() if of["name"] == name
    ]
    return address


def counted(client, name):
    return poolbridge.dask.counts(client)[on(client, name)]


def nothing_left(path):
    """Wait until the service has no lease, no buffer and no name."""
    gc.collect()
    with poolbridge.connect(path, timeout=60) as client:
        until(lambda: (of := client.stats()).leases == of.buffers == of.names == of.pools[0].leased == 0, 60)


def result(future):
    return future.result(timeout=SECONDS)


# Tasks


def numbers(count, start=0):
    made = poolbridge.dask.empty(count, "int64")
    made[...] = np.arange(start, start + count)
    return made


def ordinary(count):
    return np.arange(count)


def total(array):
    return int(array.sum())


def mapping(array):
    """Say in which memory an array is: the line of the kernel's list, without addresses."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= address < last:
                return " ".join(line.split()[1:2] + line.split()[5:])
    return ""


def keep(array, dask_worker=None):
    distributed.get_worker().kept = array
    return array


# One service


def test_a_receiver_has_the_senders_memory(node):
    client, _ = node

    def write(dask_worker):
        dask_worker.kept[0] = 42

    def read(dask_worker):
        return dask_worker.kept.tolist(), dask_worker.kept.flags.writeable, mapping(dask_worker.kept)

    def make():
        made = numbers(3)
        distributed.get_worker().kept = made[:]  # a slice that was made before stays writeable
        return made

    made = client.submit(make, workers=[on(client, "a")], pure=False)
    kept = client.submit(lambda array: keep(array).nbytes, made, workers=[on(client, "b")], pure=False)
    assert result(kept) == 24
    client.run(write, workers=[on(client, "a")])
    elements, writeable, where = client.run(read, workers=[on(client, "b")])[on(client, "b")]
    assert elements == [42, 1, 2]
    assert not writeable
    assert where.startswith("r--s /memfd:poolbridge:frames")
    assert counted(client, "a").zero_copy >= 1
    assert counted(client, "b").received >= 1

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
    assert (after.received - before.received, after.zero_copy - before.zero_copy) == (1, 2)


def test_a_program_gets_the_bytes_which_are_counted_with_the_reason(node):
    client, _ = node
    before = counted(client, "a")
    made = client.submit(numbers, 6, workers=[on(client, "a")], pure=False)
    assert result(made).tolist() == [0, 1, 2, 3, 4, 5]
    after = counted(client, "a")
    reason = f"moved by Dask: {_link.WITHOUT}"
    assert after.moved_bytes - before.moved_bytes == 48
    assert after.reasons[reason] == before.reasons.get(reason, 0) + 1
    assert any(reason in event["text"] for _, event in client.get_events("poolbridge"))


def test_the_scheduler_has_the_counts_as_a_metric(node):
    client, _ = node
    address = on(client, "a")
    result(client.submit(total, client.submit(numbers, 6, 1, workers=[address]), workers=[on(client, "b")]))

    def metric():
        return client.scheduler_info(n_workers=-1)["workers"][address]["metrics"].get("poolbridge", {})

    until(lambda: metric().get("zero_copy", 0) >= 1, 60)


def test_an_array_in_no_lease_is_moved_and_counted(node):
    client, _ = node
    before = counted(client, "a")
    made = client.submit(ordinary, 100, workers=[on(client, "a")], pure=False)
    assert result(client.submit(total, made, workers=[on(client, "b")], pure=False)) == 4950
    after = counted(client, "a")
    assert after.moved - before.moved == 1
    reason = f"moved by Dask: {_link.NOT_LEASED}"
    assert after.reasons[reason] == before.reasons.get(reason, 0) + 1


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
    assert counted(client, "b").received - before.received == 1000
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
    before = sum(of.received for of in poolbridge.dask.counts(client).values())
    whole = np.arange(64).reshape(8, 8)
    x = array.from_array(whole, chunks=4)
    x = x.map_blocks(poolbridge.dask.asarray, dtype=x.dtype)
    np.testing.assert_array_equal((x + x.T).compute(), whole + whole.T)
    assert sum(of.received for of in poolbridge.dask.counts(client).values()) > before
    nothing_left(running.path)


def test_a_plugin_that_is_removed_leaves_workers_as_they_were(node):
    client, running = node
    made = client.submit(numbers, 10, workers=[on(client, "a")], pure=False)
    distributed.wait(made, timeout=SECONDS)
    with poolbridge.connect(running.path, timeout=60) as of:
        attached = of.stats().sessions
        client.unregister_worker_plugin("poolbridge")
        try:
            until(lambda: of.stats().sessions == attached - 2, 60)
            assert poolbridge.dask.counts(client) == {}
            assert result(client.submit(total, made, workers=[on(client, "b")], pure=False)) == 45
            with pytest.raises(poolbridge.InvalidArgumentError, match="register_plugin"):
                result(client.submit(numbers, 3, workers=[on(client, "a")], pure=False))
        finally:
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))


def test_the_benchmark_sends_both_ways(node):
    client, _ = node
    before = counted(client, "b").received
    ways = bench.measure(client, on(client, "a"), on(client, "b"), 4096, times=2)
    assert [len(seconds) for seconds in ways] == [2, 2]
    assert counted(client, "b").received == before + 2


# Two services, and none


def test_between_services_dask_moves_the_bytes_and_a_worker_without_one_is_an_error_or_counted(service, tmp_path):
    other = RealService(str(tmp_path / "other.sock"), "--pool", POOL)
    with cluster(service.path, other.path, str(tmp_path / "none.sock")) as client:
        with pytest.raises(poolbridge.ServiceNotRunningError):
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
        with pytest.raises(poolbridge.AlreadyExistsError, match="max"):
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", max_bytes="1MiB", missing="ignore"))
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", missing="ignore"))
        a, b, c = (on(client, name) for name in "abc")

        made = client.submit(numbers, 1000, workers=[a])
        look = client.submit(lambda array: (mapping(array), total(array)), made, workers=[b])
        where, sums = result(look)
        assert "memfd" not in where
        assert sums == 499_500
        sent, received = counted(client, "a"), counted(client, "b")
        assert (sent.zero_copy, sent.moved, sent.moved_bytes, received.received) == (0, 1, 8000, 0)
        assert sent.reasons == {f"moved by Dask: {_link.ELSEWHERE}": 1}

        without = client.submit(numbers, 10, workers=[c])
        assert result(client.submit(total, without, workers=[a])) == 45
        assert counted(client, "c").reasons["not in the pool: ServiceNotRunningError"] == 1
        assert counted(client, "c").reasons["not in the pool: no service"] == 1
        assert result(client.submit(total, made, workers=[c])) == 499_500
        with pytest.raises(poolbridge.ServiceNotRunningError):
            result(client.submit(poolbridge.dask.pool_client, workers=[c]))
        del made, look, without
        nothing_left(service.path)
        nothing_left(other.path)
    other.close()


# Kills: the victim dies when the sender or the receiver of an array is at a certain step


def arrange(step, victim):
    """Have a worker kill a process, once, when it is at a step of the transfer, and go on when that has ended."""

    def kill(dask_worker):
        original = getattr(_link.Link, step)

        def stumble(self, *arguments):
            setattr(_link.Link, step, original)
            end = os.pidfd_open(victim)
            os.kill(victim, signal.SIGKILL)
            if victim != os.getpid():
                select.select([end], [], [])
                os.close(end)
            return original(self, *arguments)

        setattr(_link.Link, step, stumble)

    return kill


def test_a_worker_that_is_killed_in_a_transfer_takes_only_what_is_its_own(service):
    with cluster(*[service.path] * 5) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
        at = {name: on(client, name) for name in "abcde"}
        pids = client.run(os.getpid)
        for sender, receiver, step, victim in [
            ("a", "b", "describe", "a"),
            ("b", "c", "take", "b"),
            ("c", "d", "describe", "d"),
            ("c", "e", "take", "e"),
        ]:
            made = client.submit(numbers, 1000, workers=[at[sender]], allow_other_workers=True, pure=False)
            distributed.wait(made, timeout=SECONDS)
            where = at[sender] if step == "describe" else at[receiver]
            client.run(arrange(step, pids[at[victim]]), workers=[where])
            sums = client.submit(total, made, workers=[at[receiver]], allow_other_workers=True, pure=False)
            assert result(sums) == 499_500
            del made, sums
            nothing_left(service.path)


def test_an_array_outlives_the_worker_that_made_it(service):
    with cluster(service.path, service.path) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
        a, b = on(client, "a"), on(client, "b")
        made = client.submit(numbers, 1000, workers=[a], allow_other_workers=True)
        assert result(client.submit(lambda array: keep(array).nbytes, made, workers=[b])) == 8000
        maker = client.run(os.getpid)[a]
        end = os.pidfd_open(maker)
        os.kill(maker, signal.SIGKILL)
        assert select.select([end], [], [], SECONDS)[0]
        os.close(end)

        def read(dask_worker):
            return int(dask_worker.kept.sum())

        assert client.run(read, workers=[b]) == {b: 499_500}


def test_without_its_service_dask_moves_the_bytes_and_one_that_comes_back_is_used_again(service):
    with cluster(service.path, service.path) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
        a, b = on(client, "a"), on(client, "b")

        def transfer():
            made = client.submit(numbers, 10, workers=[a], pure=False)
            assert result(client.submit(total, made, workers=[b], pure=False)) == 45

        client.run(arrange("take", service.process.pid), workers=[b])  # b has the description, and asks again
        transfer()
        service.process.wait(60)
        sent, received = counted(client, "a"), counted(client, "b")
        assert (sent.zero_copy, sent.moved, received.received, received.failed) == (1, 1, 0, 1)

        again = RealService(service.path, "--pool", POOL)
        result(client.submit(numbers, 3, workers=[b], pure=False))  # what makes an array connects again
        transfer()
        assert counted(client, "b").received == 1

        client.run(arrange("describe", again.process.pid), workers=[a])
        transfer()
        again.process.wait(60)
        after = counted(client, "a")
        assert (after.zero_copy - sent.zero_copy, after.moved - sent.moved) == (1, 1)


@pytest.mark.parametrize("name", [name for name in vars(poolbridge) if name.endswith("Error")])
def test_every_error_reaches_the_program(name):
    error = getattr(poolbridge, name)("why")
    arrived = deserialize(*serialize(error, on_error="raise"))
    assert type(arrived) is type(error)
    assert arrived.args == error.args


# Without Dask's scheduler: two connections of one process


@pytest.fixture
def links(service):
    options = _link.Options("frames", service.path, False, None, "host", 1000, 60.0)
    pair = [_link.Link(options, Counts(lambda text: None), lambda: None, lambda sender: None) for _ in range(2)]
    yield pair
    for link in pair:
        link.close()


def sent(links, array, recipient=None):
    """Send an array from one connection to the other as Dask does, and give what arrives."""
    _arrays.register()
    token = _arrays.SENDING.set(_arrays.Sending(links[0], "tcp://sender", recipient or links[0].service))
    try:
        header, frames = serialize(array)
    finally:
        _arrays.SENDING.reset(token)
    return deserialize(header, frames)


LAYOUTS = {
    "whole": lambda array: array,
    "part": lambda array: array[1:, 2:5],
    "steps": lambda array: array[::2, ::3],
    "transposed": lambda array: array.T,
    "reversed": lambda array: array[::-1, ::-1],
    "one row for many": lambda array: np.broadcast_to(array[0], (4, 8)),
    "scalar": lambda array: array[1, 2, ...],
}


@pytest.mark.parametrize("dtype", ["uint8", "float64", "complex128", "datetime64[ns]", ">i4", "U3", "S5", "bool"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_arrives_in_place(links, layout, dtype):
    array = links[0].empty((6, 8), np.dtype(dtype))
    array[...] = np.arange(48).reshape(6, 8).astype(dtype)
    view = LAYOUTS[layout](array)
    arrived = sent(links, view)
    assert (arrived.dtype, arrived.shape) == (view.dtype, view.shape)
    if view.size > 1:
        assert arrived.strides == view.strides
    np.testing.assert_array_equal(arrived, view)
    assert not arrived.flags.writeable
    assert "memfd:poolbridge:frames" in mapping(arrived)
    assert links[0].counts.snapshot()["zero_copy"] == 1


@pytest.mark.parametrize("array", [np.zeros(0), np.zeros((3, 0, 2), "int8")])
def test_arrays_of_no_elements_are_left_to_dask(links, array):
    assert sent(links, array).shape == array.shape
    assert links[0].counts.snapshot() == {"reasons": {}}


def test_elements_with_fields_are_moved(links):
    array = links[0].empty((4,), np.dtype([("x", "i4"), ("y", "f8")]))
    array["x"], array["y"] = 1, 2.5
    np.testing.assert_array_equal(sent(links, array), array)
    assert links[0].counts.snapshot()["reasons"] == {f"moved by Dask: {_link.ELEMENTS}": 1}


def test_an_array_that_a_client_got_by_name_goes_on_in_place(links):
    client = links[0].client()
    client.put(np.arange(5), "weights")
    arrived = sent(links, client.get_array("weights"))
    assert arrived.tolist() == [0, 1, 2, 3, 4]
    assert "memfd:poolbridge:frames" in mapping(arrived)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_copy_is_made_once_and_goes_with_the_array(links, service, order):
    array = np.asarray(np.arange(400.0).reshape(20, 20), order=order)
    first, second = sent(links, array), sent(links, array)
    for arrived in (first, second):
        np.testing.assert_array_equal(arrived, array)
        assert arrived.strides == array.strides
        assert "memfd:poolbridge:frames" in mapping(arrived)
    assert {reason: n for reason, n in links[0].counts.snapshot()["reasons"].items() if "received" not in reason} == {
        "copied on the node: not in a lease": 1,
        "zero-copy: copied before": 1,
    }
    del array, first, second, arrived
    nothing_left(service.path)


def test_a_copy_that_has_no_room_is_moved_with_the_reason(links):
    array = np.zeros(1 << 27, "uint8")
    assert sent(links, array).nbytes == array.nbytes
    assert links[0].counts.snapshot()["reasons"] == {"moved by Dask: PoolLimitError": 1}


def test_an_array_that_is_written_through_another_client_is_moved(links, service):
    with poolbridge.connect(service.path, timeout=60) as client:
        client.open_pool("frames")
        array = np.asarray(client.allocate(4))
        array[...] = 1
        assert sent(links, array).tolist() == [1, 1, 1, 1]
        assert links[0].counts.snapshot()["reasons"] == {f"moved by Dask: {_link.FOREIGN}": 1}
        del array


def test_what_goes_to_disk_is_bytes(links, service):
    array = links[0].empty((4,), np.dtype("i8"))
    array[...] = 3
    spilled = serialize_bytes(array)
    del array
    nothing_left(service.path)
    assert deserialize_bytes(spilled).tolist() == [3, 3, 3, 3]


def test_a_buffer_that_is_gone_makes_dask_ask_again(links):
    dropped: list[str] = []
    links[1].drop = dropped.append
    array = links[0].empty((4,), np.dtype("i8"))
    description = links[0].describe(array, links[0].service)
    links[0].close()
    del array
    with pytest.raises(OSError, match="cannot be leased"):
        _link.take(description, "tcp://sender")
    assert dropped == ["tcp://sender"]
    assert links[1].service is None, "it takes no more descriptions"
    assert links[1].counts.snapshot()["failed"] == 1


# What is refused at once


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
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert "--times" in capsys.readouterr().err


def test_distributed_has_to_be_there_and_new_enough():
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'poolbridge\[dask\]'"):
        _requirements.check(None)
    with pytest.raises(ImportError, match=r"2024\.12\.1 is installed"):
        _requirements.check("2024.12.1")
    _requirements.check("2025.1.0")


def test_poolbridge_itself_does_not_load_dask():
    text = "import sys, poolbridge; sys.exit('dask' in sys.modules or 'distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], timeout=60, check=False).returncode == 0
