"""Tests DLPack, NumPy's protocols and copies in detail, with memory of the CPU."""

from __future__ import annotations

import ctypes
import math
import sys
import tracemalloc
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import poolbridge
from poolbridge._array import sources as _sources
from poolbridge._memory import tensor as _tensor
from poolbridge._memory.dlpack import _Managed, _Versioned, pointer, read_tensor
from poolbridge._memory.tensor import ELEMENT_TYPES

# Another test may have imported PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore:.*PyTorch:poolbridge.ReadOnlyWarning")
IN_NUMPY = [name for name, element in ELEMENT_TYPES.items() if element.in_numpy]


@dataclass
class Seen:
    """The content of a DLPack capsule, as a consumer reads it. The object keeps the capsule alive."""

    capsule: object
    data: int | None
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: list[int]
    strides: list[int]
    version: tuple[int, int] | None = None
    flags: int | None = None


def entries(address: int | None, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if address and count else []


def look(capsule: object) -> Seen:
    versioned = "dltensor_versioned" in repr(capsule)
    managed: Any
    if versioned:
        managed = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
    else:
        managed = _Managed.from_address(pointer(capsule, b"dltensor"))
    tensor = managed.tensor
    assert tensor.byte_offset == 0
    seen = Seen(
        capsule,
        tensor.data,
        (tensor.device.type, tensor.device.id),
        (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        entries(tensor.shape, tensor.ndim),
        entries(tensor.strides, tensor.ndim),
    )
    if versioned:
        seen.version, seen.flags = (managed.major, managed.minor), managed.flags
    return seen


def strided(client, tensor, service, nbytes=64):
    """Return a lease with the description `tensor`, which is set in the service because no client can set it."""
    lease = client.allocate(nbytes, "uint8")
    lease.publish("strided", replace=True)
    buffer = service.buffers[lease.buffer_id]
    lease.release()
    service.wait(lambda: not service.leases)  # the service compares what a client says of a lease at its end
    buffer.tensor = tensor
    return client.get("strided", write=True)


@pytest.mark.parametrize("name", ELEMENT_TYPES)
@pytest.mark.parametrize("versioned", [True, False])
def test_every_element_type_in_a_capsule(client, name, versioned):
    lease = client.allocate((2, 3), name)
    seen = look(lease.__dlpack__(max_version=(1, 1) if versioned else None))
    element = ELEMENT_TYPES[name]
    assert seen.dtype == (element.code, element.bits, 2 if name == "float4_e2m1fn_x2" else 1)
    assert seen.device == lease.__dlpack_device__() == (1, 0)
    assert (seen.shape, seen.strides) == ([2, 3], [3, 1])
    assert seen.data == lease._evidence()["pointer"]
    assert (seen.version, seen.flags) == (((1, 0), 0) if versioned else (None, None))


@pytest.mark.parametrize("name", IN_NUMPY)
def test_every_element_type_through_numpy(client, name):
    lease = client.allocate((3, 2), name)
    assert lease.dtype == np.dtype(name)
    array = np.from_dlpack(lease)
    assert array.dtype == np.dtype(name)
    array[:] = 1
    assert np.asarray(lease).tolist() == array.tolist()
    assert np.asarray(lease.view()).ctypes.data == array.ctypes.data
    assert bytes(lease.memoryview()) == array.tobytes()


def test_bfloat16_without_numpy(client):
    lease = client.allocate(4, "bfloat16")
    assert (lease.dtype_name, lease.itemsize, lease.nbytes) == ("bfloat16", 2, 8)
    with pytest.raises(TypeError, match="dtype_name"):
        _ = lease.dtype
    for dtype in (None, np.float32, np.uint16):
        with pytest.raises(TypeError, match="bfloat16"):
            np.asarray(lease, dtype)
    assert not hasattr(lease.view(), "__array_interface__")
    lease.copy_from(np.array([1.0, -2.5, np.nan, 3.0 + 2**-9], np.float32))
    assert lease.memoryview().tolist() == [0x3F80, 0xC020, 0x7FC0, 0x4040]
    assert lease.to_numpy().dtype == np.float32
    assert lease.to_numpy()[:2].tolist() == [1.0, -2.5]
    lease.copy_from([np.inf, -np.inf, 0.0, 1e-40])
    assert lease.to_numpy()[:3].tolist() == [np.inf, -np.inf, 0.0]
    with pytest.raises(TypeError):
        lease.copy_from(np.zeros(4, np.complex64))
    seen = look(lease.__dlpack__(max_version=(1, 0), copy=True))
    assert (seen.dtype, seen.flags) == ((4, 16, 1), 2)


def test_a_scalar(client):
    lease = client.allocate((), "float64")
    assert (lease.shape, lease.strides, lease.ndim, lease.size, lease.nbytes) == ((), (), 0, 1, 8)
    np.asarray(lease)[()] = 2.5
    assert float(np.from_dlpack(lease)) == 2.5
    assert lease.to_numpy().shape == ()
    lease = client.allocate((), "bfloat16")
    lease.copy_from(np.float32(2.5))
    copy = lease.to_numpy()
    copy[()] += 1
    assert (copy.dtype, copy.tolist()) == (np.float32, 3.5)
    assert client.allocate(7).shape == (7,)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (2, 0, 4)])
