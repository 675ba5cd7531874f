"""Runs the worker of ``poolsvc verify``, which reads tasks as lines of JSON and answers each with a line of JSON.

``{"task": "libraries"}``
    List the installed array libraries.
``{"task": "probe", "consumer": …}``
    Report which kinds of memory the consumer, an array library, can use. Without ``consumer``, report this for every
    installed library.
``{"task": "prepare", "consumer": …}``
    Import the Python packages that the consumer needs.
``{"task": "check", "name": …, "pattern": {…}, "then": {…}, "consumer": …, "write": …, "timeout": …}``
    Lease a buffer. Make an array of the consumer's library in the buffer, without a copy, and compare every element of
    the array with ``pattern``. If all are equal and the task has a ``then``, write the pattern ``then``.
``{"task": "hold", "name": …, "write": …, "timeout": …}``
    Lease a buffer. Keep the lease until the task ``{"task": "release"}``, or until the worker is killed.

The module `scenarios` has more tasks. An answer has ``"ok": true``, or ``"ok": false`` with ``"error": {"type": …,
"code": …, "message": …}``. The worker ends at the end of its input. The worker imports an array library when a task
first needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import poolbridge
from poolbridge._libraries import consumers as _consumers
from poolbridge._libraries.patterns import Pattern
from poolbridge._verify import scenarios as _scenarios
from poolbridge._verify.failure import failure

if TYPE_CHECKING:
    from poolbridge._client.client import Client
    from poolbridge._client.lease import Lease
    from poolbridge._verify.outside import Imported
    from poolbridge._verify.slow import Reading
    from poolbridge._verify.streaming import Intake

_TIMEOUT = 60.0


class Worker:
    """Carries out tasks over one connection. The worker connects when a task first needs the connection.

    Parameters
    ----------
    socket
        Path of the service's socket; None: the default path.
    device
        The GPU to work on; None: the GPU that has the buffer's memory.
    """

    def __init__(self, socket: str | None, device: str | None = None) -> None:
        self._socket = socket
        self._device = device
        self._client: Client | None = None
        self._held: list[Lease] = []
        self.reading: tuple[Reading, int] | None = None
        self.imported: Imported | None = None
        self.intakes: dict[str, Intake] = {}

    @property
    def _connected(self) -> Client:
        return self.client({})

    def client(self, task: dict[str, Any]) -> Client:
        """Return the client. The first call connects, and waits until the service runs, up to the task's time limit."""
        if self._client is None:
            self._client = poolbridge.connect(self._socket, wait=task.get("timeout", _TIMEOUT), device=self._device)
        return self._client

    def disconnect(self) -> None:
        """Close the connection. This unmaps all memory of the service."""
        self.intakes.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def libraries(self, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """List the installed array libraries, the preferred library first."""
        return {"libraries": _consumers.installed()}

    def probe(self, task: dict[str, Any]) -> dict[str, Any]:
        """Report the libraries, kinds of memory and GPUs that this interpreter can use."""
        found = _consumers.probe(task.get("consumer"))
        return {"python": sys.version.split()[0], "executable": sys.executable, **found}

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Import the Python packages that the task's consumer needs."""
        return {"version": _consumers.preload(task["consumer"])}

    def check(self, task: dict[str, Any]) -> dict[str, Any]:
        """Compare a buffer with a pattern. If they are equal, write the pattern ``then``, if the task has one."""
        started = time.monotonic()
        then = Pattern(**task["then"]) if task.get("then") else None
        write = bool(task.get("write", then is not None))
        consumer = _consumers.load(task.get("consumer", "numpy"))
        with self._connected.get(task["name"], write=write, timeout=task.get("timeout", _TIMEOUT)) as lease:
            evidence = lease.evidence()
            array = consumer.take(lease)
            pointer = consumer.pointer(array)
            result = consumer.compare(array, Pattern(**task["pattern"]))
            written = then is not None and not result.mismatches
            if then is not None and written:
                consumer.fill(array, lease, then)
            answer = {
                "elements": lease.size,
                "dtype": lease.dtype_name,
                "device": lease.device,
                "consumer": consumer.name,
                "version": consumer.version(),
                "mapped": bool(evidence.get("mapped")) and pointer == evidence["pointer"],
                "evidence": evidence,
                "mismatches": result.mismatches,
                "first": result.first,
                "written": written,
            }
            del array
        self.settle()
        return {**answer, "seconds": round(time.monotonic() - started, 6)}

    def hold(self, task: dict[str, Any]) -> dict[str, Any]:
        """Take a lease and keep it."""
        lease = self._connected.get(task["name"], write=bool(task.get("write")), timeout=task.get("timeout", _TIMEOUT))
        self._held.append(lease)
        return {"pid": os.getpid(), "buffer": lease.buffer_id, "held": len(self._held), **lease.evidence()}

    def release(self, task: dict[str, Any]) -> dict[str, Any]:
        """Release the leases that `hold` took."""
        held, self._held = self._held, []
        for lease in held:
            lease.release(failed=bool(task.get("failed")))
        self.settle()
        return {"released": len(held)}

    def settle(self) -> None:
        """Wait until the service has processed the releases that this worker sent. A release has no reply.

        The service processes a release before later requests. So this method waits for the reply to a later request.
        """
        self._connected.stats()

    def carry_out(self, line: str) -> dict[str, Any]:
        """Carry out one task and return its answer. If the task raises an exception, the answer describes it."""
        try:
            task = json.loads(line)
            name = task.get("task") if isinstance(task, dict) else None
            if name in _scenarios.TASKS:
                return {"ok": True, "task": name, **_scenarios.TASKS[name](self, task)}
            if name not in _TASKS:
                raise ValueError(f"unknown task {name!r}: expected one of {', '.join((*_TASKS, *_scenarios.TASKS))}")
            return {"ok": True, "task": name, **getattr(self, name)(task)}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return {"ok": False, "error": failure(error)}

    def close(self) -> None:
        """Release everything and disconnect."""
        self._held.clear()
        self.disconnect()


_TASKS = ("libraries", "probe", "prepare", "check", "hold", "release")


def serve(worker: Worker, tasks: IO[str], answers: IO[str]) -> None:
    """Answer tasks until the end of the input."""
    for line in tasks:
        if line.strip():
            answers.write(json.dumps(worker.carry_out(line)) + "\n")
            answers.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the tasks on standard input."""
    parser = argparse.ArgumentParser(
        prog="python -m poolbridge.worker",
        description="Carry out the tasks of `poolsvc verify`, one JSON object a line.",
    )
    parser.add_argument("--socket", help="the service's socket (default: as poolbridge.connect() finds it)")
    parser.add_argument("--device", help="the GPU to work on, where it is not the one that has the memory")
    options = parser.parse_args(arguments)
    worker = Worker(options.socket, options.device)
    warnings.simplefilter("ignore", poolbridge.ReadOnlyWarning)  # the tasks write only what they lease for writing
    # Only answers may go to standard output. Array libraries may print to it, so their output goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        with answers:
            serve(worker, sys.stdin, answers)
    finally:
        worker.close()
    return 0
