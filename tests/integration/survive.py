"""Allocates, publishes and receives with a blocking client and one of asyncio, until a line comes."""

import asyncio
import sys
import threading

import numpy as np

import poolbridge

path, stop = sys.argv[1], threading.Event()
done = {"blocking": 0, "asyncio": 0, "sent": 0, "received": 0}


def blocking() -> None:
    with poolbridge.connect(path) as client:
        client.open_pool("p")
        with client.put(np.full(1000, 7), "kept"):
            kept = client.get_array("kept")
            while not stop.is_set():
                client.allocate((64,), "float32").release()
                assert (kept == 7).all()
                done["blocking"] += 1


async def with_asyncio() -> None:
    async with await poolbridge.connect_async(path) as client:
        await client.open_pool("p")
        while not stop.is_set():
            await (await client.allocate((64,), "float32")).release()
            done["asyncio"] += 1


def produce() -> None:
    with poolbridge.connect(path) as client:
        client.open_pool("p")
        channel = client.create_channel("python", mode="queue")
        while not stop.is_set():
            done["sent"] += 1
            channel.publish(np.array([done["sent"]]))
        channel.close()


def consume() -> None:
    with poolbridge.connect(path) as client, client.subscribe("python", timeout=None) as frames:
        for frame in frames:
            done["received"] += 1
            assert np.asarray(frame)[0] == done["received"]


def run(work) -> None:
    try:
        work()
    except BaseException as error:
        print(f"{work}: {error!r}", flush=True)
        raise


works = [blocking, lambda: asyncio.run(with_asyncio()), produce, consume]
threads = [threading.Thread(target=run, args=(work,)) for work in works]
for thread in threads:
    thread.start()
while not all(done.values()):
    stop.wait(0.01)
print("ready", flush=True)
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join()
print(done["sent"] == done["received"], done, flush=True)
