"""Makes the logger ``poolbridge``, to which the client writes its log lines."""

from __future__ import annotations

import logging

LOG = logging.getLogger("poolbridge")
LOG.addHandler(logging.NullHandler())
