"""Tests services that a program starts: a service only for itself, or the shared service if no service runs."""

from __future__ import annotations

import asyncio
import copy
import fcntl
import os
import pickle
import select
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest
from realservice import POOLSVC, RealService, until

import poolbridge
from poolbridge._client import service_process as _service_process, shared_service as _shared_service
from poolbridge._client.base_client import BaseClient

pytestmark = pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build")

POOLS = ["name=frames,kind=host,max=1MiB"]


@pytest.fixture(autouse=True)
def built(monkeypatch):
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)


@pytest.fixture
def socket_path(tmp_path):
    return str(tmp_path / "run" / "s.sock")


def await_end(pid):
    """Wait until a process has ended. The process need not be a child of this process."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 60)[0], "the service lives on"
    finally:
        os.close(fd)


def python(text, *arguments, **options):
    """Start a Python program whose input and output are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )


# The end of a session


@pytest.fixture
def looking(monkeypatch):
    """Start a service for this test, and give a client that stays connected to it during the test.

    In the test, `close` waits for the service as long as it takes: on a busy machine, that can be more than one second.
    """
    monkeypatch.setattr(BaseClient, "_close_timeout", 60.0)
    with poolbridge.serve(pools=POOLS) as service, poolbridge.connect(service.path) as client:
        yield client


def test_the_service_has_ended_a_session_when_close_returns(looking):
    others = len(looking.sessions())
    for _ in range(20):
        client = poolbridge.connect(looking.path)
        client.open_pool("frames")
        lease = client.allocate(4)
        client.close()
        assert len(looking.sessions()) == others
        assert lease.released


def test_the_service_has_ended_a_session_when_close_of_asyncio_returns(looking):
    others = len(looking.sessions())

    async def run():
        for _ in range(20):
            async with await poolbridge.connect_async(looking.path):
                pass
            assert len(looking.sessions()) == others

    asyncio.run(run())


# In the tests below, a program starts a service only for itself.


def test_a_service_of_ones_own_has_its_pools_and_ends_with_the_block():
    with poolbridge.serve(pools=POOLS) as service:
        assert service.running
        with service.connect() as client:
            client.open_pool("frames")
            assert client.service_pid == service.pid
            assert [pool.name for pool in client.pools()] == ["frames"]
        folder = Path(service.path).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert "ended" in repr(service)
    assert not folder.exists()
    await_end(service.pid)
    with pytest.raises(poolbridge.ServiceNotRunningError):
        service.connect()


def test_what_cannot_be_sent_to_another_process_says_what_to_send_instead():
    with poolbridge.serve(pools=["name=p,kind=host,max=1MiB"]) as service, poolbridge.connect(service.path) as client:
        channel, lease = client.create_channel("c", pool="p"), client.allocate(3, pool="p")
        for one, instead in ((channel, "open_channel"), (service, "service.path"), (lease, "client.get")):
            for use in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=instead):
                    use(one)


def test_services_of_ones_own_do_not_meet():
    with poolbridge.serve() as one, poolbridge.serve() as two:
        assert one.path != two.path
        with one.connect() as a, two.connect() as b:
            assert a.epoch != b.epoch


def test_asyncio_has_services_of_its_own_too():
    async def main():
        async with poolbridge.serve(pools=POOLS) as service, await service.connect_async() as client:
            return [pool.name for pool in await client.pools()]

    assert asyncio.run(main()) == ["frames"]


def test_a_service_lives_longer_than_the_thread_that_started_it():
    service = poolbridge.serve()
    thread = threading.Thread(target=service.start)
    thread.start()
    thread.join()
    try:
        with service.connect() as client:
            assert client.pools() == []
        assert service.running
    finally:
        service.stop()


