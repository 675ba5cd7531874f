"""Does tasks of the worker of ``poolsvc verify``: tasks that share memory without the service, and the task ``fork``.

The tasks share memory by file descriptors, by legacy handles of the driver, or by ``multiprocessing``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import poolbridge
from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda.cuda import call, current
from poolbridge._cuda.imports import VirtualBlock
from poolbridge._libraries import consumers as _consumers, patterns as _patterns
from poolbridge._libraries.patterns import Pattern
from poolbridge._verify.failure import failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue

    from poolbridge._verify.worker import Worker

_TIMEOUT: Final = 60.0
_MANAGED: Final = 83  # CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
_ATTACH_GLOBAL: Final = 1


class Imported:
    """Memory of a GPU that this process imports by a file descriptor, which the listener at the socket `path` sends."""

    def __init__(self, ordinal: int, path: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(path)
            size, descriptors, _, _ = socket.recv_fds(peer, 8, 1)
        try:
            self._ordinal = ordinal
            self._block = VirtualBlock(ordinal, descriptors[0], int.from_bytes(size, "little"))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._address = self._block.address(write=True)

    def compare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Compare the memory with the task's ``pattern``. If the task has a ``then``, write this second pattern."""
        pattern = Pattern(**task["pattern"])
        seen = np.empty(task["elements"], np.uint32)
        _cuda.copy_to_host(self._ordinal, seen, self._address)
        result = _patterns.compare(np, seen, pattern)
        if task.get("then"):
            then = _patterns.make(Pattern(**task["then"]), seen.size, seen.dtype)
            _cuda.copy_from_host(self._ordinal, self._address, then)
        return {
            "elements": seen.size,
            "mismatches": result.mismatches,
            "first": result.first,
            "written": bool(task.get("then")),
        }

    def close(self) -> None:
        """Unmap the memory."""
        self._block.close()


