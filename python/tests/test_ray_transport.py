"""Tests the methods of the transport of `poolbridge.ray` that Ray calls, in two processes without Ray."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import raytransport
from raytransport import made
from realservice import POOLSVC, RealService, until

import poolbridge
import poolbridge.ray
from poolbridge._memory.dlpack import make_capsule
from poolbridge._memory.tensor import ELEMENT_TYPES
from poolbridge.ray import _cluster, _nixl
from poolbridge.ray._metadata import Shared


@pytest.fixture
def socket(tmp_path, monkeypatch):
    path = str(tmp_path / "s.sock")
    monkeypatch.setenv("POOLBRIDGE_SOCKET", path)
    monkeypatch.setattr(_cluster, "_running", lambda: None)
    yield path
    poolbridge.ray.close()


@pytest.fixture
def pool(socket):
    running = RealService(socket)
    with poolbridge.connect(socket, timeout=60) as client:
        client.create_pool("ray", max_bytes="1MiB")
        yield client
    poolbridge.ray.close()
    running.close()


def carried(metadata):
    return pickle.loads(pickle.dumps(metadata))


def counted(before):
    """Return the counts that have grown since `before`, and by how much."""
    after = poolbridge.ray.stats()
    names = ("sent_in_place", "sent_copied", "received_in_place", "received_moved")
    return {name: more for name in names if (more := getattr(after, name).arrays - getattr(before, name).arrays)}


def left(client):
    stats = client.stats()
    return stats.leases, stats.buffers, stats.names


# Arrays from one process to another


def test_an_array_in_the_pool_is_not_copied(pool):
    transport, before = made(), poolbridge.ray.stats()
    array = poolbridge.ray.empty((3, 4))
    array[:] = 7
    metadata = carried(transport.extract_tensor_transport_metadata("one", [array]))
    (got,) = transport.recv_multiple_tensors("one", metadata, None)
    assert counted(before) == {"sent_in_place": 1, "received_in_place": 1}
    assert (got == 7).all()
    assert not got.flags.writeable
    assert not array.flags.writeable
    (buffer,) = pool.buffers()
    assert buffer.reads == 2


def test_an_array_outside_is_copied_once(pool):
    transport, before = made(), poolbridge.ray.stats()
    array = np.arange(6.0).reshape(2, 3)
    metadata = carried(transport.extract_tensor_transport_metadata("one", [array]))
    array[:] = 0
    (got,) = transport.recv_multiple_tensors("one", metadata, None)
    assert got.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert counted(before) == {"sent_copied": 1, "received_in_place": 1}
    assert poolbridge.ray.stats().reasons["the array did not live in a pool"] >= 1


def test_a_part_of_an_array_in_the_pool_is_not_copied(pool):
    transport, before = made(), poolbridge.ray.stats()
    whole = poolbridge.ray.empty((4, 6), "int32")
    whole[:] = np.arange(24).reshape(4, 6)
    expected = whole[1:3, ::2].copy()
    metadata = carried(transport.extract_tensor_transport_metadata("one", [whole[1:3, ::2], whole.T, whole[:0]]))
    part, turned, nothing = transport.recv_multiple_tensors("one", metadata, None)
    assert counted(before) == {"sent_in_place": 3, "received_in_place": 3}
    assert (part == expected).all()
    assert (turned == whole.T).all()
    assert nothing.shape == (0, 6)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "complex128"])
def test_arrays_of_any_shape_arrive_as_they_were(pool, dtype):
    transport = made()
    arrays = [np.ones(shape, dtype) for shape in ((), (0,), (3,), (2, 0, 5), (2, 3, 4))]
    metadata = carried(transport.extract_tensor_transport_metadata("one", arrays))
    assert [shape for shape, _ in metadata.tensor_meta] == [array.shape for array in arrays]
    for array, got in zip(arrays, transport.recv_multiple_tensors("one", metadata, None), strict=True):
        assert (got.shape, got.dtype) == (array.shape, array.dtype)
        assert (got == array).all()


def test_an_object_without_arrays_needs_no_service(socket):
    metadata = carried(made().extract_tensor_transport_metadata("one", []))
    assert made().recv_multiple_tensors("one", metadata, None) == []
    assert metadata.tensor_device is None


def test_a_received_array_is_passed_on_in_place(pool):
    transport = made()
    sent = transport.extract_tensor_transport_metadata("one", [np.ones(5)])
    (got,) = transport.recv_multiple_tensors("one", carried(sent), None)
    before = poolbridge.ray.stats()
    on = transport.extract_tensor_transport_metadata("two", [got])
    assert counted(before) == {"sent_in_place": 1}
    assert on.arrays == sent.arrays
    transport.garbage_collect("one", sent, [])
    del got
    (last,) = transport.recv_multiple_tensors("two", carried(on), None)
    assert last.sum() == 5


def test_a_frame_of_a_channel_is_copied_and_the_reason_counted(pool):
    transport = made()
    client = poolbridge.ray.client()
    channel = client.create_channel("frames", pool="ray")
    frames = client.subscribe("frames")
    lease = client.allocate(4, pool="ray")
    np.asarray(lease)[:] = 3
    channel.publish(lease)
    with next(frames) as frame:
        array = np.asarray(frame)
        metadata = transport.extract_tensor_transport_metadata("one", [array])
        del array
    assert transport.recv_multiple_tensors("one", carried(metadata), None)[0].sum() == 12
    assert poolbridge.ray.stats().reasons["the array is a frame of a channel"] >= 1
    frames.close()
    channel.close()


def test_an_array_in_a_lease_of_another_client_is_copied_while_it_can_be_written(pool):
    transport = made()
    array = np.asarray(pool.allocate(4))
    array[:] = 1
    before = poolbridge.ray.stats()
    transport.extract_tensor_transport_metadata("one", [array])
    assert counted(before) == {"sent_copied": 1}
    assert array.flags.writeable


# Lifetime


def test_a_thousand_objects_leave_nothing(pool):
    transport = made()
    for number in range(1000):
        name = f"{number:04}"
        array = poolbridge.ray.empty(8) if number % 2 else np.empty(8)
        array[:] = number
        metadata = transport.extract_tensor_transport_metadata(name, [array])
        (got,) = transport.recv_multiple_tensors(name, carried(metadata), None)
        assert got[0] == number
        transport.garbage_collect(name, metadata, [array])
        del array, got
    until(lambda: left(pool) == (0, 0, 0))


def test_a_buffer_lives_until_its_object_and_its_last_array_are_gone(pool):
    transport = made()
    metadata = transport.extract_tensor_transport_metadata("one", [np.ones(5)])
    (got,) = transport.recv_multiple_tensors("one", carried(metadata), None)
    transport.garbage_collect("one", metadata, [])
    transport.garbage_collect("one", metadata, [])
    assert left(pool)[1:] == (1, 0)
    assert got.sum() == 5
    del got
    until(lambda: left(pool) == (0, 0, 0))


def test_an_object_that_ray_asks_for_twice_is_shared_once(pool):
    transport = made()
    array = np.ones(5)
    first = transport.extract_tensor_transport_metadata("one", [array])
    assert transport.extract_tensor_transport_metadata("one", [array]) is first
    assert left(pool)[1] == 1


def test_what_failed_half_way_keeps_nothing(pool):
    with pytest.raises(poolbridge.InvalidArgumentError, match="object"):
        made().extract_tensor_transport_metadata("one", [np.ones(5), np.array([object()])])
    until(lambda: left(pool) == (0, 0, 0))


@pytest.fixture
def sender(pool, socket):
    with raytransport.sender(socket, "numpy", "host") as process:
        yield process
        process.kill()


def test_what_a_dead_sender_has_sent_can_be_read_by_those_who_have_it(pool, sender):
    raytransport.say(sender.stdin, ("one", 1000, 5, True))
    metadata, _, _ = raytransport.hear(sender.stdout)
    (got,) = made().recv_multiple_tensors("one", metadata, None)
    sender.kill()
    sender.wait()
    until(lambda: left(pool) == (1, 1, 0))
    assert got.sum() == 5000
    (again,) = made().recv_multiple_tensors("one", metadata, None)
    del got, again
    until(lambda: left(pool) == (0, 0, 0))
    with pytest.raises((poolbridge.StaleError, poolbridge.NotFoundError)):
        made().recv_multiple_tensors("one", metadata, None)


def test_the_program_for_machines_without_ray_runs():
    done = subprocess.run(
        [sys.executable, raytransport.__file__, "--mib", "1", "--moves", "3"],
        env=os.environ | {"POOLBRIDGE_POOLSVC": POOLSVC},
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stderr
    assert "copied into it once" in done.stdout


# What goes wrong


def test_without_a_service_the_sender_gets_the_error(socket):
    with pytest.raises(poolbridge.ServiceNotRunningError, match=r"not running.*poolbridge\.ray\.start\(\)"):
        made().extract_tensor_transport_metadata("one", [np.ones(3)])


def test_without_a_service_the_receiver_on_the_senders_node_gets_the_error(pool, monkeypatch, tmp_path):
    metadata = carried(made().extract_tensor_transport_metadata("one", [np.ones(3)]))
    poolbridge.ray.close()
    monkeypatch.setenv("POOLBRIDGE_SOCKET", str(tmp_path / "nothing"))
    with pytest.raises(poolbridge.ServiceNotRunningError):
        made().recv_multiple_tensors("one", metadata, None)


def test_without_its_pool_a_service_says_which_it_has(pool):
    with pytest.raises(poolbridge.NotFoundError, match="no pool 'other' .it has 'ray'."):
        made(pool="other").extract_tensor_transport_metadata("one", [np.ones(3)])


def test_an_object_larger_than_the_pool_is_refused(pool):
    with pytest.raises(poolbridge.PoolLimitError, match="ray"):
        made(timeout=0).extract_tensor_transport_metadata("one", [np.ones(1 << 20)])
    until(lambda: left(pool) == (0, 0, 0))


def test_two_services_on_one_node_are_an_error_that_says_so(pool, monkeypatch, tmp_path):
    metadata = carried(made().extract_tensor_transport_metadata("one", [np.ones(3)]))
    poolbridge.ray.close()
    other = str(tmp_path / "t.sock")
    monkeypatch.setenv("POOLBRIDGE_SOCKET", other)
    second = RealService(other)
    try:
        with pytest.raises(poolbridge.UnavailableError, match="another one than the sender's"):
            made().recv_multiple_tensors("one", metadata, None)
    finally:
        poolbridge.ray.close()
        second.close()


def test_another_node_cannot_be_reached_without_ray(pool, monkeypatch, tmp_path):
    metadata = carried(made().extract_tensor_transport_metadata("one", [np.ones(3)]))
    poolbridge.ray.close()
    monkeypatch.setenv("POOLBRIDGE_SOCKET", str(tmp_path / "nothing"))
    metadata.node = "far"
    with pytest.raises(poolbridge.UnavailableError, match="in no cluster"):
        made().recv_multiple_tensors("one", metadata, None)


def test_memory_of_a_gpu_is_not_moved_to_another_node(pool, monkeypatch):
    metadata = carried(made().extract_tensor_transport_metadata("one", [np.ones(3)]))
    shared = metadata.arrays[0]
    metadata.node = "far"
    metadata.arrays[0] = type(shared)(
        **{name: getattr(shared, name) for name in shared.__slots__} | {"kind": "device", "epoch": "00"}
    )
    with pytest.raises(poolbridge.UnsupportedError, match="memory of a GPU"):
        made().recv_multiple_tensors("one", metadata, None)


def test_without_nixl_it_is_an_error_to_ask_for_it(monkeypatch):
    for name in _nixl._MODULES:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, f"{name}._api", None)
    pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    with pytest.raises(poolbridge.UnavailableError, match="nixl=True: .* no NIXL: .* nixl, nixl_cu12, nixl_cu13 "):
        poolbridge.ray.register(nixl=True)


@pytest.mark.parametrize("nixl", [None, True])
def test_a_receiver_without_a_pool_for_nixl_says_so(pool, monkeypatch, tmp_path, nixl):
    metadata = carried(made().extract_tensor_transport_metadata("one", [np.ones(3)]))
    poolbridge.ray.close()
    monkeypatch.setenv("POOLBRIDGE_SOCKET", str(tmp_path / "nothing"))
    monkeypatch.setattr(_nixl, "missing", lambda: "")
    monkeypatch.setattr(_cluster, "fetch", lambda *_: np.ones(3))
    metadata.node = "far"
    if nixl:
        with pytest.raises(poolbridge.UnavailableError, match="nixl=True: ServiceNotRunningError"):
            made(nixl=True).recv_multiple_tensors("one", metadata, None)
    else:
        before = poolbridge.ray.stats()
        assert made().recv_multiple_tensors("one", metadata, None)[0].sum() == 3
        assert counted(before) == {"received_moved": 1}


@pytest.mark.skipif(bool(_nixl.missing()), reason=_nixl.missing())
def test_an_agent_of_nixl_reads_from_a_pool_into_a_pool(pool):
    there, here = _nixl.Agent(), _nixl.Agent()
    pool.create_pool("other", max_bytes="1MiB")
    for count, (of, into) in enumerate([("ray", "other"), ("other", "ray"), ("ray", "other")], 1):
        source, target = pool.allocate(1000, "uint8", pool=of), pool.allocate(500, "uint8", pool=into)
        np.asarray(source)[:] = np.arange(1000) + count
        offer = there.offer(source._lease_state, "ticket", 100, 600, 0)
        here.read(offer, target._lease_state, _cluster.Transfer())
        assert (np.asarray(target) == (np.arange(100, 600) + count).astype("uint8")).all()
    assert offer.version == 2


def test_an_abort_ends_the_pause_of_a_transfer():
    transfer = _cluster.Transfer()
    transfer.abort()
    with pytest.raises(poolbridge.RequestCancelledError, match="aborted"):
        transfer.pause(0.001)


def test_a_receiver_has_no_buffers_of_its_own(pool):
    metadata = made().extract_tensor_transport_metadata("one", [np.ones(3)])
    with pytest.raises(poolbridge.UnsupportedError, match="set_target_for_ref"):
        made().recv_multiple_tensors("one", metadata, None, [np.empty(3)])


@pytest.mark.parametrize(
    "settings", [{"kind": "host"}, {"max_bytes": 1, "size": 1}, {"max_bytes": 1, "exist_ok": True}]
)
def test_start_refuses_pools_that_cannot_be_made(settings):
    with pytest.raises(poolbridge.InvalidArgumentError, match="'frames'.*Client.create_pool"):
        poolbridge.ray.start(pools={"frames": settings})


@pytest.fixture
def services(socket):
    """Give a function that starts a service at the socket. Each service has a pool ``"ray"``."""
    running = []

    def start():
        running.append(RealService(socket))
        with poolbridge.connect(socket, timeout=60) as client:
            client.create_pool("ray", max_bytes="1MiB")
        return running[-1]

    yield start
    poolbridge.ray.close()
    for service in running:
        service.close()


def test_after_the_service_was_started_again_senders_go_on(services):
    transport = made()
    service = services()
    old = transport.extract_tensor_transport_metadata("old", [np.ones(3)])
    service.kill()
    services()
    new = transport.extract_tensor_transport_metadata("new", [np.ones(3)])
    assert transport.recv_multiple_tensors("new", carried(new), None)[0].sum() == 3
    transport.garbage_collect("old", old, [])


@pytest.mark.parametrize("fallback", [False, True], ids=["", "fallback"])
@pytest.mark.parametrize("again", [False, True], ids=["ended", "started again"])
@pytest.mark.parametrize("connected", [False, True], ids=["new receiver", "connected receiver"])
def test_what_a_service_had_that_died_before_the_hand_off_is_an_error_that_names_it(
    services, socket, connected, again, fallback
):
    service = services()
    with raytransport.sender(socket, "numpy", "host") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        raytransport.say(process.stdin, ("one", 1000, 5, True))
        metadata, _, _ = raytransport.hear(process.stdout)
        if connected:
            poolbridge.ray.client()
        service.kill()
        if again:
            services()
        before = poolbridge.ray.stats()
        with pytest.raises(poolbridge.StaleError, match=r"buffer 1 \(float32\[1000\] in pool 'ray'\) is lost.*make"):
            made(fallback=fallback).recv_multiple_tensors("one", metadata, None)
        assert counted(before) == {}


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float4_e2m1fn_x2"])
def test_the_object_store_gets_the_bits_of_a_type_that_numpy_lacks(monkeypatch, name):
    element = ELEMENT_TYPES[name]
    bits = np.arange(6, dtype=element.typestr).reshape(2, 3)

    class Array:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            return make_capsule(bits, element, (1, 0), versioned=True)

    def full(*_):
        raise poolbridge.PoolLimitError("full")

    kept = []
    transport = made(fallback=True)
    monkeypatch.setattr(type(transport), "_share", full)
    monkeypatch.setattr(_cluster, "keep", lambda token, index, array: kept.append(array))
    assert transport._offer(Array(), "one", 0, []).dtype == name
    assert (kept[0].dtype, kept[0].tolist()) == (bits.dtype, bits.tolist())


def test_a_mover_says_what_was_lost_with_its_service(services):
    service, mover = services(), _cluster.Mover()
    (shared,) = made().extract_tensor_transport_metadata("one", [np.ones(3)]).arrays
    assert isinstance(shared, Shared)
    assert mover.read(shared).sum() == 3
    service.kill()
    with pytest.raises(poolbridge.StaleError, match="buffer 1 .* is lost"):
        mover.read(shared)
    services()
    with pytest.raises(poolbridge.StaleError, match="buffer 1 .* is lost"):
        mover.read(shared)
    for client in mover._clients.values():
        client.close()


def test_a_mover_waits_for_content_that_was_promised(services):
    services()
    mover = _cluster.Mover()
    made().extract_tensor_transport_metadata("first", [np.ones(3)])  # makes the pool
    client = poolbridge.ray.client()
    lease = client.allocate(3, "float64", pool=client.pools()[0].name)
    array, promise = np.asarray(lease), lease.promise()
    (shared,) = made().extract_tensor_transport_metadata("one", [array]).arrays
    assert isinstance(shared, Shared)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(mover.read, shared)
        assert futures.wait([reading], 0.2).not_done
        array[:] = 5
        promise.complete()
        assert reading.result().tolist() == [5, 5, 5]
    for one in mover._clients.values():
        one.close()


def test_a_receiver_whose_session_was_ended_connects_again(pool, sender):
    raytransport.say(sender.stdin, ("one", 1000, 5, True))
    metadata, _, _ = raytransport.hear(sender.stdout)
    before = poolbridge.ray.client()
    pool.end_session(before._session.core.session_id)
    assert made().recv_multiple_tensors("one", metadata, None)[0].sum() == 5000
    assert poolbridge.ray.client() is not before


def test_a_missing_or_old_ray_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(poolbridge.UnavailableError, match=r"pip install 'poolbridge\[ray\]'"):
        poolbridge.ray.register()
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(__version__="2.58.1"))
    with pytest.raises(poolbridge.UnavailableError, match="2.58.1 is too old"):
        poolbridge.ray.start()
