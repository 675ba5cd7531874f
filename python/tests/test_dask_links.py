"""Tests arrays that go from one connection to another in the same process, without Dask's scheduler."""

# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

pytest.importorskip("dask", reason="Dask is not installed: pip install 'poolbridge[dask]'")

import dask.sizeof
import numpy as np
from daskcluster import MARKS, built, mapping, no_leaks, nothing_left, service
from distributed.protocol.serialize import deserialize, deserialize_bytes, serialize, serialize_bytes

import poolbridge
from poolbridge.dask import Count, Stats, _arrays, _link
from poolbridge.dask._counts import Counts

pytestmark = MARKS


@pytest.fixture
def links(service, monkeypatch):
    options = _link.Options("frames", service.path, False, None, "host", 1000, 60.0)
    pair = [_link.Link(options, Counts(lambda text: None), lambda: None, lambda sender: None) for _ in range(2)]
    monkeypatch.setattr(_link, "_LINKS", {pair[1]})  # the receiver's process has only its own connection
    yield pair
    for link in pair:
        link.close()


def sent(links, array, recipient=None):
    """Send an array from one connection to the other as Dask does, and return the received array."""
    _arrays.register()
    token = _arrays.SENDING.set(_arrays.Sending(links[0], "tcp://sender", recipient or links[1].says))
    try:
        header, frames = serialize(array, on_error="raise")
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
    counts = Stats.from_snapshot(links[0].counts.snapshot())
    assert (counts.sent_in_place, counts.reasons) == (Count(1, view.nbytes), {})


@pytest.mark.parametrize("array", [np.zeros(0), np.zeros((3, 0, 2), "int8")])
def test_arrays_of_no_elements_are_left_to_dask(links, array):
    assert sent(links, array).shape == array.shape
    assert links[0].counts.snapshot() == {"reasons": {}}


def test_elements_with_fields_are_moved(links):
    array = links[0].empty((4,), np.dtype([("x", "i4"), ("y", "f8")]))
    array["x"], array["y"] = 1, 2.5
    np.testing.assert_array_equal(sent(links, array), array)
    assert links[0].counts.snapshot()["reasons"] == {_link.ELEMENTS: 1}


def test_workers_of_one_service_need_not_use_one_pool(links, service):
    links[0].client().create_pool("small", max_bytes="1MiB")
    other = _link.Link(
        replace(links[0].options, pool="small"), Counts(lambda text: None), lambda: None, lambda at: None
    )
    array = other.empty((4,), np.dtype("i8"))
    array[...] = 5
    arrived = sent([other, links[1]], array)
    assert arrived.tolist() == [5, 5, 5, 5]
    assert "memfd:poolbridge:small" in mapping(arrived)
    with pytest.raises(poolbridge.PoolLimitError):
        other.empty((1 << 18,), np.dtype("i8"))
    other.close()


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
    counts = Stats.from_snapshot(links[0].counts.snapshot())
    assert (counts.sent_copied, counts.sent_in_place) == (Count(1, array.nbytes), Count(1, array.nbytes))
    assert counts.reasons == {_link.NOT_LEASED: 1}
    del array, first, second, arrived
    nothing_left(service.path)


def test_a_copy_that_has_no_room_is_moved_with_the_reason(links):
    array = np.zeros(1 << 27, "uint8")
    assert sent(links, array).nbytes == array.nbytes
    assert links[0].counts.snapshot()["reasons"] == {"PoolLimitError": 1}


def test_an_array_that_is_written_through_another_client_is_moved(links, service):
    with poolbridge.connect(service.path, timeout=60) as client:
        client.open_pool("frames")
        array = np.asarray(client.allocate(4))
        array[...] = 1
        assert sent(links, array).tolist() == [1, 1, 1, 1]
        assert links[0].counts.snapshot()["reasons"] == {_link.FOREIGN: 1}
        del array


# Leases, and arrays of other libraries


def lease_of(link, value=3):
    lease = link.client().allocate((2, 3), "float32", pool="frames")
    lease[...] = value
    return lease


def test_a_lease_arrives_as_a_read_lease_of_the_same_buffer(links):
    lease = lease_of(links[0])
    first, second = sent(links, lease), sent(links, [lease, {"it": lease}])
    for arrived in (first, second[0], second[1]["it"]):
        assert (arrived.buffer_id, arrived.shape, arrived.dtype_name) == (lease.buffer_id, (2, 3), "float32")
        assert arrived.readonly
        np.testing.assert_array_equal(arrived, np.full((2, 3), 3))
    assert lease.readonly
    assert Stats.from_snapshot(links[0].counts.snapshot()).sent_in_place == Count(3, 72)
    assert dask.sizeof.sizeof(lease) == 24