STARTER = """
import os, sys
import poolbridge
service = poolbridge.serve(path=sys.argv[1]).start()
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.stdin.read()  # a child that lives on
    os._exit(0)
print(service.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("family", ["alone", "fork"])
def test_a_service_of_ones_own_ends_when_its_starter_is_killed(socket_path, family):
    starter = python(STARTER, socket_path, family)
    service = int(starter.stdout.readline())
    with poolbridge.connect(socket_path):
        pass
    starter.kill()
    await_end(service)
    starter.communicate()
    with pytest.raises(poolbridge.ServiceNotRunningError):
        poolbridge.connect(socket_path)


def test_a_service_that_was_killed_leaves_nothing_behind():
    with poolbridge.serve() as service:
        folder = Path(service.path).parent
        os.kill(service.pid, signal.SIGKILL)
        await_end(service.pid)
    assert not folder.exists()


def test_a_service_is_started_once():
    with poolbridge.serve() as service, pytest.raises(poolbridge.InvalidArgumentError, match="started already"):
        service.start()
    with pytest.raises(poolbridge.ServiceNotRunningError, match="not started yet"):
        _ = poolbridge.serve().path
    with pytest.raises(poolbridge.InvalidArgumentError, match="timeout"):
        poolbridge.serve(timeout=0)


# What goes wrong at the start


def test_no_program_says_where_it_was_looked_for_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("POOLBRIDGE_POOLSVC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(_service_process, "_installed", lambda: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    for start in (lambda: poolbridge.serve().start(), lambda: poolbridge.connect(tmp_path / "s", start=True)):
        with pytest.raises(poolbridge.ServiceProgramError, match="Install a wheel of poolbridge") as caught:
            start()
        assert isinstance(caught.value, FileNotFoundError)


def test_a_program_that_is_none_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", str(tmp_path))
    with pytest.raises(poolbridge.ServiceProgramError, match="which is no program"):
        poolbridge.serve().start()
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o700)
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", str(tmp_path / "text"))
    with pytest.raises(poolbridge.ServiceStartError, match="cannot be started"):
        poolbridge.serve().start()


def test_a_service_that_ends_at_its_start_says_why():
    with pytest.raises(poolbridge.ServiceStartError, match=r"status 2 .*no limit .nonsense.") as caught:
        poolbridge.serve(options=["--limit", "nonsense=1"]).start()
    assert type(caught.value) is poolbridge.ServiceStartError


def test_a_socket_in_use_is_a_socket_in_use(socket_path):
    with poolbridge.serve(path=socket_path), pytest.raises(poolbridge.SocketInUseError, match="a live service uses"):
        poolbridge.serve(path=socket_path).start()


def test_a_folder_that_cannot_have_a_socket_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    within = tmp_path / "file" / "s.sock"
    with pytest.raises(poolbridge.SocketFolderError, match="not a directory"):
        poolbridge.serve(path=within).start()
    with pytest.raises(poolbridge.SocketFolderError, match="no socket can be made"):
        poolbridge.connect(within, start=True)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(poolbridge.SocketFolderError, match="open to others"):
        poolbridge.connect(open_to_all / "s.sock", start=True)
    assert list(open_to_all.iterdir()) == []
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with pytest.raises(poolbridge.SocketFolderError, match="no such file or directory"):
        poolbridge.serve().start()
    with pytest.raises(poolbridge.SocketFolderError, match="log"):
        poolbridge.serve(log=tmp_path / "nowhere" / "log").start()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere: run the tests as another user")
def test_a_folder_without_permission_is_named(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(poolbridge.SocketFolderError, match="permission denied"):
        poolbridge.serve(path=closed / "s.sock").start()


def test_a_disk_without_room_for_the_log_is_no_matter():
    with poolbridge.serve(log="/dev/full", pools=POOLS) as service, service.connect() as client:
        assert client.put(np.arange(3), "numbers", pool="frames").shape == (3,)


def test_a_service_says_into_a_log_what_it_says(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    with poolbridge.serve(log=log):
        pass
    text = log.read_text()
    assert text.startswith("before\n")
    assert "msg=serving" in text


def test_the_log_of_a_service_that_programs_share_is_bounded(socket_path):
    log = Path(f"{socket_path}.log")
    log.parent.mkdir(mode=0o700, exist_ok=True)
    log.write_text("old\n" * (1 << 19))
    with poolbridge.connect(socket_path, start=True):
        until(lambda: "msg=serving" in log.read_text())
        text = log.read_text()
    assert len(text) <= 1 << 20
    assert text.startswith("old\n")


def test_a_service_that_is_never_ready_is_given_up(tmp_path, monkeypatch):
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexec sleep 1000\n")
    mute.chmod(0o700)
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", str(mute))
    with pytest.raises(poolbridge.ServiceStartTimeoutError, match="not ready within 0.1 s"):
        poolbridge.serve(timeout=0.1).start()


# The service that programs share


def test_where_none_runs_one_is_started_and_ends_with_its_last_user(socket_path):
    with poolbridge.connect(socket_path, start=True) as one:
        with poolbridge.connect(socket_path, start=True) as two:
            assert one.epoch == two.epoch
        pid = one.service_pid
    await_end(pid)
    assert "no client is connected" in Path(f"{socket_path}.log").read_text()


def test_one_that_runs_is_used(socket_path):
    Path(socket_path).parent.mkdir(mode=0o700)
    running = RealService(socket_path)
    try:
        with poolbridge.connect(socket_path, start=True) as client:
            assert client.service_pid == running.process.pid
    finally:
        running.close()


def test_a_service_whose_start_is_cancelled_is_not_left_running():
    async def main():
        service = poolbridge.serve()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001), service:
                await asyncio.Event().wait()
        return service

    assert not asyncio.run(main()).running


def test_asyncio_starts_one_as_well(socket_path):
    async def main():
        async with await poolbridge.connect_async(socket_path, start=True) as client:
            return client.service_pid

    await_end(asyncio.run(main()))


def test_one_that_ended_is_started_again(socket_path):
    with poolbridge.connect(socket_path, start=True) as client:
        first = client.service_pid
        os.kill(first, signal.SIGKILL)
        await_end(first)
        with poolbridge.connect(socket_path, start=True) as again:
            assert again.service_pid != first
            second = again.service_pid
    await_end(second)


SHARER = """
import sys
import poolbridge
sys.stdin.readline()
with poolbridge.connect(sys.argv[1], start=True) as client:
    print(client.service_pid, flush=True)
    sys.stdin.read()