def test_axes_of_no_length(client, shape):
    lease = client.allocate(shape, "int16")
    assert (lease.shape, lease.size, lease.nbytes) == (shape, 0, 0)
    assert np.asarray(lease).shape == np.from_dlpack(lease).shape == shape
    for max_version in (None, (1, 0)):
        assert look(lease.__dlpack__(max_version=max_version)).data is None
    lease.copy_from(np.empty(shape, np.int16))
    assert lease.to_numpy().shape == shape
    lease.publish("empty")
    lease.release()
    assert client.get("empty").shape == shape


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((3, 4), (1, 3), 0), ((4,), (-2,), 12), ((2, 3), (0, 1), 4), ((2, 2), (8, 3), 2), ((1, 1), (100, 7), 0)],
)
def test_strides(service, client, shape, strides, offset):
    tensor = poolbridge._wire.messages.Tensor(dtype="int16", shape=shape, strides=strides, offset=offset)
    lease = strided(client, tensor, service)
    assert lease.strides == tuple(stride * 2 for stride in strides)
    array = np.asarray(lease)
    assert (array.shape, array.strides) == (shape, lease.strides) or 1 in shape
    assert array.ctypes.data == lease._lease_state.memory.address(write=True) + offset
    array[:] = np.arange(array.size).reshape(shape)
    assert np.from_dlpack(lease).tolist() == array.tolist() == lease.to_numpy().tolist()
    assert lease.to_numpy().flags.c_contiguous
    lease.copy_from(5)
    assert set(array.reshape(-1).tolist()) == {5}
    assert look(lease.__dlpack__(dl_device=None)).strides == list(strides) or 1 in shape


def test_read_only_is_said_where_it_can_be(client):
    client.allocate(4).publish("x")
    lease = client.get("x")
    seen = look(lease.__dlpack__(max_version=(1, 0)))
    assert (seen.version, seen.flags) == ((1, 0), 1)
    assert not np.from_dlpack(lease).flags.writeable
    for max_version in (None, (0, 8)):
        with pytest.raises(BufferError, match="view\\(legacy=True\\)"):
            lease.__dlpack__(max_version=max_version)
    seen = look(lease.view(legacy=True).__dlpack__())
    assert seen.version is None
    assert seen.data == lease._evidence()["pointer"]


def test_the_newest_version_offered_is_ours(client):
    lease = client.allocate(4)
    assert look(lease.__dlpack__(max_version=(2, 0))).version == (1, 0)
    assert look(lease.__dlpack__(max_version=(1, 9))).version == (1, 0)
    assert look(lease.__dlpack__(max_version=(0, 9))).version is None


