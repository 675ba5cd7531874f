"""Tests leases and frames as arrays of Arrow's libraries, and arrays of these libraries as what a program shares."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)
pytest.importorskip("pyarrow")

import pyarrow as pa
from realservice import leases, until
from test_members import service as service  # noqa: PLC0414 - a fixture

import poolbridge
from poolbridge._memory import arrow as _arrow, dlpack as _dlpack

try:
    import polars as pl
except ImportError:
    pl = None

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
needs_polars = pytest.mark.skipif(pl is None, reason="Polars is not installed")


class Exporter:
    """An array that has only ``__arrow_c_array__``: that of another array, or what a function returns."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._array() if callable(self._array) else self._array.__arrow_c_array__(requested_schema)


def filled(client, dtype="float64", count=5):
    lease = client.allocate(count, dtype)
    lease.copy_from(np.arange(1, count + 1).astype(dtype))
    return lease


def table(client, **dtypes):
    lease = client.allocate({name: (3, dtype) for name, dtype in dtypes.items()})
    for name in dtypes:
        lease[name].copy_from([1, 2, 3])
    return lease


@pytest.mark.parametrize("dtype", TYPES)
def test_an_arrow_array_has_the_memory_of_the_lease(client, dtype):
    lease = filled(client, dtype)
    array = pa.array(lease)
    assert array.type == pa.from_numpy_dtype(dtype)
    assert array.buffers()[1].address == lease._evidence()["pointer"]
    assert (array.to_pylist(), array.null_count, array.offset) == ([1, 2, 3, 4, 5], 0, 0)
    lease.publish("x")
    assert pa.array(client.get("x")).equals(array)


@needs_polars
@pytest.mark.parametrize("dtype", sorted(set(TYPES) - {"float16"}))
def test_a_series_of_polars_has_the_memory_of_the_lease(client, dtype):
    lease = filled(client, dtype)
    series = pl.Series("x", lease)
    assert (series.to_list(), series.to_numpy().dtype) == ([1, 2, 3, 4, 5], dtype)
    assert series.to_numpy(allow_copy=False).ctypes.data == lease._evidence()["pointer"]
    assert lease.array_count == 1
    assert series.sum() == 15


def test_a_lease_lasts_until_arrow_releases_its_array(client):
    lease = filled(client)
    part = pa.array(lease)[1:3]
    assert lease.array_count == 1
    with pytest.raises(poolbridge.LeaseInUseError, match="1 array made from"):
        lease.release()
    assert part.to_pylist() == [2.0, 3.0]
    part = None
    assert lease.array_count == 0
    capsules = lease.__arrow_c_array__(), lease.__arrow_c_device_array__()
    assert lease.array_count == 2
    taken = pa.Array._import_from_c_capsule(*capsules[0])
    del capsules  # the one that no library took goes back, and the other one was moved
    assert lease.array_count == 1
    assert taken.sum().as_py() == 15
    del lease
    assert leases(client) == 1
    del taken
    until(lambda: leases(client) == 0)


