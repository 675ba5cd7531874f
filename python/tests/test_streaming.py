"""Tests the tasks that use channels, in the worker of `poolsvc verify`."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import ctypes

import numpy as np
from realservice import RealService
from test_worker import Process


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


@pytest.fixture
def worker(service):
    process = Process("--socket", service.path)
    yield process
    process.stop()


def publish(client, channel, number, values):
    lease = client.allocate(len(values), "uint64")
    np.asarray(lease)[:] = np.array(values, np.uint64)
    channel.publish(lease, meta={"number": str(number)})


def test_frames_are_compared_with_the_fibonacci_numbers_from_their_own_number_on(client, worker):
    channel = client.create_channel("c")
    publish(client, channel, 10, [55, 89, 144, 233])
    take = {"task": "stream-take", "name": "c", "count": 1, "oldest": True}
    answer = worker.do(**take, keep=True)
    assert (answer["numbers"], answer["sequence"], answer["mismatches"]) == ([10], [1], 0)
    assert answer["mapped"]
    publish(client, channel, 94, [1293530146158671551, 1, 2, 3])
    answer = worker.do(**take)
    assert answer["numbers"] == [94]
    assert answer["mismatches"] == 3, "modulo 2**64, only the first is right"
    assert answer["first"][0].startswith("frame 2: element 1: expected ")
    assert worker.do(task="stream-release", name="c")["numbers"] == [10]
    channel.close()
    assert worker.do(**take)["ended"]
    assert worker.do(task="stream-leave")["ok"]


def test_a_frame_that_changes_while_it_is_kept_is_found(client, worker):
    channel = client.create_channel("c")
    lease = client.allocate(2, "uint64")
    array = np.asarray(lease)
    array[:] = [1, 1]
    channel.publish(lease, meta={"number": "1"})
    assert worker.do(task="stream-take", name="c", count=1, oldest=True, keep=True)["mismatches"] == 0
    ctypes.c_uint64.from_address(array.ctypes.data + 8).value = 7  # by the address, because the array is read-only
    assert worker.do(task="stream-release", name="c")["mismatches"] == 1


def test_a_worker_says_why_it_could_not_publish_all(client, worker):
    channel = client.create_channel("c", capacity=2, full="fail")
    with client.subscribe(channel):
        task = {"task": "stream-publish", "name": "c", "pool": channel.pool, "number": 1, "count": 5, "elements": 3}
        answer = worker.do(**task)
        assert answer["ok"], answer
        assert (answer["rounds"], answer["stopped"]["code"]) == (2, "limit")
