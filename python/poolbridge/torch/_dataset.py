"""Reads the frames of a channel as samples of a DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, get_worker_info

from poolbridge._array.arrays import state_of
from poolbridge._client import operations as _operations
from poolbridge._client.channel_operations import NO_PRODUCERS
from poolbridge._client.frame import Frame
from poolbridge._client.makers import array_of, arrays_of
from poolbridge._client.paths import check_path
from poolbridge._sys.literals import NoProducers
from poolbridge.errors import InvalidArgumentError
from poolbridge.torch._clients import client_at

# How many frames a worker has in hand before it copies: half of what a subscription can hold.
_MOST_HELD: Final = 128


class ChannelDataset(IterableDataset):  # type: ignore[misc, unused-ignore] # PyTorch need not be installed
    """The frames of a channel as samples: tensors, or of frames of several arrays dicts of tensors.

    The object can be pickled: each worker of a ``DataLoader`` connects to the service, and subscribes, by itself. Each
    frame goes to one worker. In a broadcast, worker ``i`` of ``n`` takes the frames whose number ``seq % n`` is ``i``;
    in a queue, the next worker that asks takes the next frame. The samples end when the channel is closed.

    A sample uses the frame's memory, which is read-only: clone a tensor before you write it. When a worker has 128
    frames in hand, further samples are copies. ``default_collate`` and `Collate` copy samples into batches. A worker
    acknowledges a frame when it takes it: what a killed worker had taken does not come again.

    Let the producer wait for all workers (`Channel.wait_for_consumers`) before it publishes and closes the channel: a
    worker that comes later waits for another channel of this name.

    Parameters
    ----------
    channel
        The channel's name.
    transform
        A function that makes a sample of a `Frame`, for example with its ``meta``; None: its tensors.
    path
        Path of the service's socket; None: the path that `default_path` returns, where a service is started if none
        runs.
    timeout
        Seconds that a worker waits for the channel to appear; None: no limit.
    no_producers
        What happens when the last producer has left and no frame is left; see `Client.subscribe`.

    Raises
    ------
    InvalidArgumentError
        An argument is not as described above.
    PoolbridgeError
        See `connect`, `Client.subscribe` and `Subscription`, whose errors iteration raises.
    """

    def __init__(
        self,
        channel: str,
        transform: Callable[[Frame], Any] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        timeout: float | None = 60.0,
        no_producers: NoProducers = "wait",
    ) -> None:
        if transform is not None and not callable(transform):
            raise InvalidArgumentError(f"transform is {transform!r}: expected a function, or None for tensors")
        self._channel = _operations.check_name(channel, "channel")
        self._transform = transform
        self._path = None if path is None else check_path(path)
        _operations.check_word(no_producers, NO_PRODUCERS, "no_producers", NO_PRODUCERS)
        _operations.check_timeout(timeout)
        self._options: Any = {"ack": "manual", "timeout": timeout, "no_producers": no_producers}

    def __iter__(self) -> Iterator[Any]:
        """Subscribe, and yield a sample for each frame."""
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        with client_at(self._path).subscribe(self._channel, **self._options) as frames:
            shared = frames.channel.mode == "queue"
            for frame in frames:
                frame.ack()  # not when the loader asks for the next sample, which may wait for another worker's batch
                if shared or frame.seq % workers == number:
                    sample = (self._transform or tensors)(frame)
                    if self._transform is None and len(frames._consumer.native.in_hand) > _MOST_HELD:  # noqa: SLF001
                        sample = _clone(sample)
                    yield sample


def _clone(sample: Any) -> Any:
    return sample.clone() if isinstance(sample, torch.Tensor) else {name: sample[name].clone() for name in sample}


def tensors(frame: Frame) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the tensor of a frame, or a dict of its tensors."""
    return (arrays_of if state_of(frame).description.named else array_of)(frame, "torch")
