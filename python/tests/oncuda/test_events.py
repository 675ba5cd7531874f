"""Test leases with interprocess events, with and without fences.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gates import fill, finish, gets_idle, idle, new_stream, read, waits_until
from rig import (
    CHANNELS,
    ENVIRONMENT,
    HERE,
    POOLSVC,
    N,
    address,
    client,
    device_service,
    gate,
    has_poolsvc,
    other,
    use,
)

import poolbridge
from poolbridge._cuda import cuda as _cuda
from poolbridge._order import event as _event

__all__ = ["client", "device_service", "gate", "other"]  # fixtures

SIMULATED = "simulated" in _cuda.devices()[0]["name"]

pytestmark = pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service knows no events")


def slow(client, gate, byte, event, **options):
    """Publish a buffer that a stream has not written yet; `event` becomes complete when the stream has written it."""
    lease = client.allocate(N, "uint8")
    stream = new_stream()
    at = address(lease)
    gate.hold(stream)
    fill(at, N, byte, stream)
    event.record(stream)
    lease.publish(f"frame{byte}", event=event, **options)
    return lease


@contextmanager
def child(code: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", f"import sys\nsys.path[:0] = [{str(HERE)!r}]\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **(environment or {})},
    ) as process:
        yield process
        if process.poll() is None:
            process.communicate(timeout=60)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# This program makes a stream wait for the buffer "frame7". The program prints whether the stream waits, and then
# the content of the buffer.
CONSUMER = """
import poolbridge
from gates import finish, idle, new_stream, read
with poolbridge.connect({path!r}) as client:
    lease = client.get("frame7")
    stream = new_stream()
    lease.__dlpack__(stream=stream, max_version=(1, 0))
    seen = read(lease._evidence()["pointer"], lease.size, stream)
    print("waits" if not idle(stream) else "does not wait", lease.ready_event.is_done, flush=True)
    finish(stream)
    print(int(seen.min()), int(seen.max()), lease.ready_event.is_done, flush=True)
    lease.release()
