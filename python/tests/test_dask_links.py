"""How arrays go between two connections of one process, without Dask's scheduler."""

# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import numpy as np
import pytest
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
    monkeypatch.setattr(_link, "_LINKS", {pair[1]})  # the receiver's process has no other
    yield pair
    for link in pair:
        link.close()


def sent(links, array, recipient=None):
    """Send an array from one connection to the other as Dask does, and give what arrives."""
    _arrays.register()
    token = _arrays.SENDING.set(_arrays.Sending(links[0], "tcp://sender", recipient or links[1].says))
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
    counts = Stats.of(links[0].counts.snapshot())
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
    counts = Stats.of(links[0].counts.snapshot())
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
    sender, receiver = (Stats.of(link.counts.snapshot()) for link in links)
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
