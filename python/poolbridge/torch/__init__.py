"""What poolbridge has for programs of PyTorch: models from files, which all processes of a user share, and batches.

Weights under a name: `Client.put` and `Client.get_dict`. Nothing else of poolbridge imports this module.
"""

from __future__ import annotations

import os

import torch as _torch

from poolbridge.errors import InvalidArgumentError
from poolbridge.torch._clients import client_at, own_pool
from poolbridge.torch._collate import Collate as Collate
from poolbridge.torch._dataset import ChannelDataset as ChannelDataset

__all__ = ["ChannelDataset", "Collate", "load_file"]


def load_file(
    filename: str | os.PathLike[str],
    device: str | int | _torch.device = "cpu",
    *,
    backend: str = "mmap",  # noqa: ARG001
) -> dict[str, _torch.Tensor]:
    """Load a safetensors file, as ``safetensors.torch.load_file`` does, into memory that all processes share.

    The first process that asks for a file loads it. Others that ask for the same file (see `Client.load`) get the same
    memory, without a copy. The memory is free when the last tensor of it in any process is gone.

    The function starts a service if none runs (see `connect`), and stays its client until the process ends. It makes
    pools that only this user may use: of kind ``host``, for at most three quarters of the machine's memory, and of kind
    ``vmm`` for each GPU. For another kind, another limit or more users, use `Client.load_dict`.

    Parameters
    ----------
    filename
        A file, the index of a model of several files (``*.index.json``), or a folder.
    device
        ``"cpu"``, or a GPU, as PyTorch names it; ``"cuda"`` is PyTorch's current one.
    backend
        Has no effect: it is there because ``safetensors.torch.load_file`` has it.

    Returns
    -------
    dict
        Tensors by their names. Their memory is read-only, which PyTorch does not know: a write ends the process, or on
        a GPU breaks its CUDA context. Clone a tensor before you write it.

    Raises
    ------
    OSError
        The file cannot be read.
    InvalidArgumentError
        It is no safetensors file, or `device` is neither the CPU nor a GPU of CUDA.
    DeviceMemoryError
        The device or the machine has not enough free memory.
    PoolbridgeError
        See `connect` and `Client.load`.
    """
    place = _torch.device(device)
    if place.type not in {"cpu", "cuda"}:
        raise InvalidArgumentError(f'device {place} cannot be shared: expected "cpu" or a GPU such as "cuda:0"')
    client, name = client_at(None), f"load_file {os.geteuid()}"
    if place.type == "cpu":
        pool = own_pool(client, f"{name} cpu")
    else:
        properties = _torch.cuda.get_device_properties(place)
        device = f"GPU-{properties.uuid}"
        pool = own_pool(client, f"{name} {device}", "vmm", device, properties.total_memory)
    return client.load_dict(filename, "torch", pool=pool)
