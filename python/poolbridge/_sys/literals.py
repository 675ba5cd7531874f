"""The words of which an argument is one, as types."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["device", "vmm", "legacy", "pinned", "host"]
"""Where a pool's memory comes from."""

ChannelMode: TypeAlias = Literal["broadcast", "queue"]
"""Who gets the frames of a channel."""

FullPolicy: TypeAlias = Literal["block", "drop-oldest", "latest", "fail"]
"""What happens when a channel is full because a subscriber is behind."""

AckMode: TypeAlias = Literal["auto", "manual"]
"""Whether asking for the next frame acknowledges those before."""

Library = Literal["numpy", "cupy", "torch", "jax"]
"""A library that `Client.get_array` makes arrays of."""
