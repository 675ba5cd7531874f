"""Lists of what a service has."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pytest
from realservice import POOLSVC, RealService, until

import poolbridge

PAGE = 64


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


def test_lists_of_every_length_are_whole(service, client):
    client.create_pool("p", kind="host", max_bytes="16MiB")
    count = 2 * PAGE + 3
    for number in range(count):
        with client.allocate(4, "int16") as lease:
            lease.publish(f"{number:04}", keep=number == 0)
    names = client.names()
    assert [one.name for one in names] == [f"{number:04}" for number in range(count)]
    assert names[0].session is None
    assert names[1].session is not None
    assert {(one.dtype_name, one.shape, one.nbytes) for one in names} == {("int16", (4,), 8)}
    assert len({one.id for one in client.buffers()}) == count


def test_the_lists_say_who_holds_what(service, client):
    client.create_pool("p", kind="host", max_bytes="1MiB")
    lease = client.allocate((2, 3), "float32")
    (buffer,) = client.buffers()
    me = next(one for one in client.sessions() if one.pid == os.getpid())
    assert buffer.writer == me.id
    assert buffer.shape == (2, 3)
    lease.publish("x")
    with poolbridge.connect(service.path) as other, other.get("x"):
        (buffer,) = client.buffers()
        assert buffer.writer is None
        assert buffer.reads == 2
        assert me.id in buffer.readers
    assert me.uid == os.getuid()
    assert me.program
    assert abs((datetime.now(UTC) - me.began).total_seconds()) < 600
    channel = client.create_channel("c", capacity=3)
    (listed,) = client.channels()
    assert (listed.id, listed.name, listed.mode, listed.capacity) == (channel.id, "c", "broadcast", 3)
    assert (listed.producers, listed.consumers, listed.closed) == (0, 0, False)
    assert (listed.published, listed.waiting, listed.slowest) == (0, 0, None)


def test_a_program_without_a_file_is_called_python(service):
    text = f"import poolbridge\nwith poolbridge.connect({service.path!r}) as c:\n    print(c.sessions()[-1].program)"
    for option, name in {"-c": "python -c", "-": "python -"}.items():
        given = (
            {"args": [sys.executable, option, text]}
            if option == "-c"
            else {"args": [sys.executable, option], "input": text}
        )
        assert subprocess.check_output(**given, text=True, timeout=60).strip() == name


def test_the_buffers_that_count_for_a_session_sum_to_its_bytes(service, client):
    held = [client.allocate(1000), client.allocate(70_000, "uint8")]
    client.put(np.ones(5000), "kept", keep=True).release()
    client.put(np.ones(300), "named").release()
    channel = client.create_channel("c", capacity=3)
    publisher = channel.publisher((10, 10))
    publisher.loan()
    publisher.publish()
    channel.publish(client.allocate(2000))
    with poolbridge.connect(service.path) as other:
        held += [other.allocate(400), other.get("kept")]
        frames = other.subscribe("c", oldest=True)
        held += [next(frames), next(frames)]
        sessions = [one for one in client.sessions() if one.nbytes]
        assert len(sessions) == 2
        unused = [one for one in client.buffers() if one.writer is None and not one.reads]
        assert [one.names for one in unused] == [1], "the buffer that only a name has"
        for session, count in zip(sessions, (6, 1), strict=True):
            counted = [one.block_nbytes for one in client.buffers() if one.session == session.id]
            assert (len(counted), sum(counted)) == (count, session.nbytes)
            command = [POOLSVC, "buffers", "--json", "--session", str(session.id), "--socket", service.path]
            shown = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
            assert [one["block_bytes"] for one in shown["buffers"]] == counted


def test_a_buffer_says_under_which_name_and_version_it_was_published_last(service, client):
    client.put({"a": np.ones(3)}, "old", version=3)
    with poolbridge.connect(service.path) as other:
        kept = other.get("old")
        client.put({"a": np.ones(3)}, "old", replace=True)
        said = [(one.id == kept.buffer_id, one.name, one.version, one.published) for one in client.buffers()]
        assert said == [(True, "old", 3, False), (False, "old", 4, True)]
        command = [POOLSVC, "buffers", "--socket", service.path]
        shown = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout
        assert [" old v3 (former) " in line for line in shown.splitlines()] == [False, True, False]
        assert " old v4  " in shown
        listed = subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60).stdout
        assert [(one["name"], one["version"], one["published"]) for one in json.loads(listed)["buffers"]] == [
            (name, version, published) for _, name, version, published in said
        ]


def test_the_list_of_channels_says_how_far_the_slowest_consumer_is_behind(service, client):
    client.create_pool("p", kind="host", max_bytes="1MiB")
    channel = client.create_channel("c", capacity=3)
    with poolbridge.connect(service.path) as other:
        frames = other.subscribe("c", credit=1)
        for value in range(3):
            channel.publish(np.full(4, value))
        next(frames)
        (listed,) = client.channels()
        assert (listed.published, listed.waiting) == (3, 2)
        assert listed.slowest == max(one.id for one in client.sessions()), "that of the subscriber"


def test_the_list_of_members_says_how_far_each_of_them_is(service, client):
    client.create_pool("p", kind="host", max_bytes="1MiB")
    channel = client.create_channel("c", capacity=3)
    with poolbridge.connect(service.path) as other:
        frames = other.subscribe("c", credit=1)
        for value in range(3):
            channel.publish(np.full(4, value))
        first = next(frames)
        consumer, producer = sorted(client.members(channel.id), key=lambda one: one.role)
        assert (producer.role, producer.frames, producer.last, producer.lag) == ("producer", 3, 3, 0)
        assert (consumer.role, consumer.frames, consumer.last, consumer.lag) == ("consumer", 1, 1, 2)
        assert (consumer.pid, consumer.uid, consumer.program) == (os.getpid(), os.getuid(), producer.program)
        assert consumer.session == max(one.id for one in client.sessions())
        assert consumer.last_at <= producer.last_at
        assert producer.since is None
        assert consumer.since is not None, "it holds one frame and has two to take"
        first.release()
        for of in ("c", channel, client.channels()[0]):
            assert {one.id for one in client.members(of)} == {consumer.id, producer.id}
    with pytest.raises(poolbridge.ClosedError):
        client.members(4711)
    with pytest.raises(poolbridge.NotFoundError):
        client.members("none")


def test_the_list_of_leases_says_who_has_them(service, client):
    client.create_pool("p", kind="host", max_bytes="1MiB")
    lease = client.allocate((2, 3), "float32")
    (listed,) = client.leases()
    assert (listed.pid, listed.uid, listed.write) == (os.getpid(), os.getuid(), True)
    assert (listed.nbytes, listed.waits_for, listed.since) == (24, None, None)
    assert abs((datetime.now(UTC) - listed.began).total_seconds()) < 600
    lease.release()
    assert client.leases() == []


def test_events_tell_what_happened(service, client):
    client.create_pool("p", kind="host", max_bytes="1MiB")
    events = client.events()
    assert [one.number for one in events] == list(range(1, len(events) + 1))
    made = events[-1]
    assert (made.kind, made.pool, made.nbytes, made.pid, made.count) == ("pool-made", "p", 1 << 20, os.getpid(), 1)
    assert "pool" in made.text
    assert client.events(after=made.number) == []
    for _ in range(40):  # more events than a page has
        client.destroy_pool(client.create_pool("q", kind="host", max_bytes=4096))
    assert len(client.events(after=made.number)) == 80
    with pytest.raises(poolbridge.InvalidArgumentError):
        client.events(after=10_000)


def test_a_client_that_is_closed_has_left_and_did_not_get_lost(service, client):
    with poolbridge.connect(service.path) as leaver:
        leaver.create_pool("news", max_bytes=4096)
        other = max(one.id for one in client.sessions())

    def endings():
        return [one.ending for one in client.events() if one.kind == "session-ended" and one.session == other]

    until(endings)  # `close` does not wait for the service
    assert endings() == ["left"]


def test_an_operator_ends_a_session(service, client):
    other = poolbridge.connect(service.path)
    client.end_session(max(one.id for one in client.sessions()))
    with pytest.raises(poolbridge.ClosedError, match="an operator ended this session"):
        other.names()
    with pytest.raises(poolbridge.NotFoundError):
        client.end_session(4711)


def test_a_buffer_of_another_service_is_no_buffer_of_this_one(service, client, tmp_path):
    theirs = RealService(str(tmp_path / "theirs.sock"), "--pool", "name=frames,kind=host,max=1MiB")
    try:
        with poolbridge.connect(theirs.path) as elsewhere:
            elsewhere.open_pool("frames")
            lease, ours = elsewhere.allocate(4), client.allocate(4)
            ours.publish("x")
            assert lease.buffer_id == ours.buffer_id
            with pytest.raises(poolbridge.StaleError, match="another service has the buffer"):
                client.lease(lease.buffer_id, lease.generation)
            client.lease(ours.buffer_id, ours.generation).release()
            lease.release()
    finally:
        theirs.close()


def test_errors_say_what_to_do(service, client):
    client.put(np.ones(3), "x")
    with pytest.raises(poolbridge.AlreadyExistsError, match=r'"x" is taken: pass replace=True'):
        client.put(np.ones(3), "x")
    with pytest.raises(poolbridge.InvalidArgumentError, match="float is no array: .*asarray makes an array"):
        client.put(3.0, "y")
    lease = client.allocate(3)
    array = np.asarray(lease)
    with pytest.raises(
        poolbridge.LeaseInUseError,
        match=r"1 array made from .* is alive: `del` .*`with` block; .*release\(force=True\)",
    ):
        lease.release()
    del array
    with poolbridge.connect(service.path) as other:
        other.open_pool("frames")
        left = other.allocate(2)
    for use in (lambda: np.asarray(left), left.release, lambda: left.publish("z")):
        with pytest.raises(poolbridge.PoolbridgeError, match="the client is closed"):
            use()
    lease.release()
    with pytest.raises(poolbridge.LeaseReleasedError, match="been released or published as a frame"):
        lease.release()


def test_asyncio_has_the_same_lists(service):
    async def main():
        async with await poolbridge.connect_async(service.path) as client:
            await client.create_pool("p", kind="host", max_bytes="1MiB")
            lease = await client.allocate(4)
            assert len(await client.buffers()) == 1
            assert len(await client.leases()) == 1
            assert (await client.events())[-1].kind == "pool-made"
            with pytest.raises(poolbridge.NotFoundError):
                await client.end_session(4711)
            assert await client.names() == []
            assert await client.channels() == []
            channel = await client.create_channel("c")
            assert await client.members(channel.id) == []
            assert any(one.pid == os.getpid() for one in await client.sessions())
            await lease.release()

    asyncio.run(main())


def test_a_notebook_shows_tables_and_escapes_names(service, client):
    client.create_pool("<b>", max_bytes=4096)
    assert "<tr><th>default pool</th><td>frames</td></tr>" in client._repr_html_()
    assert "<td>&lt;b&gt;</td>" in client.stats()._repr_html_()
    channel = client.create_channel("<i>", pool="<b>")
    assert "<tr><th>name</th><td>&lt;i&gt;</td></tr>" in channel._repr_html_()
    assert "<b>" not in client.stats()._repr_html_() + channel._repr_html_()