def test_copies(client):
    lease = client.allocate(4, "int32")
    lease.copy_from([1, 2, 3, 4])
    lease.publish("x")
    for options in ({}, {"max_version": (1, 0)}):
        seen = look(lease.__dlpack__(copy=True, **options))
        assert seen.data not in {None, lease._evidence()["pointer"]}
        assert list((ctypes.c_int32 * 4).from_address(seen.data)) == [1, 2, 3, 4]
        assert seen.flags == (2 if seen.version else None)
        assert lease.array_count == 0
    copy = np.from_dlpack(lease, copy=True)
    copy[0] = 9
    assert lease.to_numpy()[0] == 1
    assert np.from_dlpack(lease, copy=False).ctypes.data == lease._evidence()["pointer"]
    assert np.from_dlpack(lease, device="cpu").ctypes.data == lease._evidence()["pointer"]
    lease.release()
    assert copy.tolist() == [9, 2, 3, 4]


def test_devices(client):
    lease = client.allocate(4)
    lease.__dlpack__(dl_device=(1, 0), copy=False)
    for device in ((2, 0), (3, 0), (8, 1)):
        with pytest.raises(BufferError):
            lease.__dlpack__(dl_device=device)


@pytest.mark.parametrize("stream", [0, 1, 2, -1, 1 << 40])
def test_the_cpu_has_no_streams(client, stream):
    with pytest.raises(ValueError, match="stream must be None"):
        client.allocate(4).__dlpack__(stream=stream)


def test_array_honours_dtype_and_copy(client):
    lease = client.allocate(4, "int32")
    lease.copy_from([1, 2, 3, 4])
    pointer = lease._evidence()["pointer"]
    assert np.array(lease, copy=True).ctypes.data != pointer
    assert np.array(lease, copy=False).ctypes.data == pointer
    assert np.asarray(lease, np.float64).tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="without a copy"):
        np.array(lease, np.float64, copy=False)
    assert not hasattr(lease, "__cuda_array_interface__")
    assert (lease.to_numpy() + lease).tolist() == [2, 4, 6, 8]


def test_copy_from_casts_and_broadcasts_as_numpy_does(client):
    lease = client.allocate((2, 3), "float32")
    lease.copy_from(np.arange(3))
    assert lease.to_numpy().tolist() == [[0, 1, 2]] * 2
    lease.copy_from(lease.to_numpy().astype(np.float64) * 2)
    assert lease.to_numpy()[1].tolist() == [0, 2, 4]
    lease.copy_from(client.allocate((2, 3), "float32"))
    with pytest.raises(poolbridge.InvalidArgumentError, match="does not fit"):
        lease.copy_from(np.zeros((3, 2)))
    with pytest.raises(TypeError):
        lease.copy_from(np.zeros((2, 3), np.complex128))

    lease.copy_from(OnlyDLPack(lambda: np.full((2, 3), 8, np.float32)))
    assert lease.to_numpy()[1, 2] == 8


class OnlyDLPack:
    """An array that has DLPack only. `make` makes its elements anew for each capsule."""

    def __init__(self, make):
        self.make = make

    def __dlpack__(self, **options):
        return self.make().__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


def patterns(name):
    """Return elements of a type as bytes, one row for each element. They have every NaN of types of at most 16 bits."""
    itemsize = ELEMENT_TYPES[name].itemsize
    if name == "bool":
        return np.array([[0], [1]] * 128, np.uint8)
    rows = np.arange(65536 if itemsize == 2 else 256, dtype="<u2").view(np.uint8).reshape(-1, 2)
    nans = np.tile(np.frombuffer(b"\x01\x00\xa0\x7f\x01\x00\xf0\xff", np.uint8), (len(rows), 2))
    nans[:, :2] = rows
    return nans[:, :itemsize]


