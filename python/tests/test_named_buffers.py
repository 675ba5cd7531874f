"""Tests buffers of several arrays, which have names."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import hashlib
import random
import struct
from typing import Any

import numpy as np
from msgspec.structs import replace
from realservice import leases, until
from test_hostile_members import LAYOUTS
from test_members import service as service  # noqa: PLC0414 - a fixture
from test_named_arrays import BATCH, same

import poolbridge
from poolbridge._client import digests as _digests
from poolbridge._memory import layout as _layout
from poolbridge._memory.tensor import Description, describe
from poolbridge._wire import packet
from poolbridge._wire.messages import Layout, MetadataEntry, NamedTensor, Tensor

SHAPES: dict[str, Any] = {name: (array.shape, array.dtype) for name, array in BATCH.items()}


def test_a_dict_of_arrays_is_found_by_its_name(client, other):
    with client.put(BATCH, "batch") as kept:
        same(kept)
    lease = other.get("batch")
    same(lease)
    assert (len(lease), lease.keys(), "label" in lease, "lab" in lease) == (5, list(BATCH), True, False)
    assert lease["image"][1, 2].tolist() == [20, 21, 22, 23]
    assert "image: uint8[2, 3, 4], label: int64[2]" in repr(lease)
    same(other.lease(lease.buffer_id, lease.generation))


def test_lists_say_which_buffers_have_several_arrays(client):
    several, one = client.put(BATCH, "batch"), client.put(np.zeros(3), "one")
    for listed in (client.buffers(), client.names()):
        assert [entry.layout_bytes > 0 for entry in listed] == [True, False]
    several.release()
    one.release()


def test_get_dict_returns_arrays_that_keep_the_lease(client, other):
    client.put(BATCH, "batch").release()
    arrays = other.get_dict("batch")
    same(arrays)
    assert all(array.ctypes.data % 256 == 0 for array in arrays.values() if array.size)
    assert not arrays["label"].flags.writeable
    until(lambda: leases(other) == 1)
    one = arrays["label"]
    del arrays
    assert (one.tolist(), leases(other)) == ([7, -7], 1)
    del one
    until(lambda: leases(other) == 0)


@pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")
def test_an_array_of_a_dict_keeps_its_library(client, other):
    torch = pytest.importorskip("torch")
    client.put({"w": torch.ones(2, 3, dtype=torch.bfloat16), "n": np.arange(3)}, "model").release()
    arrays = other.get_dict("model", "torch")
    assert arrays["w"].dtype == torch.bfloat16
    assert arrays["w"].tolist() == [[1.0] * 3] * 2
    assert arrays["n"].tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")
def test_each_tensor_of_a_dict_has_a_storage_of_its_own(client, other):
    torch = pytest.importorskip("torch")
    given = {
        "a": torch.ones(2, 3),
        "none": torch.ones(0, 2),
        "half": torch.ones(4, dtype=torch.half),
        "one": torch.tensor(7.0),
    }
    client.put({**given, "tied": given["a"]}, "model").release()
    for write in (False, True):
        arrays = other.get_dict("model", "torch", write=write)
        assert {name: array.tolist() for name, array in arrays.items()} == {
            "a": [[1.0] * 3] * 2, "none": [], "half": [1.0] * 4, "one": 7.0, "tied": [[1.0] * 3] * 2
        }  # fmt: skip
        assert [array.untyped_storage().nbytes() for array in arrays.values()] == [24, 0, 8, 4, 24]
        assert arrays["a"].data_ptr() == arrays["tied"].data_ptr()
        arrays.pop("a")
        until(lambda: leases(other) == 1)
        del arrays
        until(lambda: leases(other) == 0)


@pytest.mark.parametrize("names", [("bits", "odd", "plain"), ("plain", "odd", "bits"), ("odd", "bits", "plain")])
def test_arrays_of_a_dict_may_have_strides_and_types_that_numpy_lacks(client, other, monkeypatch, names):
    tensors = {
        "bits": Tensor(dtype="bfloat16", shape=(2,)),
        "odd": Tensor(dtype="uint8", shape=(4,), strides=(-2,), offset=6),
        "plain": Tensor(dtype="uint16", shape=(2, 1), offset=4),
    }
    layout = packet.encode(Layout(arrays=tuple(NamedTensor(name, tensors[name]) for name in names)))
    monkeypatch.setattr(_layout, "_encode_parts", lambda *_: _part(layout))
    client.put({"a": np.arange(8, dtype=np.uint8)}, "odd").release()
    arrays = other.get_dict("odd")
    assert list(arrays) == list(names)
    assert arrays["bits"].dtype == np.float32
    assert arrays["odd"].tolist() == [6, 4, 2, 0]
    assert arrays["plain"].tolist() == [[0x504], [0x706]]
    assert not any(arrays[name].flags.writeable for name in ("odd", "plain"))


def test_asyncio_clients_put_and_get_dicts(service):
    async def run():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("p", kind="host", max_bytes="1MiB")
            await (await client.put(BATCH, "batch")).release()
            same(await client.get_dict("batch"))
            async with await client.allocate(SHAPES) as lease:
                assert lease.keys() == list(BATCH)

    asyncio.run(run())


def test_a_buffer_of_several_arrays_is_written_in_place(client, other):
    with client.allocate(SHAPES) as lease:
        for name, array in BATCH.items():
            np.asarray(lease[name])[...] = array
        lease.publish("batch")
    same(other.get_dict("batch"))
    with other.get("batch", write=True, timeout=60) as lease:  # the service may not have the writer's release yet
        np.asarray(lease["label"])[...] += 1
    assert other.get_dict("batch")["label"].tolist() == [8, -6]
    assert other.get_dict("batch", write=True)["label"].flags.writeable


def test_a_name_has_one_array_or_several_and_says_so(client, other):
    client.put(BATCH, "batch").release()
    client.put(BATCH["label"], "one").release()
    with pytest.raises(TypeError, match=r"several arrays, 'image', .*lease\['image'\]"):
        other.get_array("batch")
    with pytest.raises(TypeError, match="one array, not a dict"):
        other.get_dict("one")
    with pytest.raises(poolbridge.InvalidArgumentError, match="library 'pandas' is not known"):
        other.get_dict("batch", "pandas")
    until(lambda: leases(other) == 0)


def test_the_names_and_the_shapes_are_there_before_the_content(client, other):
    lease = client.allocate(SHAPES)
    promise = lease.promise()
    lease.publish("batch")
    found = other.get("batch", timeout=0)
    assert found.keys() == list(BATCH)
    assert found["image"].shape == (2, 3, 4)
    promise.complete()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_tied_arrays_are_stored_once(client, other, kind):
    make = np.ones if kind == "numpy" else pytest.importorskip("torch").ones
    tied = make(1000)
    given = {"embed": tied, "b": make(3), "head": tied, "part": tied[:500], "other": make(1000)}
    lease = client.put(given, "model")
    assert lease.nbytes < 25_000
    found = other.get_dict("model")
    address = {name: array.ctypes.data for name, array in found.items()}
    assert address["embed"] == address["head"]
    assert len(set(address.values())) == 4
    assert all((found[name] == np.asarray(given[name])).all() for name in given)


def test_a_replaced_name_is_the_old_or_the_new_dict(client, other):
    client.put({"a": np.zeros(3), "b": np.zeros(3)}, "model").release()
    old = other.get_dict("model")
    client.put({"b": np.ones(5), "c": np.ones(2)}, "model", replace=True).release()
    new = other.get_dict("model")
    assert {name: array.tolist() for name, array in old.items()} == {"a": [0.0] * 3, "b": [0.0] * 3}
    assert {name: array.tolist() for name, array in new.items()} == {"b": [1.0] * 5, "c": [1.0] * 2}


def test_a_buffer_of_several_arrays_is_sent_as_a_frame_and_used_again(client, other):
    channel, frames = client.create_channel("c", mode="queue", capacity=4), other.subscribe("c")
    for _ in range(20):
        lease = client.allocate(SHAPES)
        for name, array in BATCH.items():
            np.asarray(lease[name])[...] = array
        channel.publish(lease)
        with next(frames) as frame:
            same(frame)
    with client.put(BATCH, "batch") as lease:
        channel.publish(lease)
    same(next(frames))
    lease = client.allocate({str(n): ((), "int8") for n in range(1025)})
    with pytest.raises(poolbridge.InvalidArgumentError, match="1025 arrays in one frame: at most 1024"):
        channel.publish(lease)
    lease["7"].to_numpy()
    lease.release()


@pytest.mark.parametrize("name", ["bits", "wide", "small", "narrow"])
def test_an_array_that_lives_in_a_buffer_keeps_its_element_type_in_a_frame(client, other, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    types = {"bits": "uint16", "wide": "bfloat16", "small": "uint8", "narrow": "float8_e5m2"}
    channel, frames = client.create_channel("c", mode="queue", capacity=4), other.subscribe("c")
    lease = client.allocate({name: (4, dtype) for name, dtype in types.items()})
    bits = np.asarray(lease[name].memoryview())
    channel.publish(bits)
    assert next(frames).dtype_name == types[name]
    alone = np.asarray(client.allocate(4, "uint8"))
    channel.publish(alone.view(ml_dtypes.float8_e5m2))
    assert next(frames).dtype_name == "float8_e5m2"


def test_thousands_of_arrays_are_one_buffer(client, other):
    given = {f"model.layers.{n}.weight": np.full((2, 2), n, "int16") for n in range(3000)}
    client.put(given, "model").release()
    same(other.get_dict("model"), given)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "the dict is empty"),
        ({"": np.zeros(1)}, "the array name '' has 0 bytes"),
        ({"a" * 256: np.zeros(1)}, "256 bytes"),
        ({"a": np.zeros(1), "b": "text"}, "array 'b': "),
        ({"a": {"b": np.zeros(1), 3: np.zeros(1)}}, r"the array name \('a', 3\) is no text"),
        ({"a": {"b": np.zeros(1)}, "a.b": np.zeros(1)}, "two arrays have the name 'a.b'"),
        ({"a": {}}, "the dict is empty"),
        ({"a": np.zeros(1, object)}, "array 'a': dtype object"),
    ],
)
def test_a_wrong_dict_is_refused_and_loses_nothing(client, arrays, text):
    with pytest.raises(poolbridge.InvalidArgumentError, match=text):
        client.put(arrays, "batch")
    assert not client.names()
    assert leases(client) == 0


def test_the_names_of_nested_dicts_and_tuples_are_joined(client, other):
    client.put({"a": {"b": np.ones(1), ("c", "d"): np.ones(2)}, ("e",): np.ones(3), "f/.%": np.ones(4)}, "model")
    sizes = {"a.b": 1, "a.c.d": 2, "e": 3, "f/.%": 4}
    assert {name: array.size for name, array in other.get_dict("model").items()} == sizes
    with client.allocate({"a": {"b": (1, "uint8")}, ("a", "c"): (2, "uint8")}) as lease:
        assert list(lease.keys()) == ["a.b", "a.c"]


class OddName(str):
    """A text that is equal only to itself."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def test_names_are_compared_as_texts(client, other):
    client.put({OddName("a"): np.arange(3)}, "model").release()
    assert other.get_dict("model")["a"].tolist() == [0, 1, 2]
    with pytest.raises(poolbridge.InvalidArgumentError, match="two arrays have the name 'a'"):
        client.allocate({OddName("a"): (3, "int8"), OddName("a"): (4, "int8")})