def test_another_thread_can_be_the_one_that_releases_the_array(client):
    lease = filled(client)
    held = [pa.array(lease)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    lease.release()


def test_an_arrow_array_stays_valid_when_the_client_closes(service):
    with poolbridge.connect(service.path, timeout=60) as first, poolbridge.connect(service.path, timeout=60) as second:
        first.create_pool("frames", max_bytes=1 << 16)
        array = pa.array(filled(first))
        first.close()
        second.open_pool("frames")
        filled(second, count=8192 - 512)
        assert array.to_pylist() == [1, 2, 3, 4, 5]
        del array


def test_an_array_of_a_frame_keeps_the_frames_memory(client, other):
    channel = client.create_channel("c", capacity=2)
    frames = other.subscribe("c")
    channel.publish(np.arange(4))
    with frames.receive(60) as frame:
        array = pa.array(frame)
    for number in range(4):
        channel.publish(np.full(4, number))
        frames.receive(60).release()
    assert array.to_pylist() == [0, 1, 2, 3]


def test_several_arrays_are_a_record_batch(client):
    lease = table(client, a="int16", büchse="float32")
    batch = pa.record_batch(lease)
    assert batch.to_pydict() == {"a": [1, 2, 3], "büchse": [1, 2, 3]}
    assert batch.schema.types == [pa.int16(), pa.float32()]
    assert batch.column(1).buffers()[1].address == lease["büchse"]._lease_state.memory.address(write=True) + 256
    assert pa.array(lease["a"]).to_pylist() == [1, 2, 3]
    column = batch.column(0)
    del batch
    with pytest.raises(poolbridge.LeaseInUseError):
        lease.release()
    assert column.to_pylist() == [1, 2, 3]
    if pl is not None:
        assert pl.DataFrame(lease).to_dict(as_series=False) == {"a": [1, 2, 3], "büchse": [1, 2, 3]}
    del column
    lease.release()


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        (3, "bool", r"has bools as bits.*copy it.*view\(dtype=\"uint8\"\)"),
        (3, "bfloat16", r"has no bfloat16.*view\(dtype=\"uint16\"\)"),
        (3, "complex128", r"has no complex128.*to_numpy\(\)\)$"),
        ((), "int8", r"one axis and no gaps, and this lease is int8\[\] .*copy it"),
        ((2, 3), "int8", r"int8\[2, 3\] with strides \(3, 1\): copy it"),
        ({"a": (2, "int8"), "b": (3, "int8")}, None, r"equally long.*\{'a': 2, 'b': 3\}"),
        ({"a": (2, "int8"), "b": (2, "bool")}, None, r"array 'b' cannot be exported"),
        ({"a": ((2, 1), "int8")}, None, r"array 'a' is int8\[2, 1\]"),
    ],
)
def test_what_arrow_lacks_is_an_error_that_says_what_to_do(client, shape, dtype, text):
    lease = client.allocate(shape) if dtype is None else client.allocate(shape, dtype)
    for export in (lease.__arrow_c_array__, lease.__arrow_c_device_array__):
        with pytest.raises(BufferError, match=text):
            export()
    lease.release()


def test_the_exports_check_the_lease_and_the_options(client, monkeypatch):
    lease = filled(client, "bool")
    assert pa.array(lease.view(dtype="uint8")).to_pylist() == [1] * 5
    empty = client.allocate(0, "int8")
    assert pa.array(empty).to_pylist() == []
    with pytest.raises(NotImplementedError, match="later"):
        empty.__arrow_c_device_array__(later=1)
    assert empty.__arrow_c_device_array__(None, later=None)
    monkeypatch.setattr(_arrow, "NATIVE", None)
    with pytest.raises(poolbridge.UnavailableError, match="native module|_native"):
        pa.array(empty)
    empty.release()
    with pytest.raises(poolbridge.LeaseReleasedError):
        empty.__arrow_c_array__()


def test_arrow_gets_no_content_that_is_not_complete(client, monkeypatch):
    lease = client.allocate(3, "int8")
    promise = lease.promise()
    lease.publish("x")
    got = client.get("x")
    with monkeypatch.context() as patched, pytest.raises(poolbridge.WaitTimeoutError):
        patched.setattr(client._session, "patience", 0.01)
        pa.array(got)
    promise.complete()
    assert pa.array(got).to_pylist() == [0, 0, 0]


def test_arrow_arrays_may_outlive_the_interpreters_modules(service):
    code = f"""
import numpy, poolbridge, pyarrow, sys
client = poolbridge.connect({service.path!r}, timeout=60)
client.create_pool("exit", kind="host", max_bytes=1 << 16)
pyarrow.kept = pyarrow.array(client.allocate(3, "int8"))
sys.kept = client.allocate(3, "int8").__arrow_c_array__()
import ctypes
ctypes.pythonapi.Py_IncRef(ctypes.py_object(pyarrow.kept))
"""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], check=False, timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def shared(client, given):
    """Share an array in each way that copies it, and return what readers get."""
    channel = client.create_channel("c", mode="queue")
    frames = client.subscribe(channel)
    put = client.put(given, "x", replace=True).to_numpy()
    channel.publish(given)
    channel.publish({"a": given})
    lease = client.allocate(put.shape, put.dtype)
    lease.copy_from(given)
    with frames.receive(60) as one, frames.receive(60) as several:
        return [put, one.to_numpy(), several["a"].to_numpy(), lease.to_numpy()]


