"""Tensors through ``torch.multiprocessing``."""

from __future__ import annotations

import importlib.util
from collections import deque
from multiprocessing.context import SpawnContext
from typing import Any

from poolbridge._bench_link import HEAD, Link, number_of


class TorchLink(Link):
    """A tensor on the CPU travels as a file descriptor of shared memory."""

    name = "torch.multiprocessing"
    kind = "host"
    copies = False
    device = "cpu"

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        import torch.multiprocessing

        del context
        self._queue: Any = torch.multiprocessing.get_context("spawn").Queue(depth)
        # A tensor must live until the consumer has it.
        self._alive: deque[Any] = deque(maxlen=depth + 2)

    @classmethod
    def missing(cls) -> str:
        """Look for torch."""
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        import torch

        return "" if cls.device == "cpu" or torch.cuda.is_available() else "torch sees no GPU"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_alive": deque(maxlen=self.depth + 2)}

    def open_to_send(self) -> None:
        """Start CUDA, where it is used."""
        self._new().add_(1)

    def _new(self) -> Any:
        import torch

        return torch.empty(max(self.nbytes, HEAD.itemsize), dtype=torch.uint8, device=self.device)

    def send(self, number: int) -> None:
        """Make a tensor and put it."""
        tensor = self._new()
        if self.device == "cpu":
            tensor.share_memory_()
            tensor.numpy()[: HEAD.itemsize].view(HEAD)[0] = number
        self._queue.put((number, tensor))
        self._alive.append(tensor)

    def finish(self) -> None:
        """Put a None."""
        self._queue.put(None)

    def close(self) -> None:
        """End the queue's thread."""
        self._alive.clear()
        self._queue.close()
        self._queue.join_thread()

    def receive(self) -> tuple[int, Any] | None:
        """Get it."""
        item = self._queue.get()
        if item is None:
            return None
        number, tensor = item
        return (number_of(tensor.numpy()) if self.device == "cpu" else number), tensor


class TorchDeviceLink(TorchLink):
    """A tensor on a GPU travels as a legacy handle of its allocation, which torch caches."""

    kind = "device"
    device = "cuda"
