"""Run two stages of Ray Data: one decodes frames into the pool, the other reads the frames in place by their names."""

# The type hints of Ray do not allow a class as a stage, although Ray accepts one.
# pyright: reportArgumentType=false

import uuid
from typing import Any

import numpy as np
import ray
import ray.data

import poolbridge.ray

run = uuid.uuid4().hex


class Decode:
    def __init__(self) -> None:
        self.client = poolbridge.ray.client()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        lease = self.client.allocate((480, 640), "uint8", pool="ray", timeout=60)  # waits if the pool is full
        np.asarray(lease)[:] = row["id"]  # a real program would decode a picture here
        name = f"{run}/{row['id']}"
        # With `keep`, the frame stays published after this actor has ended. Ray Data may run this task twice for the
        # same row. With `replace`, the second run replaces the frame of the first run.
        lease.publish(name, keep=True, replace=True)
        return {"id": row["id"], "frame": name, "buffer": lease.buffer_id}


class Measure:
    def __init__(self) -> None:
        self.client = poolbridge.ray.client()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        lease = self.client.get(row["frame"])
        frame = np.asarray(lease)  # the memory that the other stage has written, read-only
        return {**row, "mean": float(frame.mean()), "in place": lease.buffer_id == row["buffer"]}


ray.init()
with poolbridge.ray.start():
    client = poolbridge.ray.client()
    try:
        # Ray Data divides the rows into blocks, here of two rows. A stage passes whole blocks to the next stage, so the
        # pool must have space for the frames of several such blocks. Each actor asks for less than one CPU, so that Ray
        # has CPUs left to read the input.
        rows = ray.data.range(16, override_num_blocks=8)
        for stage in (Decode, Measure):
            rows = rows.map(stage, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=0.25)
        for row in rows.iter_rows():
            print(f"frame {row['id']}: mean {row['mean']:g}, in place: {row['in place']}")
            client.unpublish(row["frame"])  # nobody needs the frame now; until now Ray could run its task again
    finally:
        for name in client.names():  # frames of rows that the loop has not reached
            if name.name.startswith(run):
                client.unpublish(name.name)
    print("frames left in the pool:", len(client.buffers()))