def test_a_dict_that_the_pool_cannot_have_is_refused_and_loses_nothing(client):
    client.create_pool("small", kind="host", max_bytes="1MiB")
    with pytest.raises(poolbridge.PoolLimitError):
        client.put({str(n): np.zeros(1 << 16) for n in range(3)}, "batch", pool="small")
    assert leases(client) == 0
    same(client.put(BATCH, "batch", pool="small"))


def test_more_names_than_a_layout_can_have_are_refused(monkeypatch):
    whole = _layout.pack([(f"{n:0250}", describe(1, "uint8")) for n in range(300)])
    assert _layout.for_buffer(whole).layout_bytes > 64 << 10
    monkeypatch.setattr(_layout, "MAX_LAYOUT_BYTES", 64 << 10)
    with pytest.raises(poolbridge.InvalidArgumentError, match="300 arrays in one buffer: .*at most 65536"):
        _layout.for_buffer(whole)


METADATA = {"model": "llama", "": "", "long": "ä€😀" * 5000, "k" * 4096: "\0\n", **{f"{n}": "v" for n in range(30)}}


def test_metadata_comes_with_the_arrays(client, other):
    put = client.put(BATCH, "batch", metadata=METADATA)
    allocated = client.allocate(SHAPES, metadata={"revision": "2"})
    assert (put.metadata, allocated.metadata) == (METADATA, {"revision": "2"})
    allocated.publish("other")
    found = other.get("batch")
    same(found)
    assert found.metadata == METADATA
    found.metadata.clear()
    assert other.get("batch").metadata == METADATA
    assert other.get("other", write=False).metadata == {"revision": "2"}
    client.put(BATCH, "none").release()
    assert other.get("none").metadata == {}


