"""Sends frames, as slices of bytes, through a publish-subscribe service of iceoryx2."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fan import Fan

from poolbridge._bench.arrays import put_number

_LOOK = 0.1  # seconds after which a sleeping consumer checks for a frame, if no event wakes the consumer


class IceoryxFan(Fan):
    """A publish-subscribe service of iceoryx2 whose publisher waits for slow subscribers, so that no frame is lost.

    A consumer makes only one array for each place in the shared memory, and uses that array for every frame that comes
    to the place: to use the array again is faster than to make a new array. Unless the consumers only poll, the
    producer sends an event after each frame, and a consumer that finds no frame waits for an event.
    """

    name = "iceoryx2"
    _kept: Any = None

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the fan; empty if nothing is missing."""
        return "" if importlib.util.find_spec("iceoryx2") else "not installed: python -m pip install iceoryx2"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def _services(self) -> tuple[Any, Any, Any]:
        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Error)
        node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        frames = (
            node.service_builder(iox2.ServiceName.new(self.channel))
            .publish_subscribe(iox2.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False)
            .history_size(0)
            .subscriber_max_buffer_size(self.depth)
            .subscriber_max_borrowed_samples(2)
            .max_subscribers(self.consumers)
            .max_publishers(1)
            .max_nodes(self.consumers + 1)
            .open_or_create()
        )
        event = (
            node.service_builder(iox2.ServiceName.new(self.channel))
            .event()
            .max_listeners(self.consumers)
            .max_nodes(self.consumers + 1)
            .open_or_create()
        )
        return node, frames, event

    def open_to_send(self) -> Callable[[int], None]:
        """Make the service and its publisher."""
        import iceoryx2 as iox2

        node, frames, event = self._services()
        publisher = (
            frames.publisher_builder()
            .initial_max_slice_len(self.nbytes)
            .max_loaned_samples(1)
            .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        notifier = None if self.waiting == "spinning" else event.notifier_builder().create()
        self._kept = node, frames, event, publisher, notifier
        array, loan, nbytes = _arrays(self.nbytes), publisher.loan_slice_uninit, self.nbytes

        def send(number: int) -> None:
            sample = loan(nbytes)
            put_number(array(sample.payload_ptr), number)
            sample.assume_init().send()
            if notifier is not None:
                notifier.notify()

        return send

    def close(self) -> None:
        """Drop the publisher and its service."""
        self._kept = None

    def open_to_receive(self) -> Iterator[np.ndarray[Any, Any]]:
        """Subscribe."""
        node, frames, event = self._services()
        subscriber = frames.subscriber_builder().buffer_size(self.depth).create()
        listener = None if self.waiting == "spinning" else event.listener_builder().create()
        self._kept = node, frames, event, subscriber, listener
        return self._receive(subscriber.receive, listener)

    def _receive(self, receive: Callable[[], Any], listener: Any) -> Iterator[np.ndarray[Any, Any]]:
        import iceoryx2 as iox2

        array, look = _arrays(self.nbytes), iox2.Duration.from_millis(int(_LOOK * 1e3))
        while True:
            sample = receive()
            while sample is None:
                if listener is not None:
                    listener.timed_wait(look)
                sample = receive()
            yield array(sample.payload_ptr)
            del sample

    def leave(self) -> None:
        """Unsubscribe."""
        self._kept = None


def _arrays(nbytes: int) -> Callable[[int], np.ndarray[Any, Any]]:
    """Return a function that returns the array at an address. That function makes each array only once."""
    known: dict[int, np.ndarray[Any, Any]] = {}

    def array(address: int) -> np.ndarray[Any, Any]:
        made = known.get(address)
        if made is None:
            made = known[address] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        return made

    return array
