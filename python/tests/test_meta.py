"""Tests the meta of frames: what can be sent, what comes, and what the errors say."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import datetime as dt
import enum
import types
from decimal import Decimal

import numpy as np
from hypothesis import given, settings, strategies as st
from realservice import RealService

import poolbridge
from poolbridge._wire.meta import pack_meta, unpack_meta


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    LEFT = "left"


@pytest.mark.parametrize(
    ("sent", "comes"),
    [
        ("8", "8"),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
        (0.1, 0.1),
        (True, True),
        (None, None),
        (b"\0\xff", b"\0\xff"),
        ([1, "a", [None]], [1, "a", [None]]),
        ({"x": 1, "y": {"z": []}}, {"x": 1, "y": {"z": []}}),
        ((1, 2), [1, 2]),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (np.float32(5), 5.0),
        (np.float64(0.1), 0.1),
        (np.int64(-7), -7),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.bytes_(b"x"), b"x"),
        ([np.int8(1)], [1]),
        (Level.HIGH, 3),
        (Name.LEFT, "left"),
    ],
)
def test_meta_comes_with_its_types(client, sent, comes):
    channel = client.create_channel("c")
    frames, arrays = client.subscribe("c", oldest=True), client.subscribe("c", oldest=True).arrays()
    channel.publish(np.zeros(4), {"value": sent})
    next(arrays)
    for meta in (frames.receive(60).meta, arrays.meta):
        assert meta == {"value": comes}
        assert type(meta["value"]) is type(comes)


def test_meta_of_one_frame_is_its_own_and_none_is_empty(client):
    channel = client.create_channel("c")
    frames = client.subscribe("c", oldest=True)
    for meta in (None, {}, {"b": 1, "a": 2}):
        channel.publish(np.zeros(4), meta=meta)
    found = [frames.receive(60) for _ in range(3)]
    assert [frame.meta for frame in found] == [{}, {}, {"a": 2, "b": 1}]
    assert found[2].meta is found[2].meta


def nested(depth):
    return [nested(depth - 1)] if depth else 1


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
WIDE: object = 1
for _ in range(7):
    WIDE = [WIDE] * 1000


@pytest.mark.parametrize(
    ("meta", "error"),
    [
        ({"n": 2**64}, r"meta\['n'\] is 18446744073709551616.*64 bits: send str"),
        ({"n": 1, "m": [-(2**63) - 1]}, r"meta\['m'\]\[0\] is .*64 bits"),
        ({"when": dt.datetime.now(dt.UTC)}, r"meta\['when'\] has the type datetime.datetime: expected .*isoformat"),
        ({"c": Color.RED}, r"meta\['c'\] has the type .*Color.*\.value"),
        ({"roi": {"at": [1, {2}]}}, r"meta\['roi'\]\['at'\]\[1\] has the type set.*send list"),
        ({"image": np.zeros(3)}, r"meta\['image'\] has the type numpy.ndarray.*\.tolist\(\)"),
        ({"z": 1j}, r"meta\['z'\] has the type complex.*send str"),
        ({"z": np.complex64(1)}, r"meta\['z'\] has the type numpy.complex64"),
        ({"t": np.datetime64(1, "s")}, r"meta\['t'\] has the type numpy.datetime64"),
        ({"d": Decimal(1)}, r"meta\['d'\] has the type decimal.Decimal.*send float"),
        ({"b": bytearray(2)}, r"meta\['b'\] has the type bytearray.*send bytes"),
        ({5: 1}, r"meta has the key 5, of type int: send str\(key\)"),
        ({"m": {b"k": 1}}, r"meta\['m'\] has the key b'k', of type bytes"),
        ({"s": "\ud800"}, r"meta\['s'\] has surrogates"),
        ({"\ud800": 1}, "has surrogates"),
        ({"s": "x" * 9000}, "meta has 9006 bytes.*at most 8320 bytes.*array"),
        ({"s": [0] * 9000}, r"meta\['s'\]\[8319\] is behind 8320 others"),
        ({"wide": WIDE}, "is behind 8320 others"),
        ({"deep": nested(8)}, "deeper than 8.*flatter"),
        ({"deep": ENDLESS}, "deeper than 8"),
        ("text", r"meta 'text' has no keys.*camera"),
        ([("a", "b")], "has no keys"),
        (0, "has no keys"),
        (
            np.ones(2),
            r"meta array\(\[1., 1.\]\) has no keys.*: publish arrays by channel.publish\(array\), or write .*loan\(\)",
        ),
    ],
)
def test_meta_that_cannot_be_sent_names_the_key_the_type_and_the_cure(client, meta, error):
    channel = client.create_channel("c")
    frames = client.subscribe("c", oldest=True)
    lease = client.allocate(4)
    with pytest.raises(poolbridge.InvalidArgumentError, match=error):
        channel.publish(lease, meta=meta)
    with channel.publisher(4) as publisher:
        array = publisher.loan()
        with pytest.raises(poolbridge.InvalidArgumentError, match=error):
            publisher.publish(meta)
        assert publisher.loan() is array
    assert channel.publish(lease, meta={"fine": [1]}) == 1
    assert frames.receive(60).meta == {"fine": [1]}


def test_asyncio_sends_the_same_meta(service):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("frames", max_bytes=1 << 20)
            channel = await client.create_channel("c")
            frames = client.subscribe("c", oldest=True)
            with pytest.raises(poolbridge.InvalidArgumentError, match=r"meta\['k'\] has the type set"):
                await channel.publish(np.zeros(4), meta={"k": {1}})  # type: ignore[dict-item]
            await channel.publish(np.zeros(4), meta={"k": [1, None]})
            assert (await anext(frames)).meta == {"k": [1, None]}

    asyncio.run(main())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=20))
def test_meta_that_is_accepted_comes_as_it_was(meta):
    try:
        packed = pack_meta(meta)
    except poolbridge.InvalidArgumentError as error:
        assert "deeper than 8" in str(error) or "at most 8320" in str(error)  # noqa: PT017 - most inputs raise none
        return
    assert unpack_meta(packed) == meta
