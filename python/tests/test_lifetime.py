"""Tests that arrays keep leases alive, that leases keep memory, and that nothing keeps memory longer than needed."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from fakeservice import Refused, Service

import poolbridge
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._wire import messages as _messages

SOURCE = str(Path(poolbridge.__file__).parents[1])


def released(service):
    return len(service.seen(_messages.Release))


def settle(service, client):
    """Wait until the client has received every packet that the service sent before this call."""
    client.stats()


def test_a_dropped_lease_ends_by_itself(service, client):
    client.allocate(4)
    settle(service, client)
    assert service.leases == 0


def test_an_array_keeps_the_lease_alive(service, client):
    array = np.asarray(client.allocate(4, "int32"))
    array[:] = 5
    gc.collect()
    settle(service, client)
    assert service.leases == 1
    assert array.tolist() == [5, 5, 5, 5]
    del array
    settle(service, client)
    assert service.leases == 0


def test_so_does_a_slice_of_a_slice(service, client):
    part = np.from_dlpack(client.allocate((8, 8), "int8"))[2:][::2].T[1:3]
    settle(service, client)
    assert service.leases == 1
    del part
    settle(service, client)
    assert service.leases == 0


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        np.from_dlpack,
        lambda lease: lease.__dlpack__(max_version=(1, 0)),
        lambda lease: lease.__dlpack__(),
        lambda lease: lease.memoryview(),
        lambda lease: lease.view(),
        lambda lease: np.asarray(lease.view()),
        lambda lease: lease.view().__dlpack__(),
    ],
    ids=["asarray", "from_dlpack", "capsule", "legacy", "memoryview", "view", "view-asarray", "view-capsule"],
)
def test_release_refuses_while_anything_made_from_the_lease_is_alive(service, client, make):
    lease = client.allocate(4)
    array = make(lease)
    assert lease.array_count == 1
    with pytest.raises(poolbridge.LeaseInUseError, match="1 array") as caught:
        lease.release()
    assert isinstance(caught.value, BufferError)
    assert not lease.released
    del array
    assert lease.array_count == 0
    lease.release()
    settle(service, client)
    assert service.leases == 0


def test_release_by_force(service, client):
    lease = client.allocate(4)
    array = np.asarray(lease)
    lease.release(force=True)
    settle(service, client)
    assert service.leases == 0
    del array
    settle(service, client)
    assert released(service) == 1


def test_a_lease_released_twice_is_an_error(client):
    lease = client.allocate((4, 2), "int16")
    lease.release()
    for use in lease.release, lambda: np.asarray(lease):
        with pytest.raises(
            poolbridge.LeaseReleasedError, match=r"the lease of int16\[4, 2\] in pool 'frames' has been released"
        ):
            use()


def test_a_release_of_several_ends_those_that_it_can(service, client):
    leases = [client.allocate(1), client.allocate(1)]
    there = [lease._lease_state.grant.id for lease in leases]
    with service.changed, pytest.raises(Refused, match="released"):
        service.connections[-1].release(_messages.Release(lease=there[0] + 99, also=(there[0], 0, there[1])), [])
    assert service.leases == 0


@pytest.mark.parametrize(
    "use",
    [
        np.asarray,
        np.from_dlpack,
        lambda lease: lease.view(),
        lambda lease: lease.memoryview(),
        lambda lease: lease.to_numpy(),
        lambda lease: lease.copy_from([1, 2, 3, 4]),
        lambda lease: lease.publish("x"),
        lambda lease: lease._evidence(),
        lambda lease: lease.__enter__(),
    ],
)
def test_a_lease_used_after_release_is_an_error(client, use):
    lease = client.allocate(4)
    lease.release()
    with pytest.raises(poolbridge.LeaseReleasedError):
        use(lease)
    assert lease.array_count == 0


def test_with_releases(service, client):
    with client.allocate(4) as lease:
        np.asarray(lease)[:] = 1
    assert lease.released
    with client.allocate(4) as lease:
        lease.release()
    with pytest.raises(poolbridge.LeaseInUseError), client.allocate(4) as lease:
        array = np.asarray(lease)
    del array, lease
    settle(service, client)
    assert service.leases == 0


def test_an_exception_marks_what_was_written_as_failed(service, client):
    with pytest.raises(ZeroDivisionError), client.allocate(4):
        raise ZeroDivisionError
    settle(service, client)
    assert [request.failed for request in service.seen(_messages.Release)] == [True]

    def write():
        with client.allocate(4) as lease:
            array = np.asarray(lease)
            array[0] = 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        write()
    assert "arrays made from it are gone" in caught.value.__notes__[0]
    del caught
    gc.collect()
    settle(service, client)
    assert [request.failed for request in service.seen(_messages.Release)] == [True, True]


def test_a_reader_sees_read_only_memory_even_past_the_flag(service, client):
    client.allocate(4, "uint8").publish("x", keep=True)
    code = f"""
