"""Tests frames of several arrays, which have names."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import copy
import os
import signal
from itertools import pairwise
from typing import Any

import numpy as np
from realservice import leases, until
from test_hostile_members import LAYOUTS
from test_members import service as service  # noqa: PLC0414 - a fixture

import poolbridge
from poolbridge._memory import layout as _layout
from poolbridge._memory.tensor import describe
from poolbridge._session import consumer as _consumer

BATCH: dict[str, Any] = {
    "image": np.arange(24, dtype="uint8").reshape(2, 3, 4),
    "label": np.array([7, -7], "int64"),
    "score": np.float32(0.5),
    "nothing": np.empty((0, 4), "complex128"),
    "büchse.links": np.array([True, False]),
}


def same(arrays, expected=BATCH):
    arrays = dict(arrays)
    assert list(arrays) == list(expected)
    for name, array in arrays.items():
        assert np.asarray(array).dtype == expected[name].dtype
        assert np.array_equal(np.asarray(array), expected[name]), name


@pytest.fixture
def channel(client):
    return client.create_channel("c", mode="queue", capacity=4)


@pytest.fixture
def frames(channel, other):
    return other.subscribe("c")


def test_a_dict_of_arrays_is_one_frame(channel, frames):
    for number in range(1, 21):
        assert channel.publish(BATCH, meta={"n": number}) == number
        with next(frames) as frame:
            assert (frame.meta, len(frame), frame.keys()) == ({"n": number}, 5, list(BATCH))
            assert "label" in frame
            assert "lab" not in frame
            same(frame)
            same(frame.items())
            assert frame["image"][1, 2].tolist() == [20, 21, 22, 23]
            assert frame["score"].to_numpy() == np.float32(0.5)
            assert not np.asarray(frame["label"]).flags.writeable


def test_the_arrays_of_a_frame_keep_its_memory_and_each_is_aligned(channel, frames, other):
    channel.publish(BATCH)
    with next(frames) as frame:
        arrays = {name: np.asarray(array) for name, array in frame.items()}
    addresses = [array.ctypes.data for array in arrays.values()]
    assert all(address % 256 == 0 for address in addresses)
    assert all(first <= second for first, second in pairwise(addresses))
    assert leases(other) == 1
    same(arrays)
    del arrays["image"], arrays["nothing"], arrays["score"], arrays["büchse.links"]
    assert arrays.pop("label").tolist() == [7, -7]
    channel.close()
    frames.close()
    until(lambda: leases(other) == 0)


def test_a_frame_of_several_arrays_is_no_array_and_says_so(channel, frames):
    channel.publish(BATCH)
    frame = next(frames)
    for use in (np.asarray, np.from_dlpack, lambda frame: frame.to_numpy(), lambda frame: frame.memoryview(), bytes):
        with pytest.raises(TypeError, match=r"several arrays, 'image', 'label', .*lease\['image'\]"):
            use(frame)
    with pytest.raises(TypeError, match="several arrays"):
        frame.view()
    with pytest.raises(KeyError, match="no array 'images': there are 'image', 'label'"):
        frame["images"]
    assert "image: uint8[2, 3, 4], label: int64[2]" in repr(frame)
    assert "label: int64[2]" in frame._repr_html_()
    assert "int64[2] on cpu" in repr(frame["label"])


def test_one_array_has_no_names(channel, frames):
    channel.publish(np.arange(3))
    frame = next(frames)
    for use in (dict, lambda frame: frame.keys(), lambda frame: dict(frame.items()), lambda frame: "a" in frame):
        with pytest.raises(TypeError, match="one array"):
            use(frame)
    with pytest.raises(IndexError):
        frame["a"]


def test_a_publisher_lends_a_dict_of_arrays(channel, frames):
    with channel.publisher({name: (array.shape, array.dtype) for name, array in BATCH.items()}) as publisher:
        for _ in range(20):
            arrays = publisher.loan()
            for name, array in BATCH.items():
                arrays[name][...] = array
            publisher.publish()
            with next(frames) as frame:
                same(frame)
        arrays = publisher.loan()
        arrays["label"] += 1
        for change in (
            lambda: arrays.__setitem__("label", np.zeros(2)),
            lambda: arrays.update(label=np.zeros(2)),
            lambda: arrays.pop("label"),
            lambda: arrays.__ior__({"label": np.zeros(2)}),
        ):
            with pytest.raises(TypeError, match=r"loan\['name'\]\[:\] = …"):
                change()
        assert copy.copy(arrays).keys() == arrays.keys()
        assert "image: uint8[2, 3, 4], label: int64[2]" in repr(publisher)


def test_a_publisher_wraps_each_of_its_arrays(channel, frames):
    with channel.publisher({"a": (3, "int16"), "b": ((), "bool")}, wrap=lambda one: np.from_dlpack(one)) as publisher:
        publisher.loan()["a"][:] = 3
        publisher.publish()
    same(next(frames), {"a": np.full(3, 3, "int16"), "b": next(iter([np.array(False)]))})
    with (
        channel.publisher({"a": (3, "int16"), "b": (3, "int16")}, wrap=lambda one: one.to_numpy()) as publisher,
        pytest.raises(poolbridge.InvalidArgumentError, match="no array of the lease's memory"),
    ):
        publisher.loan()


def test_arrays_yields_dicts_that_the_program_may_change(channel, frames):
    got = frames.arrays()
    for number in range(20):
        channel.publish({"number": np.array([number]), "same": BATCH["image"]})
        batch = next(got)
        assert type(batch) is dict
        assert batch.pop("number").tolist() == [number]
        assert np.array_equal(batch["same"], BATCH["image"])
        batch["same"] = None


def test_arrays_finds_the_arrays_of_each_frame_though_the_layouts_change(channel, frames):
    got = frames.arrays()
    for number in range(30):
        sent = {f"array {k}": np.full(k + 1, number + k, "int32") for k in range(number % 3 + 1)}
        channel.publish(sent)
        same(next(got), sent)
        channel.publish(np.array([number]))
        assert next(got).tolist() == [number]


def test_arrays_tells_layouts_of_the_same_size_apart(channel, frames):
    got, generator = frames.arrays(), np.random.default_rng(7)
    sizes = {"int32": 4, "float32": 4, "float64": 2, "int8": 16, "complex128": 1}
    for number in range(120):
        dtype = generator.choice(list(sizes))
        array = np.full(sizes[dtype], number, dtype)
        given = {str(generator.choice(["a", "b"])): array} if generator.integers(4) else array
        channel.publish(given)
        taken = next(got)
        assert type(taken) is type(given)
        same(taken if type(given) is dict else {"": taken}, given if type(given) is dict else {"": array})


def test_a_wrap_that_copies_one_of_the_arrays_gets_that_of_each_frame(channel, frames):
    got = frames.arrays(lambda view: np.asarray(view, "float32"))
    for number in range(10):
        channel.publish({"x": np.full(3, number, "float32"), "label": np.full(3, number)})
        batch = next(got)
        assert batch["x"].tolist() == batch["label"].tolist() == [number] * 3


def test_a_mapping_that_makes_its_arrays_is_read_once(channel, frames):
    class Lazy(dict):
        def __getitem__(self, name):
            self.reads = getattr(self, "reads", 0) + 1
            return np.full(self.reads, self.reads, "int16")

    channel.publish(Lazy(a=None, b=None))
    same(next(frames), {"a": np.ones(1, "int16"), "b": np.full(2, 2, "int16")})


def test_the_arrays_that_a_consumer_keeps_are_limited_though_the_layouts_change(channel, frames, monkeypatch):
    monkeypatch.setattr(_consumer, "_MOST_ARRAYS", 64)
    got = frames.arrays()
    for number in range(60):
        sent = {f"{k}": np.full(k + number, number) for k in range(20)}
        channel.publish(sent)
        same(next(got), sent)
        assert frames._consumer._kept_arrays <= 64


def test_a_frame_is_sent_on_as_it_is(client, channel, frames, other):
    onward = other.create_channel("onward")
    copies = client.subscribe("onward")
    channel.publish(BATCH)
    with next(frames) as frame:
        onward.publish(frame)
        same(next(copies))
        onward.publish(frame["label"])
        assert np.asarray(next(copies)).tolist() == [7, -7]
        onward.publish({"one": frame["image"]})
        same(next(copies), {"one": BATCH["image"]})
        other.put(frame, "name")
    same(client.get("name"))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "the dict is empty"),
        ({"": np.zeros(1)}, "the array name '' has 0 bytes"),
        ({"a" * 256: np.zeros(1)}, "256 bytes"),
        ({"a\n": np.zeros(1)}, "control character"),
        ({3: np.zeros(1)}, "the array name 3 is no text"),
        ({"a": np.zeros(1), "b": "text"}, "array 'b': "),
        ({"a": {"b": "text"}}, "array 'a.b': "),
        ({"a": np.zeros(1, object)}, "array 'a': dtype object .* byte order$"),
        ({"a": np.zeros(1, ">i4")}, "array 'a': .*; or share their bytes as uint8"),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, "array 'a': .*mask"),
        ({f"array {n}": np.zeros(1) for n in range(1025)}, "1025 arrays in one frame: at most 1024"),
        ({f"{n:0250}": np.zeros(1) for n in range(300)}, "300 arrays in one frame: .*at most 65536 bytes"),
    ],
)
def test_what_cannot_be_a_frame_is_refused_and_nothing_is_lost(client, channel, frames, arrays, text):
    with pytest.raises(poolbridge.InvalidArgumentError, match=text):
        channel.publish(arrays)
    assert leases(client) == 0
    channel.publish(BATCH)
    same(next(frames))


@pytest.mark.parametrize("arrays", [{}, {"a": 3}, {"a": (3, "nothing")}, {"a": (-1, "int8")}, {3: (1, "int8")}])
def test_a_publisher_of_what_cannot_be_a_frame_is_refused(channel, arrays):
    with pytest.raises(poolbridge.InvalidArgumentError):
        channel.publisher(arrays)


def test_a_frame_larger_than_its_pool_is_refused(client):
    pool = client.create_pool("small", max_bytes=4096)
    channel = client.create_channel("c", pool=pool)
    with pytest.raises(poolbridge.PoolLimitError):
        channel.publish({"a": np.zeros(2048, "uint8"), "b": np.zeros(4096, "uint8")}, timeout=0)


def test_the_most_arrays_of_a_frame_arrive(channel, frames):
    arrays = {f"{number}": np.array([number], "int16") for number in range(1024)}
    channel.publish(arrays)
    with next(frames) as frame:
        same(frame, arrays)


def test_an_array_of_a_published_frame_is_not_published_again(channel, frames, client):
    lease = client.allocate(4, "int32")
    array = np.asarray(lease)
    channel.publish(lease)
    with pytest.raises(poolbridge.LeaseReleasedError, match="published before"):
        channel.publish({"again": array})
    next(frames).release()


def test_asyncio_sends_and_receives_several_arrays(service):
    async def main():
        async with await poolbridge.connect_async(service.path) as client:
            await client.create_pool("p", max_bytes=1 << 20)
            channel = await client.create_channel("c", mode="queue")
            frames = client.subscribe("c")
            await channel.publish(BATCH)
            async with await anext(frames) as frame:
                same(frame)
            publisher = channel.publisher({"a": (3, "int16")})
            (await publisher.loan())["a"][:] = 1
            await publisher.publish()
            async for arrays in frames.arrays():
                same(arrays, {"a": np.ones(3, "int16")})
                break

    asyncio.run(main())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_that_lies_is_refused(layout):
    with pytest.raises(poolbridge.ProtocolError):
        _layout.decode(layout, describe(16, "uint8"))


def test_a_layout_is_of_all_bytes_of_a_frame():
    sent = _layout.encode(_layout.pack([("a", describe(4, "uint8"))]))
    assert _layout.decode(sent, describe(4, "uint8")).named["a"].shape == (4,)
    for whole in (describe(3, "uint8"), describe((2, 2), "uint8"), describe(4, "int8")):
        with pytest.raises(poolbridge.ProtocolError):
            _layout.decode(sent, whole)


def test_a_notebook_shows_hostile_names_as_text_also_while_the_service_is_stopped_and_after_the_end(service):
    hostile = "<script>alert('x')</script>"
    with poolbridge.connect(service.path, timeout=60) as client:
        pool = client.create_pool(hostile, max_bytes=1 << 20)
        channel = client.create_channel(hostile)
        frames = client.subscribe(channel)
        channel.publish({hostile: np.zeros(2), "b": np.zeros(3)}, meta={hostile: hostile})
        frame: Any = frames.receive(60)
        shown: list[Any] = [client, pool, channel, frame, client.put({hostile: np.zeros(3)}, hostile)]
        os.kill(service.process.pid, signal.SIGSTOP)
        try:
            texts = [one._repr_html_() for one in shown]
        finally:
            os.kill(service.process.pid, signal.SIGCONT)
    texts += [one._repr_html_() for one in shown]
    assert all("<script" not in text and "&lt;script&gt;" in text for text in texts)
    assert "<td>closed</td>" in texts[5]
    assert "released</td>" in texts[8]


def test_what_has_a_natural_length_says_it(channel, frames):
    channel.publish(BATCH)
    frame = next(frames)
    assert (len(frame), len(frame.items()), len(frame["image"])) == (5, 5, 2)
    endless: Any
    for endless in (channel, frames, frames.arrays()):
        with pytest.raises(TypeError):  # tqdm then shows no total
            len(endless)