@pytest.mark.parametrize("pool", ["elsewhere", "frames"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float4_e2m1fn_x2"])
def test_on_another_service_a_lease_arrives_as_a_lease_of_a_pool_there(links, pool, dtype):
    links[0].client().create_pool(pool, max_bytes="64MiB", exist_ok=True)
    lease = links[0].client().allocate((2, 3), dtype, pool=pool)
    _link.as_numbers(lease).copy_from(np.arange(6).astype("uint8").reshape(2, 3))
    arrived = sent(links, lease, {"service": "another", "refused": []})
    assert arrived.buffer_id != lease.buffer_id
    assert (arrived.pool, arrived.dtype_name, arrived.readonly) == (pool, dtype, True)
    np.testing.assert_array_equal(_link.as_numbers(arrived).to_numpy(), np.arange(6).reshape(2, 3))
    counts = [Stats.from_snapshot(link.counts.snapshot()) for link in links]
    assert (counts[0].sent_by_dask, counts[1].received_by_dask) == (Count(1, lease.nbytes), Count(1, lease.nbytes))
    assert counts[0].reasons == {_link.ELSEWHERE: 1}


def test_a_lease_for_which_no_pool_has_room_arrives_as_an_array(links):
    lease = lease_of(links[0])
    header, frames = serialize(lease, on_error="raise")
    with links[1].client().allocate(1 << 25, "uint8", pool="frames"), links[1].client().allocate(1 << 24, "uint8"):
        rest = [links[1].client().allocate(1 << 20, "uint8") for _ in range(15)]
        for nbytes in (1 << 19, 1 << 18, 1 << 17, 1 << 16, 1 << 15, 1 << 14, 1 << 13, 1 << 12, 512):
            with suppress(poolbridge.PoolLimitError):
                while True:
                    rest.append(links[1].client().allocate(nbytes, "uint8"))
        arrived = deserialize(header, frames)
        del rest
    assert isinstance(arrived, np.ndarray)
    assert arrived.tolist() == [[3, 3, 3]] * 2
    assert links[1].counts.snapshot()["reasons"] == {"not in the pool: PoolLimitError": 1}


def test_a_process_that_is_no_worker_gets_the_elements_of_a_lease(links, monkeypatch):
    header, frames = serialize(lease_of(links[0]), on_error="raise")
    monkeypatch.setattr(_link, "_LINKS", set())
    assert deserialize(header, frames).tolist() == [[3, 3, 3]] * 2


def test_a_lease_that_is_described_and_never_taken_ends_with_the_senders(links, service):
    lease = lease_of(links[0])
    description = links[0].describe(lease, _link.LEASE, links[1].says)
    del lease
    nothing_left(service.path)
    with pytest.raises(OSError, match="cannot be leased"):
        _link.take(description, "tcp://sender")


def test_a_lease_that_was_released_is_an_error(links):
    lease = lease_of(links[0])
    lease.release()
    with pytest.raises(TypeError, match="Could not serialize"):
        sent(links, lease)


def test_an_array_of_jax_in_a_lease_goes_on_in_place_and_others_as_dask_sends_them(links):
    jax = pytest.importorskip("jax")
    lease = lease_of(links[0])
    links[0]._complete(lease._lease_state)
    array = jax.dlpack.from_dlpack(lease.view(legacy=True))
    arrived = sent(links, array)
    assert isinstance(arrived, jax.Array)
    np.testing.assert_array_equal(arrived, array)
    assert "memfd:poolbridge:frames" in mapping(np.from_dlpack(arrived))
    assert sent(links, jax.numpy.ones(3)).tolist() == [1, 1, 1]
    counts = Stats.from_snapshot(links[0].counts.snapshot())
    assert (counts.sent_in_place, counts.sent_by_dask) == (Count(1, 24), Count(1, 12))
    assert counts.reasons == {_link.NOT_LEASED: 1}


def test_what_goes_to_disk_is_bytes(links, service):
    array = links[0].empty((4,), np.dtype("i8"))
    array[...] = 3
    spilled = serialize_bytes(array)
    del array
    nothing_left(service.path)
    assert deserialize_bytes(spilled).tolist() == [3, 3, 3, 3]


def failing(error):
    def fail(*arguments):
        raise error

    return fail


def test_one_buffer_that_cannot_be_leased_is_moved_and_others_go_on_in_place(links, monkeypatch):
    dropped: list[str] = []
    links[1].drop = dropped.append
    first, second = (links[0].empty((4,), np.dtype("i8")) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(_link, "_block", failing(poolbridge.AccessDeniedError("why")))
        with pytest.raises(OSError, match="cannot be leased: why"):
            sent(links, first)
    assert dropped == ["tcp://sender"], "the sender waits for an answer on that connection"
    for _ in range(2):
        assert not mapping(sent(links, first)).startswith("r--s")
        assert mapping(sent(links, second)).startswith("r--s /memfd")
    sender, receiver = (Stats.from_snapshot(link.counts.snapshot()) for link in links)
    assert (sender.sent_in_place, sender.sent_by_dask) == (Count(3, 96), Count(2, 64))
    assert (receiver.failed, receiver.received_in_place) == (Count(1, 32), Count(2, 64))
    assert sender.reasons == {_link.REFUSED: 2}
    assert receiver.reasons == {"AccessDeniedError when it was received": 1, _link.REFUSED: 2}


def test_a_service_that_does_not_answer_is_asked_for_nothing_until_it_answers(links, monkeypatch):
    array = links[0].empty((4,), np.dtype("i8"))
    with monkeypatch.context() as patch:
        patch.setattr(_link, "_block", failing(poolbridge.ServiceStalledError("why")))
        with pytest.raises(OSError, match="cannot be leased: why"):
            sent(links, array)
    assert links[1].says is None
    links[1].renew()
    other = links[0].empty((4,), np.dtype("i8"))
    assert "memfd" in mapping(sent(links, other))


def test_a_link_that_was_closed_connects_no_more(links):
    links[0].close()
    links[0].renew()
    with pytest.raises(poolbridge.ClosedError):
        links[0].empty((4,), np.dtype("i8"))
    assert links[0].says is None
