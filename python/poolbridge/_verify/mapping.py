"""Scenario ``mapping``: read-only mappings."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

import poolbridge
from poolbridge._cuda import cuda as _cuda
from poolbridge._verify.transfer import Fields, compare

if TYPE_CHECKING:
    from poolbridge._verify.worker import Worker


def read_only(worker: Worker, name: str, expect: Fields) -> None:
    """Lease a buffer for reading, and make sure that neither poolbridge nor the driver lets the buffer be written."""
    with worker.lease(name) as lease:
        with suppress(poolbridge.InvalidArgumentError):
            lease.copy_from(0)
            raise AssertionError("poolbridge let a read lease be written")
        ordinal = lease.view(device="cuda").__dlpack_device__()[1]
        with suppress(poolbridge.DriverError):
            _cuda.copy_from_host(ordinal, lease._evidence()["pointer"], np.zeros(4, np.uint8))  # noqa: SLF001
            raise AssertionError("the driver let memory that is mapped read-only be written")
        compare(worker, lease, expect)
