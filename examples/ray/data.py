"""Two stages of Ray Data: one decodes frames into the pool, the other reads them in place. The rows carry names."""

# Ray's types do not know that a stage may be a class.
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
        lease = self.client.allocate((480, 640), "uint8", pool="ray", timeout=60)  # waits while the pool is full
        np.asarray(lease)[:] = row["id"]  # a real one would decode a picture into it
        name = f"{run}/{row['id']}"
        # The name keeps the frame, also when this actor has ended. Ray Data may run the task again: `replace`.
        lease.publish(name, keep=True, replace=True)
        return {"id": row["id"], "frame": name, "buffer": lease.buffer_id}


class Measure:
    def __init__(self) -> None:
        self.client = poolbridge.ray.client()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        lease = self.client.get(row["frame"])
        frame = np.asarray(lease)  # the memory into which the other stage has decoded, read-only
        return {**row, "mean": float(frame.mean()), "in place": lease.buffer_id == row["buffer"]}


ray.init()
with poolbridge.ray.start():
    client = poolbridge.ray.client()
    try:
        # A stage hands on whole blocks, so the pool needs room for the frames of a few: here a block has two rows.
        # The actors take less than a CPU each, which leaves some for the reading of the input.
        rows = ray.data.range(16, override_num_blocks=8)
        for stage in (Decode, Measure):
            rows = rows.map(stage, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=0.25)
        for row in rows.iter_rows():
            print(f"frame {row['id']}: mean {row['mean']:g}, in place: {row['in place']}")
            client.unpublish(row["frame"])  # nobody needs it any more; until here the task could run again
    finally:
        for name in client.names():  # of rows that did not get here
            if name.name.startswith(run):
                client.unpublish(name.name)
    print("frames left in the pool:", len(client.buffers()))
