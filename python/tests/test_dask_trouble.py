"""Tests Dask workers on two services or without a service, and what remains after a worker or a service dies."""

# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import os
import select
import signal
import sys

import pytest
from daskcluster import (
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
    result,
    service,
    ship,
    total,
)
from distributed.protocol.serialize import deserialize, serialize
from realservice import RealService, until

import poolbridge
import poolbridge.dask
from poolbridge.dask import Count, _link, _plugin

ship(sys.modules[__name__])

pytestmark = MARKS


def _connected():
    """Return whether this worker is connected to a service. The function itself makes no connection."""
    return _plugin._here().link is not None


# Two services, and no service


@pytest.mark.long
def test_between_services_dask_moves_the_bytes_and_a_worker_without_one_is_refused_or_counted(
    service, tmp_path, request
):
    other = RealService(str(tmp_path / "other.sock"), "--pool", POOL, "--pool", "name=here,kind=host,max=1MiB")
    request.addfinalizer(other.close)
    with cluster(service.path, other.path, str(tmp_path / "none.sock")) as client:
        with pytest.raises(poolbridge.ServiceNotRunningError):
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
        with pytest.raises(poolbridge.AlreadyExistsError, match="max"):
            client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", max_bytes="1MiB", missing="ignore"))
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("here", missing="ignore"))
        of = {name: counted(client, name).reasons for name in "abc"}
        assert of == {
            "a": {"not in the pool: NotFoundError": 1},
            "b": {},
            "c": {"not in the pool: ServiceNotRunningError": 1},
        }
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", missing="ignore"))
        a, b, c = (on(client, name) for name in "abc")

        made = client.submit(numbers, 1000, workers=[a])
        look = client.submit(lambda array: (mapping(array), total(array)), made, workers=[b])
        where, sums = result(look)
        assert "memfd" not in where
        assert sums == 499_500
        sent, received = counted(client, "a"), counted(client, "b")
        assert (sent.sent_in_place, sent.sent_by_dask) == (Count(), Count(1, 8000))
        assert (received.received_in_place, received.received_by_dask) == (Count(), Count(1, 8000))
        assert sent.reasons == received.reasons == {_link.ELSEWHERE: 1}

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
        assert result(client.submit(numbers, 3, workers=[b], pure=False)).tolist() == [0, 1, 2]
        assert counted(client, "b").reasons["not in the pool: no service"] == 1


@pytest.mark.long
def test_a_worker_that_began_without_a_service_connects_when_one_listens(tmp_path, request):
    path = str(tmp_path / "later.sock")
    with cluster(path) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", missing="ignore"))
        a = on(client, "a")
        assert "memfd" not in result(client.submit(lambda: mapping(poolbridge.dask.empty(8)), workers=[a]))
        later = RealService(path, "--pool", POOL)
        request.addfinalizer(later.close)
        until(lambda: result(client.submit(_connected, workers=[a], pure=False)))
        assert "memfd" in result(client.submit(lambda: mapping(poolbridge.dask.empty(8)), workers=[a], pure=False))


@pytest.mark.long
def test_a_task_connects_a_worker_that_began_without_a_service(tmp_path, request):
    path = str(tmp_path / "later.sock")
    with cluster(path) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", missing="ignore"))
        a = on(client, "a")
        later = RealService(path, "--pool", POOL)
        request.addfinalizer(later.close)
        assert "memfd" in result(client.submit(lambda: mapping(poolbridge.dask.empty(8)), workers=[a]))


# In the tests below, a worker sends or receives an array. Just before the worker does the step `step`, it kills the
# process `victim`.


def arrange(step, victim):
    """Return a function that changes a worker: the worker kills `victim` before the next call of the method `step`.

    The worker then waits until `victim` has ended. `step` names a method of the worker's link.
    `victim` is a process id.
    """

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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_without_its_service_dask_moves_the_bytes_and_one_that_comes_back_is_used_again(service, request):
    with cluster(service.path, service.path) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames"))
        a, b = on(client, "a"), on(client, "b")

        def transfer():
            made = client.submit(numbers, 10, workers=[a], pure=False)
            assert result(client.submit(total, made, workers=[b], pure=False)) == 45

        client.run(arrange("take", service.process.pid), workers=[b])  # b has the description, and asks a again
        transfer()
        service.process.wait(60)
        sent, received = counted(client, "a"), counted(client, "b")
        assert (sent.sent_in_place, sent.sent_by_dask) == (Count(1, 80), Count(1, 80))
        assert (received.received_in_place, received.failed) == (Count(), Count(1, 80))

        again = RealService(service.path, "--pool", POOL)
        request.addfinalizer(again.close)
        with poolbridge.connect(service.path, timeout=60) as of:
            epoch = of.epoch

        def service_of(dask_worker):
            return getattr(poolbridge.dask._plugin._ATTACHED[dask_worker].link, "service", None)

        until(lambda: set(client.run(service_of).values()) == {epoch}, 60)  # both workers connect again on their own
        transfer()
        assert counted(client, "b").received_in_place.arrays == 1

        client.run(arrange("describe", again.process.pid), workers=[a])
        transfer()
        again.process.wait(60)
        after = counted(client, "a")
        assert (after.sent_in_place.arrays, after.sent_by_dask.arrays) == (2, 2)


@pytest.mark.parametrize("name", [name for name in vars(poolbridge) if name.endswith("Error")])
def test_every_error_reaches_the_program(name):
    error = getattr(poolbridge, name)("why")
    arrived = deserialize(*serialize(error, on_error="raise"))
    assert type(arrived) is type(error)
    assert arrived.args == error.args