"""

# For a consumer that cannot open the event.
READY = """refused = False
    try:
        lease.ready_event
    except poolbridge.EventUnavailableError as error:
        refused = True
        print(type(error).__name__, error, flush=True)
    """


def test_the_stream_of_another_process_waits_for_the_event(device_service, client, gate):
    event = client.event()
    lease = slow(client, gate, 7, event)
    with child(CONSUMER.format(path=device_service)) as consumer:
        assert line(consumer) == "waits False"
        gate.open()
        assert line(consumer) == "7 7 True"
        assert consumer.wait(60) == 0
    assert lease.ready_event is event


def test_a_stream_of_the_same_process_waits_too(client, other, gate):
    event, stream = client.event("cuda:0"), new_stream()
    lease = slow(client, gate, 7, event)
    got = other.get("frame7")
    assert got.ready_event is event
    seen = read(use(got, stream), N, stream)
    assert not idle(stream)
    other._session.patience = 0.01
    with pytest.raises(poolbridge.WaitTimeoutError):
        got.to_numpy()
    with pytest.raises(poolbridge.WaitTimeoutError):
        got.wait(0.01)
    view = got.view()
    assert not idle(view.__cuda_array_interface__["stream"])
    del view
    threading.Thread(target=gate.open).start()
    other._session.patience = 10
    assert (got.to_numpy() == 7).all()
    finish(stream)
    assert (seen == 7).all()
    lease.release()


def test_events_of_cuda_core_are_taken_as_they_are(client, other, gate):
    from cuda.core import Device, EventOptions, Stream

    Device(0).set_current()
    stream, reader = new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    at = address(lease)
    gate.hold(stream)
    fill(at, N, 3, stream)
    event = Stream.from_handle(stream).record(options=EventOptions(ipc_enabled=True))
    lease.publish("x", event=event)
    got = other.get("x")
    assert got.ready_event.handle == int(event.handle)
    use(got, reader)
    assert not idle(reader)
    gate.open()
    finish(reader)
    lease.release()
    plain = client.allocate(N, "uint8")
    with pytest.raises(poolbridge.InvalidArgumentError, match="ipc_enabled"):
        plain.publish("y", event=Device(0).create_event())
    closed = Stream.from_handle(stream).record(options=EventOptions(ipc_enabled=True))
    closed.close()
    for nothing, text in ((closed, "closed"), (object(), "no event")):
        with pytest.raises(poolbridge.InvalidArgumentError, match=text):
            plain.publish("y", event=nothing)
    plain.publish("y")


def test_unknown_streams_that_read_after_a_publication_with_an_event_are_waited_for(client, gate):
    event, lease, reader = client.event(), client.allocate(N, "uint8"), new_stream()
    at = lease.view(device="cuda").__cuda_array_interface__["data"][0]
    fill(at, N, 5, reader)
    event.record(reader)
    lease.publish("x", event=event)
    gate.hold(reader)
    seen = read(at, N, reader)
    waits_until(gate.open, lambda: lease.release(force=True))
    finish(reader)
    assert (seen == 5).all()


def test_an_event_that_was_never_recorded_holds_nobody_up(client):
    event = client.event()
    assert event.is_done
    stream = new_stream()
    event.wait(stream)
    assert gets_idle(stream)  # a driver may queue the wait, and the stream is then busy for microseconds
    event.sync(0)


@CHANNELS
def test_an_event_goes_along_with_a_frame(client, other, gate):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    event = client.event()
    stream = new_stream()
    lease = client.allocate(N, "uint8")
    gate.hold(stream)
    fill(address(lease), N, 5, stream)
    event.record(stream)
    channel.publish(lease, event=event)
    frame = next(frames)
    assert frame.ready_event is event
    assert len(frame._lease_state.grant.wait) == 1
    gate.open()
    assert (frame.to_numpy() == 5).all()
    with pytest.raises(poolbridge.InvalidArgumentError, match="copied"):
        channel.publish(np.zeros(N, np.uint8), event=event)


def test_what_says_nothing_is_refused(client):
    lease = client.allocate(N, "uint8")
    host = client.allocate(N, "uint8", pool=client.create_pool("cpu", max_bytes=1 << 20))
    event = client.event()
    with pytest.raises(poolbridge.InvalidArgumentError, match="CPU"):
        host.publish("x", event=event)
    assert event.device == "cuda:0"
    event.close()
    event.close()
    assert repr(event) == "<poolbridge.Event on cuda:0, closed>"
    with pytest.raises(poolbridge.InvalidArgumentError, match="closed"):
        lease.publish("x", event=event)
    with pytest.raises(poolbridge.DeviceNotVisibleError, match="GPU 99"):
        client.event(99)
    for length in (0, 63, 65):
        with pytest.raises(poolbridge.InvalidArgumentError, match=f"got {length}"):
            _event.open_event(0, bytes(length))
    with pytest.raises(poolbridge.EventUnavailableError):
        _event.open_event(0, bytes(64))
    promise = lease.promise()
    with pytest.raises(poolbridge.InvalidArgumentError, match="promised"):
        lease.publish("x", event=client.event())
    lease.publish("x")
    promise.complete()


# This program publishes a buffer that a stream has written, with an event. Then it executes the commands that it reads
# from its input.
PRODUCER = """
import poolbridge
from gates import Gate, fill, new_stream
client = poolbridge.connect({path!r})
client.open_pool("gpu")
event, lease, stream, gate = client.event(), client.allocate({size}, "uint8"), new_stream(), Gate()
fill(lease._evidence()["pointer"], {size}, 6, stream)
event.record(stream)
event.sync()
gate.hold(stream)  # the fence is late, the event is not
lease.used_on(stream)
lease.publish("beside", keep=True, event=event)
print("published", flush=True)
for line in sys.stdin:
    if line == "close\\n":
        event.close()
    print("done", flush=True)