def test_metadata_that_is_not_in_the_first_parts_is_ignored():
    array = NamedTensor("a", Tensor(dtype="uint8", shape=(4,)))
    both = _part(packet.encode(Layout(metadata=(MetadataEntry("k", "v"),), arrays=(array,))))
    layout = _said("first", "v") + _said("first", "w") + both + _said("last", "v")
    whole = replace(describe(4 + len(layout), "uint8"), layout_bytes=len(layout))
    assert _layout.decode_buffer(layout, whole).metadata == {"first": "vw"}


def test_versions_with_other_metadata_describe_their_arrays_once(client, other):
    described = []
    for n in range(3):
        client.put(BATCH, "batch", replace=True, metadata={"step": "9" * n}).release()
        described.append(other.get("batch")._lease_state.description.named)
    assert described[0] is described[1] is described[2]


def test_a_name_with_other_metadata_than_expected_is_an_error_and_no_lease(client, other, service):
    client.put(BATCH, "m", metadata={"model": "llama", "revision": "2"}).release()
    client.put(BATCH["label"], "one").release()
    same(other.get_dict("m", expect={"revision": "2"}))
    with other.get("m", expect={"revision": "2", "model": "llama"}, write=True, timeout=60):
        pass
    for name, expect, text in (
        ("m", {"model": "llama", "revision": "1"}, "'revision' of 'm' to be '1', found '2': put"),
        ("m", {"sharding": "1/2"}, "'sharding' of 'm' to be '1/2', found None"),
        ("one", {"model": ""}, "'model' of 'one' to be '', found None"),
    ):
        for get in (other.get, other.get_dict, lambda *args, **kwargs: other.get(*args, write=True, **kwargs)):
            with pytest.raises(poolbridge.MetadataMismatchError, match=text):
                get(name, expect=expect)
    with pytest.raises(poolbridge.InvalidArgumentError, match="expect 7 is no dict of texts"):
        other.get("m", expect=7)
    same(other.get("m"))
    until(lambda: leases(client) == 0)

    async def run():
        async with await poolbridge.connect_async(service.path, timeout=60) as reader:
            async with await reader.get("m", expect={"model": "llama"}) as lease:
                assert lease.metadata == {"model": "llama", "revision": "2"}
            for get in (reader.get, reader.get_dict):
                with pytest.raises(poolbridge.MetadataMismatchError):
                    await get("m", expect={"model": "mistral"})
            until(lambda: leases(client) == 0)

    asyncio.run(run())


