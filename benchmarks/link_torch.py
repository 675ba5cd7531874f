"""Sends tensors through ``torch.multiprocessing``."""

from __future__ import annotations

import importlib.util
from multiprocessing.context import SpawnContext
from typing import Any, ClassVar

from link import InTurn

from poolbridge._bench.arrays import HEAD, number_of


class TorchLink(InTurn):
    """Sends tensors on the CPU as file descriptors of shared memory.

    The producer makes the tensors once and sends them again and again, as PyTorch's notes on multiprocessing recommend:
    before it sends a new tensor, PyTorch has to copy that tensor into shared memory.
    """

    name = "torch.multiprocessing"
    kind = "host"
    copies = False
    device: ClassVar[str] = "cpu"
    strategy: ClassVar[str] = "file_descriptor"
    """PyTorch's way to share memory of the CPU. This value is PyTorch's default on Linux."""

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        # When Python imports torch.multiprocessing, queues of multiprocessing begin to share tensors without a copy.
        import torch.multiprocessing

        self._queue: Any = torch.multiprocessing.get_context("spawn").Queue(depth)
        self._tensors: list[Any] = []

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the link; empty if nothing is missing."""
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        import torch

        return "" if cls.device == "cpu" or torch.cuda.is_available() else "torch sees no GPU"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": []}

    def _share(self) -> None:
        import torch.multiprocessing

        torch.multiprocessing.set_sharing_strategy(self.strategy)

    def open_to_send(self) -> None:
        """Make the tensors."""
        import torch

        self._share()
        for _ in range(self.places):
            tensor = torch.ones(max(self.nbytes, HEAD.itemsize), dtype=torch.uint8, device=self.device)
            self._tensors.append(tensor.share_memory_())
        if self.device != "cpu":
            torch.cuda.synchronize()

    def send(self, number: int) -> None:
        """Put the next tensor into the queue."""
        tensor = self._tensors[self.free_place(number)]
        if self.device == "cpu":
            tensor.numpy()[: HEAD.itemsize].view(HEAD)[0] = number
        self._queue.put((number, tensor))

    def finish(self) -> None:
        """Put None into the queue."""
        self._queue.put(None)

    def close(self) -> None:
        """End the queue's thread."""
        self._queue.close()
        self._queue.join_thread()
        self._tensors.clear()

    def open_to_receive(self) -> None:
        """Import torch."""
        self._share()

    def receive(self) -> tuple[int, Any] | None:
        """Get a tensor from the queue."""
        item = self._queue.get()
        if item is None:
            return None
        number, tensor = item
        return (number_of(tensor.numpy()) if self.device == "cpu" else number), tensor


class TorchFileLink(TorchLink):
    """Sends tensors on the CPU as names of files in shared memory, without descriptors."""

    name = "torch.multiprocessing, file_system"
    strategy = "file_system"


class TorchDeviceLink(TorchLink):
    """Sends tensors on a GPU as legacy CUDA handles of the tensors' memory. PyTorch caches the handles."""

    kind = "device"
    device = "cuda"
