"""Defines the types of arguments that accept only a fixed set of strings."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["device", "vmm", "legacy", "pinned", "host"]
"""The kind of a pool's memory.

``"device"`` is a CUDA memory pool. ``"vmm"`` is ``cuMemCreate`` memory, which readers map read-only. ``"legacy"`` is
shared by ``cuIpcGetMemHandle``. ``"pinned"`` is host memory that the CPU and the GPU reach. ``"host"`` needs no GPU.
"""

ChannelMode: TypeAlias = Literal["broadcast", "queue"]
"""Which subscribers of a channel get a frame: all of them (``"broadcast"``), or one of them (``"queue"``)."""

FullPolicy: TypeAlias = Literal["block", "drop-oldest", "latest", "fail"]
"""What happens when a producer publishes and the channel is full, because a subscriber is too slow.

``"block"``: the producer waits. ``"fail"``: the producer gets `PoolLimitError`. ``"drop-oldest"``: the subscriber
misses the oldest frames. ``"latest"``: the subscriber misses frames too, and gets only the newest frame.
"""

NoProducers: TypeAlias = Literal["wait", "end", "fail"]
"""What a subscription does when a producer was there, none is left, and the channel is not closed.

``"wait"``: it waits for another producer. ``"end"``: it ends, as when the channel is closed. ``"fail"``: it raises
`NoProducersError`.
"""

AckMode: TypeAlias = Literal["auto", "manual"]
"""When a frame is acknowledged: when the subscriber takes the next frame, or when the program acknowledges the frame.

The first is ``"auto"``, the second is ``"manual"``.
"""

Library = Literal["numpy", "cupy", "torch", "jax"]
"""The name of an array library; for example, `Client.get_array` returns an array of this library."""