def fill(lease, name):
    """Set the elements of a lease to `patterns`, and return their bytes."""
    rows = np.ascontiguousarray(patterns(name))
    np.asarray(lease.memoryview()).reshape(-1).view(np.uint8)[:] = rows.reshape(-1)
    return rows.tobytes()


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_a_copy_between_equal_types_copies_the_bits(service, client, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # no conversion is needed
    itemsize = ELEMENT_TYPES[name].itemsize
    tensor = poolbridge._wire.messages.Tensor(dtype=name, shape=(2, 5), strides=(1, 3), offset=itemsize)
    turned = strided(client, tensor, service, 16 * itemsize)
    shape = (2, len(patterns(name)) // 2)
    source, copy = client.allocate(shape, name), client.allocate(shape, name)
    expected = fill(source, name)
    for form in (source, source.view()):
        np.asarray(copy.memoryview()).fill(0)
        copy.copy_from(form)
        assert bytes(copy.memoryview()) == expected
        with client.put(form, "copy", replace=True) as put:
            assert bytes(put.memoryview()) == expected
    rows = np.asarray(turned.memoryview())
    rows[:] = np.asarray(source.memoryview())[:, -5:]
    for form in (turned, OnlyDLPack(lambda: turned)):
        with client.allocate((2, 5), name) as small:
            small.copy_from(form)
            assert bytes(small.memoryview()) == rows.tobytes()
    with client.allocate((3, 2, 5), name) as wide:
        wide.copy_from(turned)
        assert bytes(wide.memoryview()) == rows.tobytes() * 3
    del rows


@pytest.mark.parametrize("way", ["copy_from", "put"])
def test_a_copy_of_a_strided_array_that_has_only_dlpack_takes_no_memory_for_the_gaps(client, way):
    apart = np.zeros(256 << 20, np.uint8)[:: 32 << 20]
    apart[:] = range(len(apart))
    lease = client.allocate(apart.shape, "uint8")
    copy = {"copy_from": lease.copy_from, "put": partial(client.put, name="copy")}[way]
    tracemalloc.start()
    try:
        copied = copy(OnlyDLPack(lambda: apart)) or lease
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert copied.to_numpy().tolist() == apart.tolist()


def test_elements_that_dlpack_makes_for_its_capsule_live_until_they_are_copied(client):
    def make():
        memory = np.full(8, 7, np.uint8)
        array = memory[:]
        weakref.finalize(array, memory.fill, 0)
        return array

    with client.allocate(8, "uint8") as lease:
        lease.copy_from(OnlyDLPack(make))
        assert lease.to_numpy().tolist() == [7] * 8
    with client.put(OnlyDLPack(make), "made") as lease:
        assert lease.to_numpy().tolist() == [7] * 8


def test_bfloat16_is_copied_by_its_values(client):
    lease = client.allocate(3, "bfloat16")
    lease.copy_from([1.5, -2.0, 3.0])
    for dtype in ("bfloat16", "float32", "float64"):
        copy = client.allocate(3, dtype)
        for source in (lease, lease.view()):
            copy.copy_from(0)
            copy.copy_from(source)
            assert copy.to_numpy().tolist() == [1.5, -2.0, 3.0]


FLOATS8 = [name for name in ELEMENT_TYPES if name.startswith("float8")]


@pytest.mark.parametrize("name", FLOATS8)
def test_8_bit_floats_are_copied_by_their_values(client, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1, 2, 0.5, 4], np.float32)
    lease = client.allocate(4, name)
    lease.copy_from(values.astype(getattr(ml_dtypes, name)))
    assert lease.dtype_name == name
    assert lease.to_numpy().tolist() == values.tolist()
    for dtype in (name, "bfloat16", "float32", "float8_e5m2"):
        copy = client.allocate(4, dtype)
        for source in (lease, lease.view(), lease.to_numpy()):
            copy.copy_from(0)
            copy.copy_from(source)
            assert copy.to_numpy().tolist() == values.tolist()
    for other in (*FLOATS8, "bfloat16", "float8_e4m3b11fnuz", "int4"):
        lease.copy_from(np.array([1, 2, 1, 4], np.float32).astype(getattr(ml_dtypes, other)))
        assert lease.to_numpy().tolist() == [1, 2, 1, 4]
    with pytest.raises(TypeError, match="complex64 cannot become"):
        lease.copy_from(np.zeros(4, np.complex64))


@pytest.mark.parametrize("name", FLOATS8)
def test_an_array_of_8_bit_floats_keeps_its_type_and_its_bits(client, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(0x38, 0x40, dtype=np.uint8)
    array = bits.view(getattr(ml_dtypes, name)).reshape(2, 4)
    client.put(array.T, "bits").release()
    with client.get("bits") as lease:
        assert (lease.dtype_name, lease.shape) == (name, (4, 2))
        assert bytes(lease.memoryview()) == bits.reshape(2, 4).T.tobytes()
        assert read_tensor(lease.__dlpack__(max_version=(1, 0))).name == name


def test_pairs_of_4_bit_floats_are_shared_by_their_bytes(client):
    lease = client.allocate((2, 3), "float4_e2m1fn_x2")
    bits = np.arange(0x20, 0x26, dtype=np.uint8).reshape(2, 3)
    lease.view(dtype="uint8").copy_from(bits)
    seen = look(lease.__dlpack__(max_version=(1, 0)))
    assert (seen.dtype, seen.shape, lease.nbytes) == ((17, 4, 2), [2, 3], 6)
    with client.put(OnlyDLPack(lambda: lease), "pairs") as put:
        assert (put.dtype_name, put.shape, bytes(put.memoryview())) == ("float4_e2m1fn_x2", (2, 3), bits.tobytes())
    values = client.allocate((2, 3), "float32")
    for convert in (lease.to_numpy, lambda: lease.copy_from(bits), lambda: values.copy_from(lease)):
        with pytest.raises(TypeError, match=r'2 numbers, .*view\(dtype="uint8"\)'):
            convert()
    lease.publish("published")
    with pytest.raises(TypeError, match="2 numbers"):
        client.get_array("published")


@pytest.mark.parametrize("name", [name for name in ELEMENT_TYPES if name not in IN_NUMPY])
def test_a_library_that_lacks_a_type_gets_its_bits_in_place(client, name):
    lease = client.allocate((2, 3), name)
    way = f"uint{8 * lease.itemsize}"
    with pytest.raises(BufferError, match=rf'NumPy has no {name} .*view\(dtype="{way}"\)'):
        np.from_dlpack(lease)
    bits = lease.view(dtype=way)
    assert (bits.dtype_name, bits.shape, bits.view().dtype_name) == (way, (2, 3), way)
    for array in (np.from_dlpack(bits), np.asarray(bits)):
        array[:] = 0x38
        assert (bits.to_numpy() == 0x38).all()
        assert array.ctypes.data == lease._evidence()["pointer"]
    assert bits.view(dtype=name).dtype_name == name
    with pytest.raises(poolbridge.InvalidArgumentError, match=f"{name} have {lease.itemsize} bytes, and .*float64 8: "):
        lease.view(dtype="float64")


@pytest.mark.parametrize(
    ("shape", "flags", "found"),
    [((2, 6), 0, (2, 3)), ((0, 4), 0, (0, 2)), ((2, 3), 0, None), ((), 0, None), ((2, 6), 4, None)],
)
def test_4_bit_floats_that_jax_packs_become_pairs(client, shape, flags, found):
    class Packed:
        dtype = "float4_e2m1fn"

        def __dlpack__(self, **options):
            capsule = np.arange(0x20, 0x20 + math.prod(shape), dtype=np.uint8).reshape(shape).__dlpack__(**options)
            managed = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
            managed.flags |= flags
            managed.tensor.dtype.code, managed.tensor.dtype.bits = 17, 4
            return capsule

        def __dlpack_device__(self):
            return (1, 0)

    if found is None:
        with pytest.raises(poolbridge.InvalidArgumentError, match="expected an even last axis"):
            client.put(Packed(), "packed")
    else:
        with client.put(Packed(), "packed") as lease:
            assert (lease.dtype_name, lease.shape) == ("float4_e2m1fn_x2", found)
            assert bytes(lease.memoryview()) == bytes(range(0x20, 0x20 + math.prod(found)))


def test_without_ml_dtypes_8_bit_floats_are_shared_and_not_converted(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    lease = client.allocate(2, "float8_e4m3fn")
    np.asarray(lease.memoryview())[:] = 0x38
    for convert in (lease.to_numpy, lambda: lease.copy_from(1)):
        with pytest.raises(poolbridge.UnavailableError, match="pip install ml_dtypes"):
            convert()
    assert lease.memoryview().tolist() == [0x38, 0x38]


def test_copy_from_page_locked_memory_of_another_library(client):
    class PageLocked:
        """An array that behaves like an array of PyTorch: it names its device, and accepts no stream for CPU memory."""

        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

        def __dlpack__(self, *, stream=None, **options):
            assert stream is None
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return (3, 0)

    lease = client.allocate(3, "float32")
    lease.copy_from(PageLocked(np.array([1, 2, 3], np.float32)))
    assert lease.to_numpy().tolist() == [1, 2, 3]


def test_what_cannot_be_shared_is_said(client):
    class Tiny:
        def __dlpack__(self, **options):
            capsule = np.zeros(3, np.uint8).__dlpack__(max_version=(1, 0))
            _Versioned.from_address(pointer(capsule, b"dltensor_versioned")).tensor.dtype.code = 9
            return capsule

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(poolbridge.InvalidArgumentError, match="DLPack type 9 with 8 bits"):
        _sources.source_of(Tiny())


def test_every_call_refuses_a_capsule_that_was_used_before(client):
    class Once:
        def __init__(self):
            self.capsule = np.zeros(4, np.float32).__dlpack__()

        def __dlpack__(self, **options):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    used = Once()
    np.from_dlpack(used)
    lease = client.allocate(4, "float32")
    for call in (lease.copy_from, partial(client.put, name="used")):
        with pytest.raises(poolbridge.InvalidArgumentError, match="used before"):
            call(used)


def test_the_token_adds_no_reference_to_the_array(client):
    lease = client.allocate(4)
    array = np.asarray(lease)
    assert sys.getrefcount(array) == 2


shapes = st.lists(st.integers(0, 5), max_size=4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(shape=shapes, name=st.sampled_from(sorted(IN_NUMPY)), data=st.data())
def test_whatever_goes_in_comes_out(client, shape, name, data):
    with client.allocate(shape, name) as lease:
        count = lease.nbytes
        raw = data.draw(st.binary(min_size=count, max_size=count))
        source = np.frombuffer(bytes(byte & 1 for byte in raw) if name == "bool" else raw, name).reshape(shape)
        lease.copy_from(source)
        for result in (lease.to_numpy(), np.from_dlpack(lease), np.asarray(lease)):
            assert (result.shape, result.dtype) == (tuple(shape), np.dtype(name))
            assert result.tobytes() == source.tobytes()
            del result


@settings(max_examples=300)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    data=st.data(),
    offset=st.integers(0, 40),
    nbytes=st.integers(0, 200),
)
def test_a_description_is_accepted_exactly_if_every_element_lies_inside(shape, data, offset, nbytes):
    strides = data.draw(st.lists(st.integers(-20, 20), min_size=len(shape), max_size=len(shape)))
    tensor = poolbridge._wire.messages.Tensor(dtype="int16", shape=tuple(shape), strides=tuple(strides), offset=offset)
    if shape:
        starts = [offset + 2 * sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    else:
        starts = [offset]
    inside = offset % 2 == 0 and all(start >= 0 and start + 2 <= nbytes for start in starts)
    if not starts:
        inside = offset % 2 == 0 and offset <= nbytes
    try:
        description = _tensor.from_wire(tensor, nbytes)
    except poolbridge.ProtocolError:
        assert not inside
    else:
        assert inside
        assert description.to_wire().shape == tuple(shape)
        array = np.ndarray(shape, np.int16, bytes(nbytes), offset, description.strides) if starts else None
        if array is not None:
            assert description.contiguous == array.flags.c_contiguous
