"""Scenario ``transfer``: one process writes; another process reads, and answers in the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from poolbridge._libraries.patterns import Pattern

if TYPE_CHECKING:
    from poolbridge._client.lease import BaseLease
    from poolbridge._verify.worker import Worker

Fields = dict[str, Any]  # the fields of a pattern
HALVES: Final = "first", "second"  # the arrays of a pattern in halves


def compare(worker: Worker, lease: Any, expect: Fields, then: Fields | None = None) -> None:
    """Compare a lease with a pattern, through arrays of the library; then write the pattern `then`, if given."""
    consumer, pattern = worker.consumer, Pattern(**expect)
    parts = [lease[name] for name in HALVES] if pattern.halves else [lease]
    arrays = [consumer.take(part) for part in parts]
    pattern.compare(np.concatenate([consumer.copy(array) for array in arrays]))
    if then:
        _fill(worker, parts, arrays, Pattern(**then))


def _fill(worker: Worker, parts: list[Any], arrays: list[Any], pattern: Pattern) -> None:
    for part, array, values in zip(parts, arrays, np.split(pattern.values(), len(parts)), strict=True):
        worker.consumer.fill(array, part, values)


def in_place(worker: Worker, lease: BaseLease, first: Any = None) -> None:
    """Make sure that the library's array is the shared memory; of several arrays, the first one."""
    consumer, evidence = worker.consumer, lease._evidence()  # noqa: SLF001
    taken = consumer.take(lease if first is None else first)
    if not evidence["mapped"] or consumer.pointer(taken) != evidence["pointer"]:
        raise AssertionError(f"the array of {consumer.name} is not the shared memory: it was copied")


def check(worker: Worker, name: str, expect: Fields, then: Fields | None) -> None:
    """Compare a buffer with a pattern, and make sure that the array is no copy; then write `then`, if given."""
    with worker.lease(name, write=then is not None) as lease:
        in_place(worker, lease, lease[HALVES[0]] if Pattern(**expect).halves else None)
        compare(worker, lease, expect, then)


def produce(worker: Worker, pool: str, name: str, content: Fields) -> None:
    """Allocate a buffer, write a pattern and publish the buffer under a name. The name stays when the worker ends."""
    pattern, client, consumer = Pattern(**content), worker.client(), worker.consumer
    shape: Any = (pattern.elements,)
    if pattern.halves:
        shape = dict.fromkeys(HALVES, ((pattern.elements // 2,), pattern.dtype))
    with client.allocate(shape, pattern.dtype, pool=client.open_pool(pool)) as lease:
        parts = [lease[half] for half in HALVES] if pattern.halves else [lease]
        _fill(worker, parts, [consumer.take(part) for part in parts], pattern)
        del parts
        lease.publish(name, keep=True)
    worker.settle()


def both(worker: Worker, name: str, first: Fields, second: Fields) -> None:
    """Write a pattern with the library, and compare it on the CPU. Then write and compare the other way round.

    Then print and copy the library's array as users do, who name no device.
    """
    with worker.lease(name, write=True) as lease:
        consumer = worker.consumer
        array, cpu = consumer.take(lease), np.asarray(lease)
        consumer.fill(array, lease, Pattern(**first).values())
        Pattern(**first).compare(cpu)
        cpu[:] = Pattern(**second).values()
        Pattern(**second).compare(consumer.copy(array))
        plain = consumer.take_plain(lease)
        if plain is not None:
            _print(plain)
            Pattern(**second).compare(np.array(plain.cpu() if hasattr(plain, "cpu") else plain))
        del array, cpu, plain


def _print(array: Any) -> None:
    """Print an array and its first element, for the work that the library does."""
    repr(array)
    float(array[0])
