"""The one place where work on a device is put in order between processes.

Today a hand-over happens after the producer's work is done: whoever gives memory away waits here until the device has
finished with it, so that a consumer's stream never has to wait. When buffers carry tickets, the waiting moves onto
the streams, and these functions are all that changes.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from poolbridge import _dlpack

if TYPE_CHECKING:
    from poolbridge._kinds import BlockMemory


def before_hand_over(memory: BlockMemory) -> None:
    """Wait until the device has done all work that this process may have queued on the memory.

    Called before a buffer is published or its lease released. May block; host memory has nothing to wait for.
    """
    memory.synchronize()


def before_use(device: tuple[int, int], stream: Any) -> None:
    """Make a consumer's stream wait until the buffer is ready.

    What is leased was finished before it was handed over, so only the stream argument is checked for now.

    Parameters
    ----------
    device
        DLPack's device type and id.
    stream
        As the array API standard has it. On CUDA: None or 1 is the legacy default stream, 2 the per-thread default
        stream, a larger number a stream handle, -1 asks for no ordering. On the CPU: None.

    Raises
    ------
    ValueError
        0, which is ambiguous, or another number without meaning; anything but None on the CPU.
    """
    if stream is None:
        return
    if device[0] == _dlpack.CPU:
        raise ValueError(f"stream must be None for memory of the CPU, got {stream!r}")
    number = operator.index(stream)
    if number == 0:
        raise ValueError("stream 0 is ambiguous: pass 1 for the legacy default stream, 2 for the per-thread one")
    if number < -1:
        raise ValueError(f"stream {number} is no stream: pass None, -1, 1, 2 or a stream handle")
