"""Scenario ``transfer``: one process writes; another process reads, and answers in the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from poolbridge._libraries.patterns import Pattern

if TYPE_CHECKING:
    from poolbridge._client.lease import BaseLease
    from poolbridge._verify.worker import Worker

Fields = dict[str, Any]  # the fields of a pattern


def compare(worker: Worker, lease: Any, expect: Fields, then: Fields | None = None) -> None:
    """Compare a lease with a pattern, through an array of the library; then write the pattern `then`, if given."""
    consumer = worker.consumer
    array = consumer.take(lease)
    Pattern(**expect).compare(consumer.copy(array))
    if then:
        consumer.fill(array, lease, Pattern(**then).values())


def in_place(worker: Worker, lease: BaseLease) -> None:
    """Make sure that the library's array is the shared memory."""
    consumer, evidence = worker.consumer, lease._evidence()  # noqa: SLF001
    if not evidence["mapped"] or consumer.pointer(consumer.take(lease)) != evidence["pointer"]:
        raise AssertionError(f"the array of {consumer.name} is not the shared memory: it was copied")


def check(worker: Worker, name: str, expect: Fields, then: Fields | None) -> None:
    """Compare a buffer with a pattern, and make sure that the array is no copy; then write `then`, if given."""
    with worker.lease(name, write=then is not None) as lease:
        in_place(worker, lease)
        compare(worker, lease, expect, then)


def produce(worker: Worker, pool: str, name: str, content: Fields) -> None:
    """Allocate a buffer, write a pattern and publish the buffer under a name. The name stays when the worker ends."""
    pattern, client, consumer = Pattern(**content), worker.client(), worker.consumer
    with client.allocate((pattern.elements,), pattern.dtype, pool=client.open_pool(pool)) as lease:
        consumer.fill(consumer.take(lease), lease, pattern.values())
        lease.publish(name, keep=True)
    worker.settle()


def both(worker: Worker, name: str, first: Fields, second: Fields) -> None:
    """Write a pattern with the library, and compare it on the CPU. Then write and compare the other way round."""
    with worker.lease(name, write=True) as lease:
        consumer = worker.consumer
        array, cpu = consumer.take(lease), np.asarray(lease)
        consumer.fill(array, lease, Pattern(**first).values())
        Pattern(**first).compare(cpu)
        cpu[:] = Pattern(**second).values()
        Pattern(**second).compare(consumer.copy(array))
        del array, cpu
