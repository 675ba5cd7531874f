"""Does more tasks of the worker of ``poolsvc verify``. Each task is a typical use of shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import poolbridge
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._libraries import consumers as _consumers, patterns as _patterns
from poolbridge._libraries.patterns import Pattern
from poolbridge._memory.legacyhandle import LegacyHandle
from poolbridge._verify import outside as _outside, peer as _peer, slow as _slow, streaming as _streaming
from poolbridge._verify.failure import failure

if TYPE_CHECKING:
    from poolbridge._client.lease import Lease
    from poolbridge._verify.worker import Worker

_TIMEOUT: Final = 60.0


def _compare(lease: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Compare a lease's elements with the task's pattern. If they are equal, do the task's ``then`` or ``transform``.

    ``then`` is a pattern to write. ``transform`` is a scale and an offset to apply to each element.
    """
    consumer = _consumers.load(task.get("consumer", "numpy"))
    array = consumer.take(lease)
    result = consumer.compare(array, Pattern(**task["pattern"]))
    written = False
    if not result.mismatches and task.get("then"):
        consumer.fill(array, lease, Pattern(**task["then"]))
        written = True
    elif not result.mismatches and task.get("transform"):
        consumer.transform(array, lease, task["transform"]["scale"], task["transform"].get("offset", 0))
        written = True
    return {"elements": lease.size, "mismatches": result.mismatches, "first": result.first, "written": written}


def _get(worker: Worker, task: dict[str, Any], *, write: bool = False) -> Lease:
    return worker.client(task).get(task["name"], write=write, timeout=task.get("timeout", _TIMEOUT))


def produce(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Allocate a buffer, write a pattern and publish the buffer under a name. The name stays when the worker ends."""
    pattern = Pattern(**task["pattern"])
    client = worker.client(task)
    client.open_pool(task["pool"], timeout=task.get("timeout", _TIMEOUT))
    lease = client.allocate((task["elements"],), _patterns.DTYPES[pattern.kind], pool=task["pool"])
    with lease:
        consumer = _consumers.load(task.get("consumer", "numpy"))
        array = consumer.take(lease)
        consumer.fill(array, lease, pattern)
        del array
        lease.publish(task["name"], keep=True)
    worker.settle()
    return {"elements": task["elements"], "written": True}


def wait(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Wait until the service runs, or until a pool, a channel or a name exists."""
    started = time.monotonic()
    limit = task.get("timeout", _TIMEOUT)
    client = worker.client(task)
    match task.get("what"):
        case "service":
            pass
        case "pool":
            client.open_pool(task["name"], timeout=limit)
        case "channel":
            client.open_channel(task["name"], timeout=limit)
        case "name":
            client.get(task["name"], timeout=limit).release()
        case other:
            raise ValueError(f"what is {other!r}? expected service, pool, name or channel")
    worker.settle()
    return {"waited": time.monotonic() - started}


def forbidden(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Lease a buffer for reading, try to write the buffer by poolbridge and by the driver, and then compare it."""
    api = driver = None
    with _get(worker, task) as lease:
        try:
            lease.copy_from(0)
        except Exception as error:  # noqa: BLE001 - it is the answer
            api = failure(error)
        if lease.kind != "host":
            ordinal = lease.view(device="cuda").__dlpack_device__()[1]
            try:
                _cuda.copy_from_host(ordinal, lease.evidence()["pointer"], np.zeros(4, np.uint8))
            except poolbridge.DriverError as error:
                driver = failure(error)
        answer = _compare(lease, task)
    worker.settle()
    return {**answer, "api": api, "driver": driver}


def context_life(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Map several buffers, compare them, unmap them and disconnect; repeat this as often as the task says."""
    if task.get("destroy"):
        raise ValueError("this worker keeps the context, which it shares with the array libraries")
    answer: dict[str, Any] = {"mismatches": 0}
    for done in range(task["rounds"]):
        client = worker.client(task)
        leases = [client.get(name, timeout=task.get("timeout", _TIMEOUT)) for name in task["names"]]
        for lease in leases:
            answer = _compare(lease, task)
            if answer["mismatches"]:
                break
        for lease in leases:
            lease.release()
        del lease, leases, client
        worker.disconnect()
        answer["rounds"] = done + 1
        if answer["mismatches"]:
            break
    answer.pop("elements", None)
    return answer


def both(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Write a pattern by the task's library, and compare it on the CPU. Then write and compare the other way round.

    The other way round, NumPy writes the second pattern on the CPU, and the library compares. Then do with the
    library's array what users do with an array.
    """
    first, second = Pattern(**task["pattern"]), Pattern(**task["then"])
    with _get(worker, task, write=True) as lease:
        consumer = _consumers.load(task["consumer"])
        array = consumer.take(lease)
        cpu = np.asarray(lease).reshape(-1)
        consumer.fill(array, lease, first)
        seen = _patterns.compare(np, cpu, first)
        if not seen.mismatches:
            _patterns.fill(np, cpu, second)
            seen = consumer.compare(array, second)
        if not seen.mismatches:
            seen = _patterns.compare(np, consumer.everyday(lease).reshape(-1), second)
        answer = {
            "elements": lease.size,
            "mismatches": seen.mismatches,
            "first": seen.first,
            "written": True,
            "pointers": [consumer.pointer(array), int(cpu.ctypes.data)],
        }
        del array, cpu
    worker.settle()
    return answer


def open_file(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Load a legacy handle from a file, open it without the service, and compare the memory with a pattern."""
    handle = LegacyHandle.load(task["path"])
    device = handle.device or task.get("device") or None
    dtype = _patterns.DTYPES[task["pattern"].get("kind", "affine")]
    with handle.open(device, shape=(task["elements"],), dtype=dtype) as memory:
        return {**_compare(memory, task), "mapped": True}


def wait_by(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Make a stream wait for a buffer's content, make the CPU wait for the stream, and then compare the buffer."""
    ordinal = _cuda.find_device(task["device"])
    with _get(worker, task) as lease:
        if (lease.ready_event is not None) != (task["what"] == "event"):
            raise ValueError(f"the lease came with something else to wait for than {task['what']!r}")
        stream = _cuda_stream.own_stream(ordinal)
        started = time.monotonic()
        lease.used_on(stream)
        _cuda_stream.synchronize_stream(ordinal, stream)
        waited = time.monotonic() - started
        answer = _compare(lease, task)
    worker.settle()
    return {**answer, "waited": waited}


TASKS: Final[dict[str, Callable[[Worker, dict[str, Any]], dict[str, Any]]]] = {
    "produce": produce,
    "wait": wait,
    "forbidden": forbidden,
    "context-life": context_life,
    "both": both,
    "open-file": open_file,
    "await": wait_by,
    "peer": _peer.compare,
    "slow-begin": _slow.begin,
    "slow-end": _slow.end,
    "descriptor": _outside.descriptor,
    "descriptor-close": _outside.descriptor_close,
    "refused": _outside.refused,
    "pickled": _outside.pickled,
    "fork": _outside.fork,
    "stream-take": _streaming.take,
    "stream-release": _streaming.release,
    "stream-leave": _streaming.leave,
    "stream-publish": _streaming.publish,
    "stream-relay": _streaming.relay,
    "stream-close": _streaming.close,
}
