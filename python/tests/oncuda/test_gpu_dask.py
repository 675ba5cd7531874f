"""Test how Dask workers send leases of GPU memory to each other.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from gates import fill, finish, idle, new_stream, read
from realservice import until
from rig import N, client, device_service, gate, use

pytest.importorskip("distributed", reason="distributed is not installed: pip install 'poolbridge[dask]'")

from distributed.protocol.serialize import deserialize, serialize

from poolbridge.dask import Count, Stats, _arrays, _link
from poolbridge.dask._counts import Counts

__all__ = ["client", "device_service", "gate"]  # fixtures
ELSEWHERE = {"service": "another", "refused": []}


@pytest.fixture
def links(device_service, client, monkeypatch):
    """Give the connections of two workers: the first worker sends arrays, and the second worker receives them."""
    options = _link.Options("gpu", device_service, False, None, "host", None, 60.0)
    pair = [_link.Link(options, Counts(lambda text: None), lambda: None, lambda sender: None) for _ in range(2)]
    monkeypatch.setattr(_link, "_LINKS", {pair[1]})
    yield pair
    for link in pair:
        link.close()


def sent(links, lease, recipient=None):
    token = _arrays.SENDING.set(_arrays.Sending(links[0], "tcp://sender", recipient or links[1].says))
    try:
        header, frames = serialize(lease, on_error="raise")
    finally:
        _arrays.SENDING.reset(token)
    return header, frames


def test_a_lease_goes_on_in_place_and_nobody_waits_but_the_receivers_stream(links, gate):
    producer, consumer = new_stream(), new_stream()
    lease = links[0].client().allocate(N, "uint8", pool="gpu")
    at = use(lease, producer)
    gate.hold(producer)
    fill(at, N, 7, producer)
    header, frames = sent(links, lease)
    got = deserialize(header, frames)
    assert frames == []
    assert (got.buffer_id, got.device, got.readonly) == (lease.buffer_id, "cuda:0", True)
    seen = read(use(got, consumer), N, consumer)
    assert not idle(producer)
    assert not idle(consumer)
    gate.open()
    finish(consumer)
    assert (seen == 7).all()
    assert Stats.from_snapshot(links[1].counts.snapshot()).received_in_place == Count(1, N)


def test_to_another_service_its_elements_go_into_a_pool_of_that_name(links):
    lease = links[0].client().allocate((3, 4), "float32", pool="gpu")
    lease.copy_from(np.arange(12, dtype="float32").reshape(3, 4))
    got = deserialize(*sent(links, lease, ELSEWHERE))
    assert got.buffer_id != lease.buffer_id
    assert (got.shape, got.dtype_name, got.device, got.readonly) == ((3, 4), "float32", "cuda:0", True)
    np.testing.assert_array_equal(got.to_numpy(), lease.to_numpy())
    assert Stats.from_snapshot(links[1].counts.snapshot()).received_by_dask == Count(1, 48)


def test_what_is_never_received_is_freed_with_the_senders_lease(links, client):
    lease = links[0].client().allocate(N, "uint8", pool="gpu")
    header, _ = sent(links, lease)
    del lease
    gc.collect()
    until(lambda: client.stats().buffers == 0, 60)
    with pytest.raises(OSError, match="cannot be leased"):
        deserialize(header, [])
    assert Stats.from_snapshot(links[1].counts.snapshot()).failed == Count(1, N)
