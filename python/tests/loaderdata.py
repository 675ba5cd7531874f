"""Has the data sets and the collate functions of `test_loader`, which workers of a DataLoader import."""

from __future__ import annotations

import os
import signal
from collections import namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset

Point = namedtuple("Point", ["x", "label"])  # noqa: PYI024 - as programs use it


class Numbers(Dataset):  # type: ignore[misc]
    """Each sample has the types that ``default_collate`` takes."""

    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = torch.full((3, 5), float(i))
        return {
            "image": image,
            "pair": (np.arange(4, dtype="int16") + i, [image.T, i]),
            "point": Point(np.float32(i), f"label {i}"),
            "scalars": {"float": i / 2, "bool": i % 2 == 0, "bytes": bytes([i])},
        }


class Failing(Numbers):
    def __getitem__(self, i):
        if i == 13:
            raise KeyError("sample 13 is missing")
        return super().__getitem__(i)


class Dying(Numbers):
    def __getitem__(self, i):
        if i == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


class Waiting(Numbers):
    def __getitem__(self, i):
        if i == 13:
            signal.pause()
        return super().__getitem__(i)


class Growing(Numbers):
    def __getitem__(self, i):
        return torch.full((i,), i)


class Opened(Numbers):
    """Each sample is how many descriptors its worker has open, and how much of its memory is of ``/dev/shm``."""

    def __getitem__(self, i):
        return torch.tensor(opened())


def opened():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shared = sum("/dev/shm/torch" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), shared


def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-1)


class Image(torch.Tensor):  # type: ignore[misc]
    pass


def as_it_is(made):
    return made


def lambdas(samples):
    return {"image": samples[0]["image"], "later": lambda: samples}


def numbered(frame):
    return frame.meta["label"]
