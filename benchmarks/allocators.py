"""Measures an allocation and a free in an arena of a GPU, beside the pools of the libraries.

``python benchmarks/allocators.py``: cuda.core, CuPy and PyTorch each allocate 1 MiB and free it, with their own pool
and in an arena, in turn. Each figure is the median of the rounds, in microseconds for an allocation and its free.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import cupy
import torch
from cuda.core import Device, DeviceMemoryResource

import poolbridge

_NBYTES, _CALLS, _ROUNDS = 1 << 20, 5000, 7


def _seconds(call: Callable[[], object], around: Callable[[], Any]) -> float:
    with around():
        for _ in range(100):
            call()
        began = time.perf_counter()
        for _ in range(_CALLS):
            call()
        return (time.perf_counter() - began) / _CALLS


def main() -> None:
    """Print a table."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    with poolbridge.connect(start=True) as client:
        client.create_pool("gpu", kind="device", max_bytes="1GiB")
        arena = client.arena("256MiB", pool="gpu")
        own, shared = DeviceMemoryResource(device), arena.memory_resource
        pool = arena.torch_pool("128MiB")

        def core(resource: Any) -> Callable[[], object]:
            return lambda: resource.allocate(_NBYTES, stream=stream).close()

        def with_cupy(allocator: Any) -> Callable[[], Any]:
            return lambda: cupy.cuda.using_allocator(allocator)

        def tensor() -> object:
            return torch.empty(_NBYTES, dtype=torch.uint8, device="cuda")

        rows: dict[str, tuple[tuple[Callable[[], object], Callable[[], Any]], ...]] = {
            "cuda.core": ((core(own), nullcontext), (core(shared), nullcontext)),
            "CuPy": tuple(
                (lambda: cupy.cuda.alloc(_NBYTES), with_cupy(one))
                for one in (cupy.get_default_memory_pool().malloc, arena.cupy_allocator)
            ),
            "PyTorch": ((tensor, nullcontext), (tensor, lambda: torch.cuda.use_mem_pool(pool))),
        }
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in rows}
        for _ in range(_ROUNDS):
            for name, pair in rows.items():
                found[name].append(tuple(_seconds(*one) * 1e6 for one in pair))
        sys.stdout.write(f"{torch.cuda.get_device_name()}, {_NBYTES >> 10} KiB, median of {_ROUNDS} rounds, µs\n")
        for name, times in found.items():
            theirs, ours = (statistics.median(column) for column in zip(*times, strict=True))
            sys.stdout.write(f"{name:10} own pool {theirs:6.2f}   arena {ours:6.2f}   ratio {ours / theirs:.2f}\n")
        pool = None
        arena.close()


if __name__ == "__main__":
    main()