def test_a_byte_that_differs_from_its_digest_names_the_array(client, other, monkeypatch):
    monkeypatch.setattr(_digests, "_PIECE", 1000)
    tied = np.arange(100_000, dtype="uint8").reshape(4, -1)
    given = {**BATCH, "tied": tied, "also": tied, "part": tied[1:3, ::2]}
    put = client.put(given, "m", metadata={"model": "llama"}, digests=True)
    put.verify()
    found = other.get("m")
    assert found.metadata == put.metadata
    for name, array in given.items():
        assert found.metadata[f"sha256:{name}"] == hashlib.sha256(array.tobytes()).hexdigest()
    assert found.metadata["model"] == "llama"
    copy = other.get_copy("m")
    for lease in (found, copy):
        lease.verify()
    copy["tied"][3, -1] += 1
    with pytest.raises(
        poolbridge.ContentFailedError, match="array 'tied' has the SHA-256 digest [0-9a-f]{64}, and its"
    ):
        copy.verify()
    found.release()
    with pytest.raises(poolbridge.LeaseReleasedError):
        found.verify()


def test_what_has_no_digests_is_not_verified(client, other):
    client.put(BATCH, "m", metadata={"sha256:label": "00"}).release()
    client.put(np.zeros(3), "one").release()
    for name, text in (("m", "array 'image' has no digest: put"), ("one", "array '' has no digest")):
        with pytest.raises(poolbridge.InvalidArgumentError, match=text):
            other.get(name).verify()
    for wrong, text in ((np.zeros(3), "one array has no metadata and no digests"), ({1: np.zeros(3)}, "is no text")):
        with pytest.raises(poolbridge.InvalidArgumentError, match=text):
            client.put(wrong, "other", digests=True)