def descriptor(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Do the task ``descriptor``: map memory by a file descriptor from a socket, and compare the memory with a pattern.

    The memory stays mapped until the task ``descriptor-close``.
    """
    worker.imported = Imported(_cuda.find_device(task["device"]), task["path"])
    return worker.imported.compare(task)


def descriptor_close(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Compare once more the memory that the task ``descriptor`` has mapped. Then unmap the memory."""
    imported, worker.imported = worker.imported, None
    if imported is None:
        raise ValueError("no descriptor was opened: expected descriptor before descriptor-close")
    try:
        return imported.compare(task)
    finally:
        imported.close()


def refused(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Ask the driver for legacy handles of memory that cannot have legacy handles. Report the error of each request."""
    ordinal = _cuda.find_device(task["device"])
    pageable = np.zeros(1, np.uint64)
    found: dict[str, Any] = {}

    def ask(name: str, address: int) -> None:
        try:
            call("cuIpcGetMemHandle", address)
        except poolbridge.DriverError as error:
            found[name] = failure(error)
        else:
            found[name] = None

    with current(ordinal):
        ask("pageable", int(pageable.ctypes.data))
        if call("cuDeviceGetAttribute", _cuda.bindings().CUdevice_attribute(_MANAGED), ordinal):
            managed = call("cuMemAllocManaged", 4096, _ATTACH_GLOBAL)
            ask("managed", int(managed))
            call("cuMemFree", managed)
    return {"refused": found}


def pickled(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Send a buffer of cuda.core by pickle to a spawned process, and compare what that process writes to it."""
    import multiprocessing

    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    size = task["elements"] * 4
    ordinal = _cuda.find_device(task["device"])
    device = Device(ordinal)
    device.set_current()
    stream = device.create_stream()
    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(ipc_enabled=True, max_size=2 * size))
    buffer = pool.allocate(size, stream=stream)
    stream.sync()
    context = multiprocessing.get_context("spawn")
    there: Queue[Any] = context.Queue()
    back: Queue[Any] = context.Queue()
    child = context.Process(target=_pickled_in_child, args=(ordinal, task["pattern"], task["then"], there, back))
    child.start()
    try:
        _cuda.copy_from_host(
            ordinal, int(buffer.handle), _patterns.make(Pattern(**task["pattern"]), size // 4, np.uint32)
        )
        there.put(buffer)
        answer: dict[str, Any] = back.get(timeout=_TIMEOUT)
        child.join(_TIMEOUT)
        if child.exitcode != 0:
            raise RuntimeError(f"the child ended with {child.exitcode}")
        seen = np.empty(size // 4, np.uint32)
        _cuda.copy_to_host(ordinal, seen, int(buffer.handle))
        result = _patterns.compare(np, seen, Pattern(**task["then"]))
        if buffer.is_mapped:
            raise RuntimeError("a buffer of this process says that it is mapped from another")
        answer["mismatches"] += result.mismatches
        answer["first"] += result.first
        return answer
    finally:
        if child.is_alive():
            child.kill()
        buffer.close(stream)
        stream.sync()
        pool.close()


def _pickled_in_child(
    ordinal: int, pattern: dict[str, Any], then: dict[str, Any], there: Queue[Any], back: Queue[Any]
) -> None:
    """In the spawned process, receive the buffer, compare it with `pattern`, write `then`, and answer the parent."""
    from cuda.core import Device

    device = Device(ordinal)
    device.set_current()
    stream = device.create_stream()
    buffer = there.get(timeout=_TIMEOUT)
    seen = np.empty(buffer.size // 4, np.uint32)
    _cuda.copy_to_host(ordinal, seen, int(buffer.handle))
    result = _patterns.compare(np, seen, Pattern(**pattern))
    _cuda.copy_from_host(ordinal, int(buffer.handle), _patterns.make(Pattern(**then), seen.size, seen.dtype))
    answer = {
        "elements": seen.size,
        "mapped": bool(buffer.is_mapped),
        "mismatches": result.mismatches,
        "first": result.first,
        "written": True,
    }
    buffer.close(stream)
    stream.sync()
    back.put(answer)


def fork(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Fork while this process has a lease. Report the errors that the child gets when it uses the client or the lease.

    If the buffer is of kind ``host``, fork a second child, which reads the array. The answer has the number of the
    signal that ends the second child.
    """
    client = worker.client(task)
    with client.get(task["name"], timeout=task.get("timeout", _TIMEOUT)) as lease:
        consumer = _consumers.load(task["consumer"])
        array, pattern = consumer.take(lease), Pattern(**task["pattern"])
        raised, status = _in_child({"client": client.stats, "lease": lease.__dlpack__})
        answer: dict[str, Any] = {"raised": raised, "signal": 0}
        if status != 0:
            raise RuntimeError(f"the child ended with {status}")
        if lease.kind == "host":
            _, status = _in_child({"array": partial(consumer.compare, array, pattern)})
            answer["signal"] = max(0, -status)
        result = consumer.compare(array, pattern)
        answer |= {"elements": lease.size, "mismatches": result.mismatches, "first": result.first}
        del array
    worker.settle()
    return answer


def _in_child(actions: dict[str, Callable[[], Any]]) -> tuple[dict[str, str], int]:
    """Run `actions` in a forked child. Return the type of each action's exception, and how the child ended.

    The second value is the child's exit status. If a signal ended the child, it is the negative number of this signal.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            raised = {}
            for name, action in actions.items():
                try:
                    action()
                except BaseException as error:  # noqa: BLE001 - its type is the answer
                    raised[name] = type(error).__name__
            os.write(writer, json.dumps(raised).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        if not select.select([reader], [], [], _TIMEOUT)[0]:
            os.kill(child, signal.SIGKILL)
        said = os.read(reader, 4096)
    finally:
        os.close(reader)
    _, status = os.waitpid(child, 0)
    return json.loads(said or b"{}"), os.waitstatus_to_exitcode(status)