@pytest.mark.parametrize("make", [lambda array: array, Exporter], ids=["PyArrow", "only Arrow"])
@pytest.mark.parametrize("dtype", [*TYPES, "bool"])
def test_arrays_of_arrow_go_in(client, dtype, make):
    expected = np.array([0, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1], dtype)
    whole = pa.array(expected)
    for array, values in ((whole, expected), (whole[3:10], expected[3:10]), (whole[:0], expected[:0])):
        for got in shared(client, make(array)):
            assert got.dtype == dtype
            assert got.tolist() == values.tolist()


def test_chunks_go_in(client):
    for got in shared(client, pa.chunked_array([[1], [2, 3]])):
        assert got.tolist() == [1, 2, 3]


@needs_polars
def test_a_series_of_polars_goes_in(client):
    for series in (pl.Series([1.5, 2.5]), pl.Series([True, False]), pl.concat([pl.Series([1]), pl.Series([2])])):
        for got in shared(client, series):
            assert got.tolist() == series.to_list()


def nullable():
    whole = pa.array([1.5, None, 2.5])
    yield from (whole, whole.slice(1, 1), Exporter(whole), pa.chunked_array([[1, None]]), pa.table({"a": whole}))
    yield from (pa.record_batch({"b": [1.5], "a": [None]}), Exporter(pa.array([True, None])))
    if pl is not None:
        yield from (pl.Series([1, None]), pl.DataFrame({"a": [1.5, None], "b": [1.5, 2.5]}))


@pytest.mark.parametrize("given", [*nullable()], ids=lambda given: type(given).__name__)
def test_nulls_do_not_become_numbers(client, given):
    channel, lease = client.create_channel("c"), client.allocate(3, "float64")
    for share in (
        lambda: client.put(given, "x"),
        lambda: channel.publish(given),
        lambda: channel.publish({"a": given}),
        lambda: lease.copy_from(given),
    ):
        with pytest.raises(poolbridge.InvalidArgumentError, match=r"nulls.*fill"):
            share()


def test_nulls_are_counted_if_the_array_does_not_say_how_many_it_has(client):
    def uncounted(array):
        capsules = array.__arrow_c_array__()
        _arrow._Array.from_address(_dlpack.pointer(capsules[1], b"arrow_array")).nulls = -1
        return capsules

    whole = pa.array([None, 1, 2, 3, 4, 5, 6, 7, 8, None])
    assert client.put(Exporter(lambda: uncounted(whole[1:9])), "x").to_numpy().tolist() == list(range(1, 9))
    with pytest.raises(poolbridge.InvalidArgumentError, match="2 nulls"):
        client.put(Exporter(lambda: uncounted(whole)), "y")


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array(["a"]), r"Arrow's format 'u': expected an array of bool, int8"),
        (pa.array([[1]]), r"format '\+l'"),
        (pa.array([1, 1]).dictionary_encode(), "a dictionary"),
        (pa.array([1], pa.timestamp("us")), "format 'tsu:'.*cast it"),
        (pa.record_batch({"a": [1]}), "a dict of a table's columns"),
        (pa.nulls(2), "format 'n'"),
    ],
)
def test_other_arrays_of_arrow_are_an_error_that_says_what_to_do(client, array, text):
    for share in (lambda given: client.put(given, "x"), client.allocate(1, "int64").copy_from):
        with pytest.raises(poolbridge.InvalidArgumentError, match=rf"this Exporter cannot be shared: .*{text}"):
            share(Exporter(array))


@pytest.mark.parametrize("returned", [None, (), (1, 2), "used"])
def test_what_is_no_capsule_of_arrow_is_refused(client, returned):
    if returned == "used":
        returned = pa.array([1]).__arrow_c_array__()
        pa.Array._import_from_c_capsule(*returned)
    with pytest.raises(poolbridge.InvalidArgumentError, match="this Exporter cannot be shared"):
        client.put(Exporter(lambda: returned), "x")
