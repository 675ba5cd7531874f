"""Runs one side of the stress tests: ``produce SOCKET KIND FULL`` or ``consume SOCKET KIND CREDIT``.

The producer reads lines ``FIRST LAST``. It publishes the frames with these numbers, and prints ``sent NUMBER SEQ`` for
each frame. On a GPU, the producer publishes a frame before its stream has written it. If FULL is ``fail``, the producer
tries again while the channel is full.

The consumer checks every element of every frame. It prints ``got NUMBER SEQ DROPPED`` for a correct frame,
``failed SEQ: WHY`` for a frame whose producer had died, and ``ended`` at the end of the channel.
"""

import re
import sys

import numpy as np

import poolbridge


def content(number, words):
    return np.uint64(number) + np.uint64(8) * np.arange(words, dtype=np.uint64)


class Host:
    def write(self, lease, data):
        np.asarray(lease)[:] = data

    def read(self, frame):
        return np.asarray(frame).reshape(-1).view(np.uint64)


class Device:
    """A stream of cuda.core, and page-locked memory for the copies in this stream."""

    most = 1 << 16

    def __init__(self):
        from cuda.core import Device as Gpu, LegacyPinnedMemoryResource

        gpu = Gpu(0)
        gpu.set_current()
        self.stream = gpu.create_stream()
        self.pinned = LegacyPinnedMemoryResource().allocate(self.most, stream=self.stream)
        self.words = np.from_dlpack(self.pinned).view(np.uint64)

    def array(self, lease):
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        view = StridedMemoryView.from_dlpack(lease.view(device="cuda"), stream_ptr=int(self.stream.handle))
        part = Buffer.from_handle(int(self.pinned.handle), lease.nbytes, owner=self.pinned)
        return view, Buffer.from_handle(view.ptr, lease.nbytes, owner=view), part

    def write(self, lease, data):
        self.stream.sync()  # waits for the copy of the frame before
        self.words[: data.size] = data
        _view, memory, pinned = self.array(lease)
        memory.copy_from(pinned, stream=self.stream)

    def read(self, frame):
        _view, memory, pinned = self.array(frame)
        memory.copy_to(pinned, stream=self.stream)
        self.stream.sync()
        frame.check()
        return self.words[: frame.nbytes // 8]


def publish(channel, lease, number, full):
    while True:
        try:
            return channel.publish(lease, meta={"n": str(number)}, timeout=60)
        except poolbridge.PoolLimitError:
            if full != "fail":
                raise


def produce(client, memory, full):
    client.open_pool("p")
    channel = client.open_channel("c")
    print("ready")
    for line in sys.stdin:
        first, last = map(int, line.split())
        for number in range(first, last + 1):
            data = content(number, 1 + number * 7919 % 5000)
            lease = client.allocate(data.shape, "uint64", pool="p", timeout=60)
            memory.write(lease, data)
            seq = publish(channel, lease, number, full)
            print(f"sent {number} {seq}")


def consume(client, memory, credit):
    try:
        frames = client.subscribe("c", credit=int(credit))
    except (poolbridge.NotFoundError, poolbridge.ClosedError):
        print("ended")  # the channel was closed
        return
    print("ready")
    while True:
        try:
            with next(frames) as frame:
                data = memory.read(frame)
                number = int(frame.meta["n"])
                wrong = np.flatnonzero(data != content(number, data.size))
                if wrong.size:
                    at = int(wrong[0])
                    raise SystemExit(f"frame {frame.seq}, number {number}: {data[at]} at word {at} of {data.size}")
                del data
                print(f"got {number} {frame.seq} {frame.dropped}")
        except StopIteration:
            break
        except poolbridge.ProducerDiedError as error:
            seq = re.match(r"frame (\d+):", str(error))
            print(f"failed {seq[1] if seq else frame.seq}: {error}")
    print("ended")


role, socket, kind, *more = sys.argv[1:]
with poolbridge.connect(socket, timeout=60) as connected:
    {"produce": produce, "consume": consume}[role](connected, {"host": Host, "device": Device}[kind](), *more)
