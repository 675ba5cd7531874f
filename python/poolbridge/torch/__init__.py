"""What poolbridge has for programs of PyTorch: models from files, which all processes of a user share.

Nothing else of poolbridge imports this module.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch as _torch

from poolbridge._client.connect import connect as _connect
from poolbridge.errors import AlreadyExistsError, DeviceMemoryError, InvalidArgumentError

if TYPE_CHECKING:
    from poolbridge._client.client import Client
    from poolbridge._client.entries import PoolInfo
    from poolbridge._sys.literals import Kind

__all__ = ["load_file"]

_clients: dict[int, Client] = {}  # by process id, because a forked child needs a client of its own


def load_file(filename: str | os.PathLike[str], device: str | int | _torch.device = "cpu") -> dict[str, _torch.Tensor]:
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
    client = _client()
    return client.load_dict(filename, "torch", pool=_pool(client, place))


def _client() -> Client:
    client = _clients.get(os.getpid())
    if client is None or client.closed:
        own = _connect(start=True)
        client = _clients.setdefault(os.getpid(), own)
        if client.closed:
            client = _clients[os.getpid()] = own
        elif client is not own:  # another thread was faster
            own.close()
    return client


def _pool(client: Client, place: _torch.device) -> PoolInfo:
    kind: Kind = "host"
    device, nbytes = None, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3
    if place.type == "cuda":
        properties = _torch.cuda.get_device_properties(place)
        kind, device, nbytes = "vmm", f"GPU-{properties.uuid}", properties.total_memory
    name = f"load_file {os.geteuid()} {device or 'cpu'}"
    while True:
        try:
            # An existing pool must be for this user only. Another user could make one of this name, for both.
            return client.create_pool(name, kind=kind, device=device, max_bytes=nbytes, exist_ok=True)
        except (AlreadyExistsError, DeviceMemoryError):
            # A control group of the service has less memory than the machine, or the pool was made smaller for that.
            if nbytes < 2**20:
                raise
            nbytes //= 2
