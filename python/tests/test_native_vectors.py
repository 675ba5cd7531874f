"""The files of docs/vectors/streams.json, as the native module reads and writes them."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

from streamservice import LATEST, ROSTER, Channel, description, memfd, meta

from poolbridge import InvalidArgumentError, ProtocolError, _native
from poolbridge._wire.meta import pack_meta, unpack_meta

VECTORS = json.loads((Path(__file__).parents[2] / "docs/vectors/streams.json").read_text(encoding="utf-8"))
TRACKS = [file for file in VECTORS["files"] if "track" in file]
RECORDS = [
    pytest.param(file, record, id=f"{file['name']}, frame {record['number']}")
    for file in TRACKS
    for record in file["track"]["records"]
]
PAGE = 4096
RECORD, DESCRIPTION, META, LAYOUT = 64, 576, 8448, 65536


def image(file, size):
    """Return all bytes of a file, which a vector describes by parts."""
    whole = bytearray(size)
    for run in file["bytes"]:
        part = bytes.fromhex(run["hex"])
        whole[run["at"] : run["at"] + len(part)] = part
    return bytes(whole)


def description_of(record):
    said = record["description"]
    strides = said["strides"] and tuple(said["strides"])
    return description(said["dtype"], tuple(said["shape"]), strides, said["offset"], said["base"], layout_of(record))


def layout_of(record):
    return base64.b64decode(record["description"]["layout"] or "")


def meta_of(record):
    return {entry["key"]: entry["value"] for entry in record["meta"]}


class Members:
    """A channel with the capacity of a vector and one producer, in slot 0; the newest frame has the number `newest`."""

    def __init__(self, file, newest):
        self.channel = Channel(capacity=file["capacity"])
        self.seat = self.channel.prepare(0, producer=True, timeline=1)._replace(member=file["track"]["id"])
        _native.store_u64(self.channel.roster, PAGE + 8, self.seat.member)
        _native.store_u64(self.channel.sequencer, 0, newest << 16)
        if newest:
            _native.store_u64(self.channel.sequencer, 8192 + 8 * (newest % self.channel.slots), newest << 6)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.unmap()


@pytest.mark.parametrize("layout", VECTORS["layouts"], ids=lambda layout: f"capacity {layout['capacity']}")
def test_files_have_the_sizes_of_their_layout_and_no_others(layout):
    channel = Channel(capacity=layout["capacity"])
    producer, consumer = channel.prepare(0, producer=True), channel.prepare(0, producer=False)
    assert (channel.slots, ROSTER) == (layout["slots"], layout["roster"])
    for fd, size in (
        (producer.sequencer, layout["sequencer"]),
        (producer.file, layout["track"]),
        (consumer.file, layout["cursor"]),
    ):
        assert os.fstat(fd).st_size == size
    for kind, seat in ((_native.Producer, producer), (_native.Consumer, consumer)):
        kind(*seat[1:]).close()
        for which in ("roster", "sequencer", "file"):
            larger = memfd("larger", os.fstat(getattr(seat, which)).st_size + PAGE)
            with pytest.raises(ProtocolError):
                kind(*seat._replace(**{which: larger})[1:])
            os.close(larger)
    channel.unmap()


@pytest.mark.parametrize(("file", "record"), RECORDS)
def test_a_consumer_reads_the_records_of_a_track(file, record):
    with Members(file, record["number"]) as members:
        channel = members.channel
        os.pwrite(members.seat.file, image(file, channel.track_size), 0)
        channel.join(0, producer=True)
        seat = channel.prepare(0, producer=False, policy=LATEST)
        consumer = _native.Consumer(*seat[1:])
        consumer.add_track(0, members.seat.member, members.seat.file)
        channel.join(0, producer=False)
        consumer.begin()
        frame = consumer.take(0)
        assert isinstance(frame, _native.Frame), frame
        for field in ("number", "block", "buffer", "time", "word", "value"):
            assert getattr(frame, field) == record[field], field
        assert frame.nbytes == record["bytes"]
        assert frame.producer == members.seat.member
        assert frame.description_id == record["descriptionid"]
        assert (frame.event or b"").hex() == record["event"]
        assert unpack_meta(frame.meta) == meta_of(record)
        said = record["description"]
        strides = None if said["strides"] is None else tuple(said["strides"])
        assert frame.description == (said["dtype"], tuple(said["shape"]), strides, said["offset"])
        assert frame.base == said["base"]
        assert frame.layout == layout_of(record)
        consumer.release(frame.number)
        consumer.close()


@pytest.mark.parametrize(("file", "record"), RECORDS)
def test_a_producer_writes_the_records_of_a_track(file, record):
    number = record["number"]
    with Members(file, number - 1) as members:
        channel, seat = members.channel, members.seat
        producer = _native.Producer(*seat[1:])
        channel.join(0, producer=True)
        published = producer.publish(
            record["block"],
            record["buffer"],
            record["bytes"],
            record["descriptionid"],
            description_of(record),
            meta(meta_of(record)),
            record["word"],
            record["value"],
            bytes.fromhex(record["event"]) or None,
            0,
        )
        assert published == number
        written, expected = os.pread(seat.file, channel.track_size, 0), image(file, channel.track_size)
        at, slots = number % channel.slots, channel.slots
        start = PAGE + RECORD * at
        assert written[start : start + 32] == expected[start : start + 32]
        assert struct.unpack_from("<Q", written, start + 32)[0] > 0, "when it was published"
        assert written[start + 40 : start + RECORD] == expected[start + 40 : start + RECORD]
        start = PAGE + RECORD * slots + DESCRIPTION * at
        assert written[start : start + DESCRIPTION] == expected[start : start + DESCRIPTION]
        start = PAGE + (RECORD + DESCRIPTION) * slots + META * at
        assert written[start : start + META] == expected[start : start + META]
        start = PAGE + (RECORD + DESCRIPTION + META) * slots + LAYOUT * at
        assert written[start : start + LAYOUT] == expected[start : start + LAYOUT]
        producer.close()


def plain(value):
    """Return a value of meta as JSON has it in the vectors."""
    if isinstance(value, bytes):
        return {"$bin": value.hex()}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("vector", VECTORS["meta"], ids=lambda vector: vector["name"])
def test_meta_is_read_as_the_vectors_say(vector):
    packed = bytes.fromhex(vector["hex"])
    with Members(TRACKS[0], 0) as members:
        producer = _native.Producer(*members.seat[1:])
        members.channel.join(0, producer=True)
        arguments = (1, 1, 1, 1, description("uint8", (1,)), packed, 0, 0, None, 0)
        if vector["why"]:
            with pytest.raises(InvalidArgumentError):
                producer.publish(*arguments)
        else:
            assert producer.publish(*arguments) == 1
            value = unpack_meta(packed)
            assert json.dumps(plain(value)) == json.dumps(vector["value"])
            if vector["canonical"]:
                assert pack_meta(value) == packed
        producer.close()
