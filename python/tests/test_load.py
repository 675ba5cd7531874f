"""Tests models that are loaded from files, and shared by all programs that ask for the same files."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from realservice import POOLSVC, leases, until
from test_members import service as service  # noqa: PLC0414 - a fixture

import poolbridge
from poolbridge import (
    AlreadyExistsError,
    ContentFailedError,
    InvalidArgumentError,
    NotFoundError,
    PoolLimitError,
    StaleError,
    WaitTimeoutError,
)

LOAD = """
import sys
import poolbridge

with poolbridge.connect(sys.argv[1]) as client:
    model = client.load(sys.argv[2], pool="p")
    print(model.buffer_id, float(model["w"][0]), flush=True)
    sys.stdin.read()
"""


def save(path: Path, **tensors: Any) -> Path:
    """Write a safetensors file."""
    header, data = {}, b""
    for name, values in tensors.items():
        array = np.asarray(values, "f4")
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture
def models(client, other):
    client.create_pool("p", kind="host", max_bytes="64MiB", exist_ok=True)
    return client, other


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)


@pytest.fixture
def first_loader(tmp_path, monkeypatch):
    """Let the first `poolsvc load` be a program in Python, and each later one the real one."""

    def use(program: str) -> None:
        began = tmp_path / "began"
        script = tmp_path / "loader"
        script.write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            f"try: os.close(os.open({str(began)!r}, os.O_CREAT | os.O_EXCL | os.O_WRONLY))\n"
            f"except FileExistsError: os.execv({POOLSVC!r}, [{POOLSVC!r}, *sys.argv[1:]])\n"
            "option = dict(zip(sys.argv, sys.argv[1:]))\n" + program
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("POOLBRIDGE_POOLSVC", str(script))

    return use


# What a loader does until it is killed.
PROMISES = """
import poolbridge
client = poolbridge.connect(option["--socket"])
lease = client.allocate({"w": (4, "f4")}, pool=option["--pool"])
promise = lease.promise()
lease.publish(option["--name"], keep="used")
print("published", flush=True)
sys.stdin.read()
"""


def test_programs_that_load_the_same_file_have_one_buffer(models, tmp_path, service):
    client, _ = models
    path = save(tmp_path / "m.safetensors", w=[1, 2], b=[[3]])
    mine = client.load_dict(path, pool="p")
    assert {name: array.tolist() for name, array in mine.items()} == {"w": [1, 2], "b": [[3]]}
    command = [sys.executable, "-c", LOAD, service.path, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        buffer, first = process.stdout.readline().split()
        assert float(first) == 1
        assert [int(buffer)] == [one.id for one in client.buffers()]
        with pytest.raises(ValueError, match="read-only"):
            mine["w"][0] = 7
        process.communicate()


def test_the_memory_of_a_loaded_model_is_free_after_its_last_program(models, tmp_path):
    client, other = models
    path = save(tmp_path / "m.safetensors", w=[1])
    first, second = client.load(path, pool="p"), other.load(path, pool="p")
    assert first.buffer_id == second.buffer_id
    (name,) = client.names()
    assert (name.name, name.session, name.while_used) == (first.name, None, True)
    first.release()
    assert np.asarray(other.get(name.name)["w"]) == [1]
    del second
    gc.collect()
    until(lambda: client.stats().buffers == 0)
    assert client.names() == []


def test_all_who_ask_at_once_get_what_one_of_them_loads(models, tmp_path):
    client, _ = models
    path = save(tmp_path / "m.safetensors", w=np.arange(1 << 18))
    barrier = threading.Barrier(8)

    def load(n: int) -> Any:
        barrier.wait()
        return models[n % 2].load(path, pool="p")

    with ThreadPoolExecutor(8) as threads:
        loaded = list(threads.map(load, range(8)))
    assert len({one.buffer_id for one in loaded}) == 1
    assert all((np.asarray(one["w"]) == np.arange(1 << 18)).all() for one in loaded)
    until(lambda: client.stats().buffers == 1)  # a program that was not the first drops its buffer


def test_a_file_that_has_changed_is_another_model(models, tmp_path):
    client, _ = models
    path = save(tmp_path / "m.safetensors", w=[1])
    old = client.load(path, pool="p")
    save(path, w=[2])
    os.utime(path, ns=(1, 1))  # in the same tick of the file system's clock
    assert (float(client.load(path, pool="p")["w"][0]), float(old["w"][0])) == (2, 1)


def test_files_with_the_same_size_header_and_time_of_modification_are_told_apart(models, tmp_path):
    client, _ = models
    for value in (1, 2):
        path = save(tmp_path / "m.safetensors", w=[value])
        os.utime(path, ns=(1, 1))
        kept = client.load(path, pool="p")
        assert float(kept["w"][0]) == value


def test_an_index_stands_for_the_files_that_it_names_and_that_are_beside_it(models, tmp_path):
    client, _ = models
    index = tmp_path / "index"
    index.write_text(json.dumps({"weight_map": {"w": "part/w"}}))
    loaded = []
    for value in (1, 2):
        folder = tmp_path / f"snapshot{value}"  # as in the cache of Hugging Face
        (folder / "part").mkdir(parents=True)
        (folder / "part" / "w").symlink_to(save(tmp_path / f"blob{value}", w=[value]))
        (folder / "model.safetensors.index.json").symlink_to(index)
        loaded += [client.load(folder / "model.safetensors.index.json", pool="p"), client.load(folder, pool="p")]
    assert [float(one["w"][0]) for one in loaded] == [1, 1, 2, 2]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        index.write_text(json.dumps({"weight_map": {"w": "nowhere"}}))
        client.load(index.rename(tmp_path / "x.index.json"), pool="p")
    (tmp_path / "x.index.json").write_text("{")
    with pytest.raises(InvalidArgumentError, match="no weight_map"):
        client.load(tmp_path / "x.index.json", pool="p")
    for outside in ("../x", "a/../../x", "/etc/passwd", "", "..", "x" * 100_000):
        (tmp_path / "x.index.json").write_text(json.dumps({"weight_map": {"w": outside}}))
        with pytest.raises(InvalidArgumentError, match="not in its folder") as error:
            client.load(tmp_path / "x.index.json", pool="p")
        assert len(str(error.value)) < 1000
    (tmp_path / "x.index.json").write_text(json.dumps({"weight_map": {"w": "\0"}}))
    with pytest.raises(InvalidArgumentError, match="no path"):
        client.load(tmp_path / "x.index.json", pool="p")


def test_each_pool_has_its_own_buffer_of_a_model(models, tmp_path):
    client, other = models
    client.create_pool("q", kind="host", max_bytes="1MiB")
    path = save(tmp_path / "m.safetensors", w=[1])
    first, second = client.load(path, pool="p"), other.load(path, pool="q")
    assert (first.pool, second.pool) == ("p", "q")


def test_a_name_that_somebody_has_taken_is_an_error(models, tmp_path):
    client, other = models
    client.create_pool("q", kind="host", max_bytes="1MiB")
    path = save(tmp_path / "m.safetensors", w=[1])
    with client.load(path, pool="p") as lease:
        name = lease.name
    until(lambda: client.names() == [])
    other.put(np.arange(3), name, pool="q")
    with pytest.raises(StaleError, match="not in 'p'"):
        client.load(path, pool="p")
    other.unpublish(name)
    lease = other.allocate(3, pool="p")
    promise = lease.promise()
    lease.publish(name, keep=True)
    promise.fail("no light")
    with pytest.raises(AlreadyExistsError):
        client.load(path, pool="p")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_is_forked_during_a_load_keeps_no_memory(models, tmp_path, first_loader):
    client, _ = models
    go = tmp_path / "go"
    os.mkfifo(go)
    first_loader(f"open({str(go)!r}).readline()\nos.execv({POOLSVC!r}, [{POOLSVC!r}, *sys.argv[1:]])")
    with ThreadPoolExecutor(1) as threads:
        loaded = threads.submit(client.load, save(tmp_path / "m.safetensors", w=[1]), pool="p")
        with go.open("w") as going:
            child = os.fork()
            if not child:
                signal.pause()
            going.write("\n")
        try:
            loaded.result().release()
            until(lambda: client.stats().buffers == 0, 30)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_model_of_several_files_is_found_by_its_folder_and_its_index(models, tmp_path):
    client, _ = models
    save(tmp_path / "a.safetensors", a=[1])
    save(tmp_path / "b.safetensors", b=[2])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    for path in (tmp_path, index, str(tmp_path), os.fsencode(tmp_path)):
        assert {k: v.tolist() for k, v in client.load_dict(path, pool="p").items()} == {"a": [1], "b": [2]}


def test_whoever_waits_for_a_program_that_is_killed_loads_the_model_itself(models, tmp_path, first_loader):
    client, other = models
    path = save(tmp_path / "m.safetensors", w=[5])
    first_loader(PROMISES)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(client.load, path, pool="p")
        until(lambda: client.stats().names == 1)
        second = threads.submit(other.load, path, pool="p")
        try:
            until(lambda: leases(client) == 3, 30)  # of the loader, and of both who wait
        finally:
            os.kill(next(one.pid for one in client.sessions() if one.program == "loader"), signal.SIGKILL)
        assert np.asarray(second.result()["w"]) == [5]
        with pytest.raises(poolbridge.ProducerDiedError):  # its own program was killed
            first.result()


def test_a_loader_that_is_killed_before_it_has_memory_has_died(models, tmp_path, first_loader):
    first_loader("os.kill(os.getpid(), 9)")
    with pytest.raises(poolbridge.ProducerDiedError, match="status -9"):
        models[0].load(save(tmp_path / "m.safetensors", w=[5]), pool="p")


def test_a_file_that_vanishes_during_a_load_leaves_no_lease(models, tmp_path, first_loader):
    client, _ = models
    path = save(tmp_path / "m.safetensors", w=[5])
    first_loader(PROMISES.replace("sys.stdin", f"os.unlink({str(path)!r})\npromise.complete()\nsys.stdin"))
    with pytest.raises(FileNotFoundError) as error:
        client.load(path, pool="p")
    until(lambda: client.stats().buffers == 0, 30)
    assert error.tb is not None  # it keeps the frames of the load


def test_a_program_with_a_time_limit_does_not_harm_those_who_wait_longer(models, tmp_path, first_loader):
    client, other = models
    path = save(tmp_path / "m.safetensors", w=[5])
    go = tmp_path / "go"
    os.mkfifo(go)
    first_loader(
        PROMISES.replace("sys.stdin.read()", f'open({str(go)!r}).read()\nlease["w"]\npromise.fail("no light")')
    )
    with ThreadPoolExecutor(1) as threads:
        patient = threads.submit(other.load, path, pool="p")
        until(lambda: client.stats().names == 1)
        with pytest.raises(WaitTimeoutError):
            client.load(path, pool="p", timeout=0)
        go.write_text("")
        with pytest.raises(ContentFailedError, match="no light"):
            patient.result()
    assert np.asarray(client.load(path, pool="p")["w"]) == [5]


def test_a_file_that_is_no_model_and_a_pool_without_room_are_errors_that_leave_nothing(models, tmp_path):
    client, _ = models
    client.create_pool("small", kind="host", max_bytes="4KiB")
    with pytest.raises(InvalidArgumentError, match="the header would have"):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(struct.pack("<Q", 1 << 40) + b"{")
        client.load(cut, pool="p")
    with pytest.raises(PoolLimitError, match='pool "small"'):
        client.load(save(tmp_path / "large.safetensors", w=np.zeros(1 << 16)), pool="small")
    with pytest.raises(FileNotFoundError):
        client.load(tmp_path / "none", pool="p")
    with pytest.raises(NotFoundError, match=r"no \*\.safetensors"):
        (tmp_path / "empty").mkdir()
        client.load(tmp_path / "empty", pool="p")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for bad, text in ((fifo, "no regular file"), (5, "no path"), (None, "no path")):
        with pytest.raises(InvalidArgumentError, match=text):
            client.load(bad, pool="p")
    assert (client.stats().names, client.stats().buffers) == (0, 0)


def test_asyncio_programs_load_models_too(models, tmp_path, service):
    path = save(tmp_path / "m.safetensors", w=[1, 2])

    async def main() -> Any:
        async with await poolbridge.connect_async(service.path) as client:
            loaded = await asyncio.gather(*(client.load_dict(path, pool="p") for _ in range(4)))
            return [one["w"].tolist() for one in loaded]

    assert asyncio.run(main()) == [[1, 2]] * 4


def test_a_name_that_is_kept_while_used_outlives_its_client(client, other, service):
    client.create_pool("p", kind="host", max_bytes="1MiB", exist_ok=True)
    with poolbridge.connect(service.path) as first:
        mine = first.put(np.arange(3), "n", pool="p", keep="used")
        lease = other.get("n")
        mine.release()
    with client.get("n") as again:
        assert again.to_numpy().tolist() == [0, 1, 2]
    lease.release()
    until(lambda: client.names() == [])
    with pytest.raises(NotFoundError):
        client.get("n")
    with pytest.raises(InvalidArgumentError, match='keep .never. is not known: expected one of True, False, "used"'):
        client.put(np.arange(3), "n", pool="p", keep="never")
