"""Does the worker's task ``peer``: a kernel on one GPU compares memory of another GPU with a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._libraries.patterns import Pattern
from poolbridge._verify.slow import Reading

if TYPE_CHECKING:
    from poolbridge._client.lease import Lease
    from poolbridge._verify.worker import Worker


def compare(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Compare a buffer with a pattern on a stream of the task's GPU.

    The stream first waits until the buffer's content is complete.
    """
    ordinal = _cuda.find_device(task["device"])
    stream = _cuda_stream.own_stream(ordinal)
    lease: Lease = worker.client(task).get(task["name"], timeout=task["timeout"])
    reading = Reading(ordinal, task["path"], stream)
    with lease:
        lease.used_on(stream)
        reading.compare(lease.evidence()["pointer"], lease.size, Pattern(**task["pattern"]))
        answer = {"elements": lease.size, "mismatches": reading.finish(), "device": lease.device}
    worker.settle()
    return answer