def test_asyncio_clients_make_and_verify_digests(service):
    async def run():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("p", kind="host", max_bytes="1MiB")
            async with await client.put(BATCH, "batch", digests=True) as lease:
                await lease.verify()
            async with await client.get("batch", write=True) as lease:
                lease["label"][0] += 1
                with pytest.raises(poolbridge.ContentFailedError, match="array 'label'"):
                    await lease.verify()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"a": 1}, "is no dict of texts"),
        ({1: "a"}, "is no dict of texts"),
        ("ab", "is no dict of texts"),
        (["ab"], "is no dict of texts"),
        (7, "is no dict of texts"),
        ({"a": "\ud800"}, "is no dict of texts"),
        ({"\ud800": "a"}, "is no dict of texts"),
        ({"ä" * 2049: "a"}, "4098 bytes: at most 4096"),
        ({"a": "b" * (33 << 20)}, "5 arrays in one buffer: .* at most 33554432"),
    ],
)
def test_wrong_metadata_is_refused_and_loses_nothing(client, metadata, text):
    for call in (
        lambda: client.put(BATCH, "batch", metadata=metadata),
        lambda: client.allocate(SHAPES, metadata=metadata),
    ):
        with pytest.raises(poolbridge.InvalidArgumentError, match=text):
            call()
    assert (client.names(), leases(client)) == ([], 0)


def test_one_array_has_no_metadata(client):
    for call in (
        lambda: client.put(np.zeros(3), "one", metadata={"a": "b"}),
        lambda: client.allocate(3, metadata={"a": "b"}),
    ):
        with pytest.raises(
            poolbridge.InvalidArgumentError, match="one array has no metadata and no digests: pass a dict"
        ):
            call()
    assert leases(client) == 0


def test_a_frame_of_a_buffer_has_no_metadata(client, other):
    channel, frames = client.create_channel("c", mode="queue", capacity=4), other.subscribe("c")
    for n in range(20):
        lease = client.allocate(SHAPES, metadata={"n": str(n % 10)})
        assert lease.metadata == {"n": str(n % 10)}
        channel.publish(lease)
        with next(frames) as frame:
            assert (frame.keys(), frame.metadata) == (list(BATCH), {})


def _part(layout):
    return struct.pack("<I", len(layout)) + layout