import ctypes, numpy, poolbridge
client = poolbridge.connect({service.path!r})
array = numpy.asarray(client.get("x"))
assert not array.flags.writeable
ctypes.memset(array.ctypes.data, 1, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": SOURCE}, check=False, timeout=60)
    assert done.returncode == -11  # SIGSEGV, in the reader only
    assert client.get("x").to_numpy()[0] == 0


def test_what_was_published_is_read_only(client):
    lease = client.allocate(4)
    before = np.asarray(lease)
    lease.publish("x")
    after = np.asarray(lease)
    assert not after.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1
    with pytest.raises(poolbridge.InvalidArgumentError):
        lease.publish("y")
    with pytest.raises(poolbridge.InvalidArgumentError):
        lease.copy_from(1)


def test_what_numpy_has_made_otherwise_does_not_know_that_it_was_published(client):
    lease = client.allocate(4)
    part, taken = np.asarray(lease)[1:], np.from_dlpack(lease)
    copies = [np.array(lease), lease.to_numpy()]
    lease.publish("x")
    assert part.flags.writeable
    assert taken.flags.writeable
    assert all(copy.flags.writeable for copy in copies)


def test_arrays_that_are_gone_are_not_remembered(client):
    lease = client.allocate(4)
    for _ in range(1000):
        np.asarray(lease)
    assert len(lease._lease_state.written) < 10


def test_a_recalled_block_is_dropped_when_no_lease_needs_it(service, client):
    lease = client.allocate(4)
    array = np.asarray(lease)
    array[:] = 3
    (connection,) = service.connections
    block = lease._lease_state.grant.block
    connection.recall(block)
    settle(service, client)
    assert service.seen(_messages.Dropped) == []
    assert array.tolist() == [3, 3, 3, 3]
    del array
    lease.release()
    service.wait(lambda: service.seen(_messages.Dropped) == [_messages.Dropped(blocks=(block,))])
    again = client.allocate(4)
    assert again._lease_state.grant.block == block
    assert again._lease_state.grant.export is not None


def test_an_idle_client_answers_a_recall(service, client):
    lease = client.allocate(4)
    block = lease._lease_state.grant.block
    lease.release()
    settle(service, client)
    service.connections[0].recall(block, 999)
    service.wait(lambda: service.seen(_messages.Dropped) == [_messages.Dropped(blocks=(block,))])


def test_a_recall_of_one_session_leaves_another_its_mapping(service, client):
    client.allocate(4).publish("x", keep=True)
    lease = client.get("x")
    with poolbridge.connect(service.path) as other:
        theirs = np.asarray(other.get("x"))
        block = lease._lease_state.grant.block
        lease.release()
        service.connections[0].recall(block)
        service.wait(lambda: bool(service.seen(_messages.Dropped)))
        assert theirs.tolist() == [0, 0, 0, 0]
        del theirs


def test_arrays_outlive_their_client(service):
    client = poolbridge.connect(service.path)
    client.create_pool("p", max_bytes=1 << 16)
    array = np.asarray(client.allocate(4))
    array[:] = 9
    client.close()
    assert array.tolist() == [9, 9, 9, 9]
    assert len(MAPPINGS) == 2
    del array
    assert len(MAPPINGS) == 0


def test_a_lease_with_an_array_is_not_shown_as_released_when_its_client_is_closed(service):
    client = poolbridge.connect(service.path)
    client.create_pool("p", max_bytes=1 << 16)
    kept, released = client.allocate(4), client.allocate(4)
    array = np.asarray(kept)
    client.close()
    assert "write, 1 array alive" in repr(kept)
    assert "released" in repr(released)
    with pytest.raises(poolbridge.LeaseInUseError):
        kept.release()
    del array
    kept.release()
    assert "released" in repr(kept)


def test_a_dropped_client_warns_and_goes(service):
    client = poolbridge.connect(service.path)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
        gc.collect()
    service.connections[0].join(60)
    assert not service.connections[0].is_alive()


def test_a_dropped_client_goes_with_its_last_array(service):
    client = poolbridge.connect(service.path)
    client.create_pool("p", max_bytes=1 << 16)
    array = np.asarray(client.allocate(4))
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
        gc.collect()
    array[:] = 1
    assert service.leases == 1
    del array
    service.connections[0].join(60)
    assert not service.connections[0].is_alive()


def test_the_last_array_of_a_dropped_client_goes_after_the_service(tmp_path):
    service = Service(str(tmp_path / "own.sock"))
    client = poolbridge.connect(service.path)
    client.create_pool("p", max_bytes=1 << 16)
    arrays, watcher = [np.asarray(client.allocate(4))], client._reader._watcher
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
        gc.collect()
    service.close()
    watcher.join(60)
    last = threading.Thread(target=arrays.clear, daemon=True)
    last.start()
    last.join(60)
    assert not last.is_alive()


def test_collection_inside_the_lock_does_not_deadlock(service, client):
    """A garbage collection may run a finaliser in the thread that holds the session's lock."""
    leases = [client.allocate(4) for _ in range(10)]
    session = client._session
    with session.lock:
        del leases
        gc.collect()
        assert service.leases == 10
    settle(service, client)
    assert service.leases == 0


def test_collection_from_many_threads(service, client):
    def work():
        for _ in range(50):
            a = np.asarray(client.allocate(16))
            b = np.from_dlpack(client.allocate(16))
            cycle: list[object] = [a, b]
            cycle.append(cycle)
            del a, b, cycle
            gc.collect(0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    settle(service, client)
    assert service.leases == 0


def test_interpreter_exit_with_everything_alive_is_silent(service, client):
    client.allocate(4).publish("x", keep=True)
    code = f"""
import numpy, poolbridge
client = poolbridge.connect({service.path!r})
lease = client.get("x")
array = numpy.asarray(lease)
view = lease.view()
capsule = lease.__dlpack__(max_version=(1, 0))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PYTHONPATH": SOURCE},
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_finaliser_that_fails_warns(client):
    def fail():
        raise RuntimeError("on purpose")

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        client._session.lock.later(fail)
    assert [warning.category for warning in seen] == [ResourceWarning]
    assert "on purpose" in str(seen[0].message)


def test_the_leak_check_sees_a_planted_leak(client):
    from conftest import open_descriptors

    before = open_descriptors()
    import os

    fd = os.dup(0)
    try:
        assert set(open_descriptors()) - set(before) == {str(fd)}
    finally:
        os.close(fd)


def test_capsules_that_nobody_consumed_free_themselves(service, client):
    lease = client.allocate(4)
    for _ in range(100):
        lease.__dlpack__(max_version=(1, 0))
        lease.__dlpack__()
    assert lease.array_count == 0
    assert ctypes.sizeof(ctypes.c_void_p) == 8


FINALISERS = """
import _io, importlib, inspect, os, pathlib, sys
import poolbridge

class Witness:
    def __del__(self, write=os.write):
        write(1, b"names are gone" if os is None else b"names are there")

top = pathlib.Path(poolbridge.__file__).parents[1]
paths = [path for path in top.glob("poolbridge/**/*.py") if "def __del__" in path.read_text()]
modules = [importlib.import_module(".".join(path.relative_to(top).with_suffix("").parts)) for path in paths]
found = {one for module in modules for one in vars(module).values() if hasattr(one, "__del__")}
assert len(found) >= len(paths) > 0
# `sys` keeps the modules, so Python sets their names to None. Later it drops what a module in C keeps.
sys.kept = modules, sys.modules["__main__"]
_io.kept = Witness(), [one.__new__(one) for one in found if not inspect.isabstract(one)]
"""


def test_finalisers_are_silent_at_the_end_of_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", FINALISERS], env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("names are gone", "")