"""


def test_programs_that_start_one_at_once_share_it(socket_path):
    programs = [python(SHARER, socket_path) for _ in range(4)]
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    pids = {program.stdout.readline() for program in programs}
    for program in programs:
        program.communicate()
    assert len(pids) == 1
    await_end(int(pids.pop()))


def test_the_service_outlives_the_program_that_started_it(socket_path):
    starter = python(SHARER, socket_path)
    starter.stdin.write("go\n")
    starter.stdin.flush()
    pid = int(starter.stdout.readline())
    with poolbridge.connect(socket_path) as client:
        starter.kill()
        starter.communicate()
        assert client.service_pid == pid
        client.stats()
    await_end(pid)


def test_threads_that_start_one_at_once_share_it(socket_path):
    clients = []

    def start():
        clients.append(poolbridge.connect(socket_path, start=True))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({client.epoch for client in clients}) == 1
    pid = clients[0].service_pid
    for client in clients:
        client.close()
    await_end(pid)


def test_a_service_that_does_not_come_is_given_up(socket_path, monkeypatch):
    monkeypatch.setattr(_shared_service, "START_SECONDS", 0.0)
    starter = _shared_service.Starter(socket_path, 0.0)
    assert not starter.start()
    with pytest.raises(poolbridge.ServiceNotRunningError):
        poolbridge.connect(socket_path, start=True)


def test_a_service_that_has_the_lock_and_no_socket_is_named_by_its_lock(socket_path, monkeypatch):
    Path(socket_path).parent.mkdir(mode=0o700, exist_ok=True)
    with Path(f"{socket_path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        starter = _shared_service.Starter(socket_path, 0.0)
        starter.start()
        monkeypatch.setattr(starter, "_until", 0.0)
        with pytest.raises(
            poolbridge.ServiceStartTimeoutError, match=r"for 30 s, another service had the lock '.*\.lock'"
        ):
            starter.start()


def test_a_service_whose_socket_was_removed_is_found_again(socket_path):
    with poolbridge.serve(path=socket_path) as service:
        Path(socket_path).unlink()
        with poolbridge.connect(socket_path, start=True) as client:
            assert client.service_pid == service.pid


NO_DESCRIPTOR = """
import asyncio, os, resource, sys
import poolbridge

