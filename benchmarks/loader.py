"""Measures batches a second of PyTorch's DataLoader, with and without `poolbridge.torch.Collate`.

``python benchmarks/loader.py``. The samples exist already, and each batch has three arrays. With a GPU, the trainer
copies each batch to it, and the loaders run with ``pin_memory`` and with memory of kind ``pinned``, too. If SPDL is
installed, its threads make the batches, and one thread copies them to the GPU. Each figure is the median of several
epochs, which the loaders run in turn; the last column is the ratio to the best of PyTorch's own.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import poolbridge
from poolbridge.torch import Collate

_ROWS = 16
_ROUNDS = 5


class Samples(Dataset):  # type: ignore[misc, unused-ignore] # PyTorch need not be installed
    """Samples of three arrays that exist already."""

    def __init__(self, nbytes: int, batches: int) -> None:
        self._samples = [tuple(torch.ones(nbytes // 12 // _ROWS) for _ in range(3)) for _ in range(_ROWS)]
        self._count = batches * _ROWS

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        return self._samples[number % _ROWS]


def epoch(loader: Any, device: str) -> float:
    """Return batches a second of one epoch, from the first batch on."""
    batches = iter(loader)
    next(batches)
    began, count = time.perf_counter(), 0
    for batch in batches:
        moved = [array.to(device, non_blocking=True) for array in batch]
        count += 1
    if device != "cpu":
        torch.cuda.synchronize()
    del moved, batch
    return count / (time.perf_counter() - began)


def spdl(samples: Samples, device: str, **options: Any) -> Any:
    """Return a loader of SPDL, as its documentation composes one for samples that need no preprocessing."""
    loader, io = importlib.import_module("spdl.dataloader"), importlib.import_module("spdl.io")
    workers, rows = options["num_workers"], options["batch_size"]

    class Batches:
        def __iter__(self) -> Iterator[list[Any]]:
            return ([samples[i + k] for k in range(rows)] for i in range(0, len(samples), rows))

    return loader.DataLoader(
        Batches(),
        preprocessor=torch.utils.data.default_collate,
        transfer_fn=io.transfer_tensor_h2d if device == "cuda" else None,
        buffer_size=2 * workers,
        num_threads=workers,
        output_order="input",
    )


def compare(makers: dict[str, Callable[..., Any]], mib: int, workers: int, device: str) -> None:
    """Measure batches of one size, and print a line for each loader."""
    batches = min(max(2048 // mib, 10 * workers), 1000)
    samples = Samples(mib << 20, batches)
    context = multiprocessing.get_context("forkserver")
    loaders = {
        what: make(
            samples,
            batch_size=_ROWS,
            num_workers=workers,
            persistent_workers=True,
            multiprocessing_context=context,
        )
        for what, make in makers.items()
    }
    found: dict[str, list[float]] = {what: [] for what in makers}
    for _ in range(_ROUNDS + 1):
        for what, loader in loaders.items():
            found[what].append(epoch(loader, device))
    medians = {what: statistics.median(rates[1:]) for what, rates in found.items()}  # the first epoch starts workers
    best = max(rate for what, rate in medians.items() if what.startswith("DataLoader"))
    for what, rate in medians.items():
        line = f"{mib:4} MiB  {what:28} {rate:10,.1f} batches/s {rate * mib / 1024:8.2f} GiB/s {rate / best:8.2f}\n"
        sys.stdout.write(line)
        sys.stdout.flush()


def main() -> None:
    """Run the comparisons that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64], help="sizes of a batch")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["poolbridge.torch"])
    most = max(options.mib) * (2 * options.workers + 16)
    kinds = ("host", "pinned") if device == "cuda" else ("host",)
    with poolbridge.serve(pools=[f"name={kind},kind={kind},max={most}MiB" for kind in kinds]) as service:
        collates = {kind: Collate(pool=kind, path=service.path) for kind in kinds}

        def made(**named: Any) -> Callable[..., Any]:
            return lambda *given, **options: DataLoader(*given, **options, **named)

        makers = {"DataLoader": made()}
        if device == "cuda":
            makers["DataLoader, pin_memory"] = made(pin_memory=True)
            makers["Collate, host, pin_memory"] = made(collate_fn=collates["host"], pin_memory=True)
        for kind, collate in collates.items():
            makers[f"Collate, {kind}"] = made(collate_fn=collate)
        if importlib.util.find_spec("spdl"):
            makers["SPDL (threads)"] = partial(spdl, device=device)
        else:
            sys.stdout.write("SPDL is not measured, because it is not installed: pip install spdl\n")
        sys.stdout.write(f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}\n")
        for mib in options.mib:
            compare(makers, mib, options.workers, device)


if __name__ == "__main__":
    main()
