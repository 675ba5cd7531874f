"""Scenario ``contexts``: memory across the life of CUDA contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolbridge._verify.transfer import Fields, compare

if TYPE_CHECKING:
    from poolbridge._verify.worker import Worker


def rounds(worker: Worker, names: list[str], expect: list[Fields], device: str, rounds: int, *, destroy: bool) -> None:  # noqa: ARG001
    """Map several buffers, compare them, unmap them and disconnect; do this several times.

    The process keeps its context, which it shares with the array libraries.
    """
    if destroy:
        raise ValueError("this worker cannot destroy its context")
    for _ in range(rounds):
        leases = [worker.client().get(name) for name in names]
        for lease, content in zip(leases, expect, strict=True):
            compare(worker, lease, content)
        for lease in leases:
            lease.release()
        del lease, leases
        worker.disconnect()
