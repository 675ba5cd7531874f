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
    process = Process("--socket", service.path, "--library", "numpy")
    yield process
    process.stop()


ELEMENTS = 4096


def fibonacci(number):
    """Return the Fibonacci numbers from F(number) on, modulo 2**64."""
    values, (first, second) = [], (0, 1)
    for at in range(number + ELEMENTS):
        if at >= number:
            values.append(first)
        first, second = second, (first + second) % 2**64
    return np.array(values, np.uint64)


def publish(client, channel, number, values):
    lease = client.allocate(len(values), "uint64")
    array = np.asarray(lease)
    array[:] = values
    channel.publish(lease, meta={"number": number})
    return array


def test_frames_are_compared_with_the_fibonacci_numbers_from_their_own_number_on(client, worker):
    channel = client.create_channel("c")
    publish(client, channel, 10, fibonacci(10))
    take = {"channel": "c", "count": 1, "oldest": True}
    taken = worker.do("take", **take, keep=True)
    assert taken == {"answer": [{"number": 10, "seq": 1, "dropped": 0}], "error": None}
    wrong = fibonacci(94)
    wrong[1:4] += np.uint64(1)
    publish(client, channel, 94, wrong)
    said = worker.do("take", **take, keep=False)["error"]["message"]
    assert said.startswith("3 elements differ: element 1: expected ")
    assert worker.do("releaseKept", channel="c")["error"] is None
    channel.close()
    assert worker.do("take", **take, keep=False) == {"answer": [], "error": None}
    assert worker.do("leave") == {"answer": None, "error": None}


def test_a_frame_that_changes_while_it_is_kept_is_found(client, worker):
    channel = client.create_channel("c")
    array = publish(client, channel, 1, fibonacci(1))
    assert worker.do("take", channel="c", count=1, oldest=True, keep=True)["error"] is None
    ctypes.c_uint64.from_address(array.ctypes.data + 8).value = 7  # by the address, because the array is read-only
    assert worker.do("releaseKept", channel="c")["error"]["message"].startswith("1 elements differ: element 1: ")


def test_a_worker_says_why_it_could_not_publish_all(client, worker):
    channel = client.create_channel("c", capacity=2, full="fail")
    with client.subscribe(channel):
        answer = worker.do("publish", channel="c", pool=channel.pool, first=1, last=5, timeout=60)
        assert answer["error"]["code"] == "limit"
        assert [channel.published for channel in client.channels()] == [2]