with poolbridge.connect(sys.argv[1]) as client, asyncio.Runner() as runner:
    runner.get_loop()  # which has descriptors of its own
    client.create_channel("c", pool="p")
    first = os.dup(0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + 1, most))
    said = []
    for attempt in (
        lambda: poolbridge.connect(sys.argv[1]),
        lambda: runner.run(poolbridge.connect_async(sys.argv[1])),
        lambda: client.subscribe("c"),
    ):
        try:
            attempt()
        except poolbridge.PoolbridgeError as error:
            said.append(f"{type(error).__name__}: {error}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("\\n".join(said))
"""


def test_a_client_without_free_descriptors_names_its_limit():
    with poolbridge.serve(pools=["name=p,kind=host,max=1MiB"]) as service:
        done = subprocess.run(
            [sys.executable, "-c", NO_DESCRIPTOR, service.path], capture_output=True, text=True, timeout=60
        )
    errors = "PoolLimitError", "PoolLimitError", "ConnectionLostError"
    for line, error in zip(done.stdout.splitlines(), errors, strict=True):
        assert line.startswith(f"{error}: ")
        assert "this process has no free file descriptor: close files, or raise its limit RLIMIT_NOFILE, which" in line


FEW_DESCRIPTORS = """
import os, resource, sys
import poolbridge

with poolbridge.connect(sys.argv[1]) as client:
    unused = [os.dup(0) for _ in range(int(sys.argv[2]) + 1)]  # the lowest free numbers
    for fd in unused:
        os.close(fd)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[-1], most))
    try:
        client.allocate(4, "int32", pool="p")
        print("allocated")
    except poolbridge.PoolLimitError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(client.allocate(4, "int32", pool="p").shape)
"""


@pytest.mark.parametrize("free", [1, 2])
def test_the_first_allocation_with_few_free_descriptors_names_the_limit_and_loses_nothing(free):
    with poolbridge.serve(pools=["name=p,kind=host,max=1MiB"]) as service:
        done = subprocess.run(
            [sys.executable, "-c", FEW_DESCRIPTORS, service.path, str(free)], capture_output=True, text=True, timeout=60
        )
    first, second = done.stdout.splitlines()
    copied = sys.version_info < (3, 13)  # until then, mmap keeps a copy of the descriptor
    assert first == "allocated" or "raise its limit RLIMIT_NOFILE" in first
    assert (first != "allocated") == (free == 1 or copied)
    assert second == "(4,)"


# The command line, and pytest


def test_the_package_is_a_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "poolbridge", "version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("poolsvc ")


def test_without_a_program_the_command_line_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "poolbridge", "version"],
        env=os.environ | {"POOLBRIDGE_POOLSVC": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no program" in done.stderr


USER_TESTS = """
import numpy as np

def test_one(poolbridge_client):
    poolbridge_client.put(np.arange(4), "numbers", keep=True)

def test_two(poolbridge_client, poolbridge_service):
    assert poolbridge_client.get_array("numbers").tolist() == [0, 1, 2, 3]
    assert [pool.name for pool in poolbridge_client.pools()] == ["mine"]
    assert poolbridge_service.running
"""


def test_pytest_has_a_service_and_a_client(tmp_path):
    (tmp_path / "test_user.py").write_text(USER_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npoolbridge_pools =\n    name=mine,kind=host,max=1MiB\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