gate.open()
"""


def tell(process: subprocess.Popen[str], command: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{command}\n")
    process.stdin.flush()
    assert line(process) == "done"


def cuda_goes_on(client: poolbridge.Client) -> None:
    mine = client.allocate(N, "uint8")
    mine.copy_from(np.full(N, 3, np.uint8))
    assert (mine.to_numpy() == 3).all()


@pytest.mark.skipif(
    not SIMULATED, reason="not measured: whether a real driver opens an event that its process has closed"
)
def test_an_event_that_its_maker_closed_cannot_be_opened_and_a_fence_takes_its_place(device_service, client):
    with child(PRODUCER.format(path=device_service, size=N)) as process:
        assert line(process) == "published"
        beside = client.get("beside")
        tell(process, "close")
        with pytest.raises(poolbridge.EventUnavailableError, match=r"gone.*Fences work there"):
            _ = beside.ready_event
        cuda_goes_on(client)
        stream = new_stream()
        use(beside, stream)
        assert not idle(stream), "the fence is waited for, the event is not needed"
    finish(stream)


def test_content_whose_publisher_was_killed_after_its_event_and_before_its_fence_has_failed(device_service, client):
    with child(PRODUCER.format(path=device_service, size=N)) as process:
        assert line(process) == "published"
        beside = client.get("beside")
        stream = new_stream()
        use(beside, stream)
        assert not idle(stream)
        process.kill()
    finish(stream)
    with pytest.raises(poolbridge.ProducerDiedError):
        beside.check()
    with pytest.raises(poolbridge.ProducerDiedError):
        client.get("beside")
    cuda_goes_on(client)


def test_asyncio_speaks_events_too(device_service, client, gate):
    async def hand_over() -> None:
        async with await poolbridge.connect_async(device_service) as producer:
            await producer.open_pool("gpu")
            event = producer.event()
            lease = await producer.allocate(N, "uint8")
            stream = new_stream()
            gate.hold(stream)
            fill(address(lease), N, 4, stream)
            event.record(stream)
            await lease.publish("x", event=event)
            got = await producer.get("x")
            assert got.ready_event is event
            with pytest.raises(poolbridge.WaitTimeoutError):
                await got.wait(0.01)
            gate.open()
            await got.wait(60)
            assert (got.to_numpy() == 4).all()

    asyncio.run(hand_over())


@pytest.mark.skipif(not SIMULATED, reason="only a simulated GPU can do without stream memory operations")
def test_where_streams_cannot_write_words_the_publisher_waits_and_sends_no_event(device_service, client):
    code = f"""
import poolbridge
from gates import fill, new_stream
client = poolbridge.connect({device_service!r})
client.open_pool("gpu")
stream, lease, event = new_stream(), client.allocate({N}, "uint8"), client.event()
fill(lease._evidence()["pointer"], {N}, 6, stream)
event.record(stream)
lease.publish("beside", event=event)
print("published", flush=True)
sys.stdin.read()
"""
    with child(code, {"SIMCUDA_STREAM_MEM_OPS": "0"}) as process:
        assert line(process) == "published"
        beside = client.get("beside")
        assert (beside._lease_state.grant.wait, beside.ready_event) == ((), None)
        assert (beside.to_numpy() == 6).all()


@contextmanager
def open_to(uid: int) -> Iterator[str]:
    """Run a service that this user and the user `uid` can use; give the path of its socket."""
    folder = Path(f"/tmp/poolbridge-events-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o755)
    path = str(folder / "d.sock")
    pool = f"name=gpu,kind=device,max=64MiB,uid={os.getuid()},uid={uid}"
    try:
        with subprocess.Popen([POOLSVC, "serve", "--socket", path, "--mode", "0666", "--pool", pool]) as process:
            try:
                yield path
            finally:
                process.terminate()
    finally:
        shutil.rmtree(folder)


NOBODY = 65534

# Code that changes the user or the folder /dev/shm of a process. The code imports modules before it changes the user,
# because the new user may not have the right to read the files of the modules.
ELSEWHERE = {
    "another user": f"""
import ctypes, os
import cuda.core, poolbridge._memory.kind_device
from gates import new_stream
from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda import pools as _pools
_pools._core_descriptors()
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: it may read its own /proc again
""",
    "another /dev/shm": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
private = (1 << 18) | (1 << 14)  # MS_PRIVATE, MS_REC
assert not libc.unshare(0x20000), "unshare"
assert not libc.mount(b"", b"/", b"", private, None), "mount"
assert not libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None), "mount /dev/shm"
""",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_elsewhere_the_event_is_refused_and_its_fence_works(gate, elsewhere):
    with open_to(NOBODY) as path, poolbridge.connect(path, timeout=60, wait=60) as client:
        client.open_pool("gpu")
        event = client.event()
        slow(client, gate, 7, event)
        code = CONSUMER.replace("lease.ready_event.is_done", "refused")
        code = code.replace("stream = new_stream()", READY + "stream = new_stream()")
        with child(ELSEWHERE[elsewhere] + code.format(path=path)) as consumer:
            said = line(consumer)
            assert said.startswith("EventUnavailableError"), said
            assert "another user" in said
            assert "/dev/shm" in said
            assert line(consumer) == "waits True"
            gate.open()
            assert line(consumer) == "7 7 True"
            assert consumer.wait(60) == 0


@pytest.mark.skipif(not SIMULATED, reason="every GPU has interprocess events")
def test_a_gpu_without_interprocess_events_is_told():
    code = """
import poolbridge
from poolbridge._order import event as _event
try:
    _event.make(0)
except poolbridge.EventUnavailableError as error:
    print(error, flush=True)
"""
    with child(code, {"SIMCUDA_IPC_EVENTS": "0"}) as process:
        assert "use fences" in line(process)
