"""Makes the transport known to Ray."""

from __future__ import annotations

from typing import Any

import poolbridge
from poolbridge._client import makers as _makers
from poolbridge._client.operations import check_name, check_seconds
from poolbridge.ray import _cluster, _nixl
from poolbridge.ray._connection import DEFAULT_POOL
from poolbridge.ray._transport import Options, Transport

_NAMES = {"numpy": "POOLBRIDGE", "cupy": "POOLBRIDGE_CUPY", "torch": "POOLBRIDGE_TORCH", "jax": "POOLBRIDGE_JAX"}
_registered: dict[str, Options] = {}


def register(
    library: poolbridge.Library = "numpy",
    *,
    name: str | None = None,
    pool: str = DEFAULT_POOL,
    fallback: bool = False,
    timeout: float = 10.0,
    nixl: bool | None = None,
) -> str:
    """Register a transport with Ray for the arrays of one library. After that, define and make the actors that use it.

    Pass the returned name as the argument ``tensor_transport`` of ``ray.method``, or as the argument
    ``_tensor_transport`` of ``ray.put``. Ray makes the transport known to the actors that this process makes after this
    call.

    Parameters
    ----------
    library
        ``"numpy"``, ``"torch"``, ``"jax"`` or ``"cupy"``.
    name
        The transport's name in Ray. `register` changes the name to capital letters. None: ``"POOLBRIDGE"`` for NumPy,
        and ``"POOLBRIDGE_TORCH"`` and so on for the other libraries.
    pool
        The name of a pool, which each node's service has. A sender copies an array that lives in no pool into this
        pool.
    fallback
        True: if the sender cannot share an array, or the receiver cannot lease the array, Ray's object store carries
        the array, and poolbridge logs and counts the array. False: the sender or the receiver gets an error. Arrays on
        a GPU have no fallback.
    timeout
        The longest time, in seconds, that a sender waits for free memory in the pool. A receiver that reads through
        NIXL waits at most as long for free memory in the pool of its own node.
    nixl
        Whether a receiver on another node reads through NIXL, into the pool of its own node. None: NIXL is used if both
        nodes have NIXL and the receiver's node has a service; if not, Ray's object store carries the bytes. True: raise
        an error if a node lacks NIXL. False: never use NIXL.

    Returns
    -------
    str
        The transport's name.

    Raises
    ------
    UnavailableError
        Ray or the library is not installed, or Ray is too old; or NIXL is not installed, and `nixl` is True.
    AlreadyExistsError
        Ray has a transport of the same name already, with other options.
    InvalidArgumentError
        An argument is not as described above.
    """
    ray = _cluster.import_ray()
    _makers.check_library(library)
    if nixl and (reason := _nixl.missing()):
        raise poolbridge.UnavailableError(f"nixl=True: {reason}")
    options = Options(library, check_name(pool, "pool"), bool(fallback), check_seconds(timeout), nixl)
    known_as = check_name(_NAMES[library] if name is None else name, "transport").upper()
    if _registered.get(known_as) == options:
        return known_as
    # No module contains this class, so Ray pickles the class by value, together with its options.
    made: Any = type("PoolbridgeTransport", (Transport, ray.experimental.TensorTransportManager), {"options": options})
    data_type, devices = _described(library)
    try:
        ray.experimental.register_tensor_transport(known_as, devices, made, data_type)
    except ValueError as error:
        raise poolbridge.AlreadyExistsError(
            f"ray has a transport {known_as!r} already, with other options: pass another name="
        ) from error
    _registered[known_as] = options
    return known_as


def _described(library: poolbridge.Library) -> tuple[type, list[str]]:
    """Return the type of a library's arrays, and Ray's names of the devices that can have such arrays."""
    try:
        if library == "numpy":
            import numpy as np

            return np.ndarray, ["cpu"]
        if library == "torch":
            import torch

            return torch.Tensor, ["cpu", "cuda"]
        if library == "cupy":
            import cupy

            return cupy.ndarray, ["cuda"]
        import jax

        return type(jax.numpy.zeros(0)), ["cpu", "cuda"]
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise _makers.not_installed(library) from error