def _said(key, value):
    return _part(packet.encode(Layout(metadata=(MetadataEntry(key, value),), arrays=())))


GOOD = _part(_layout.encode(_layout.pack([("a", describe(4, "uint8"))])))
LIES = [
    *map(_part, LAYOUTS),
    GOOD + GOOD,
    _part(b""),
    b"\0\0\0\0",
    GOOD[:-1],
    GOOD + b"\0",
    GOOD + b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f" + GOOD[4:],
    _said("k", "v"),
    _said("k" * 4097, "v") + GOOD,
    _said("k", "v" * 4097) + GOOD,
    _part(_said("k", "v")[4:].replace(b"\xa1v\xa1v", b"\xa1v\xa1\xff")) + GOOD,
    _part(_said("k", "v")[4:].replace(b"\xa1v\xa1v", b"\xa1v\x07")) + GOOD,
    _part(b"\x82\xa2md\xdd\xff\xff\xff\xff") + GOOD,
    _part(_layout._encode([(f"a{n}", describe(0, "uint8")) for n in range(1025)])),
]


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_wrong_layout_fails_the_lease_and_nothing_else(client, other, lie, monkeypatch):
    monkeypatch.setattr(_layout, "_encode_parts", lambda *_of: lie)
    client.put({"a": np.zeros(16, np.uint8)}, "bad").release()
    monkeypatch.undo()
    client.put(BATCH, "good").release()
    for get in (other.get, other.get_dict):
        with pytest.raises(poolbridge.ContentFailedError, match="has no valid layout"):
            get("bad")
    same(other.get_dict("good"))
    until(lambda: leases(other) == 0)


def _read(layout: bytes, content: Description, monkeypatch: pytest.MonkeyPatch) -> list[Any] | str:
    """Read a layout without the native module."""
    with monkeypatch.context() as patch:
        patch.setattr(_layout, "NATIVE", None)
        try:
            return list(_layout._decode_arrays.__wrapped__(layout, content).named.items())
        except poolbridge.ProtocolError as error:
            return str(error)


def test_a_plain_layout_is_read_as_any_other(monkeypatch):
    tensors = [
        Tensor(dtype="float32"),
        Tensor(dtype="bfloat16", shape=(3, 2), offset=2),
        Tensor(dtype="uint8", shape=(5,), strides=(-2,), offset=8),
        *(Tensor(dtype="int8", shape=(1,) * ndim, offset=200 + ndim) for ndim in (1, 15, 16, 32)),
        *(Tensor(dtype="int16", shape=(0, n), strides=(n, -n), offset=n) for n in (126, 128, 254, 256, 65534, 65536)),
    ]
    named = [NamedTensor(f"{n}" + "x" * size, one) for n, one in enumerate(tensors) for size in (0, 29, 30, 31, 200)]
    layout = b"".join(
        _part(packet.encode(Layout(arrays=tuple(named[at : at + 20])))) for at in range(0, len(named), 20)
    )
    whole = describe(1 << 20, "uint8")
    assert list((_layout._plain(layout, whole) or {}).items()) == _read(layout, whole, monkeypatch)
    small = describe(65536, "uint8")
    assert list((_layout._plain(layout, small) or {}).items()) == _read(layout, small, monkeypatch)
    chance, read = random.Random(7), 0
    for _ in range(4000):
        lie = bytearray(layout[: chance.choice((len(layout), chance.randrange(len(layout))))])
        for _ in range(chance.randrange(1, 3)):
            at = chance.randrange(len(lie) + 1)
            lie[at : at + chance.randrange(3)] = chance.choice((b"", b"\0", b"\xcc\x90", chance.randbytes(1)))
        for described in (whole, small):
            plain = _layout._plain(bytes(lie), described)
            if plain is not None:
                assert list(plain.items()) == _read(bytes(lie), described, monkeypatch)
                read += 1
    assert read > 100


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_no_wrong_layout_is_plain(lie):
    assert _layout._plain(lie, describe(16, "uint8")) is None
