"""What the client has to say to whoever listens: the logger ``poolbridge``."""

from __future__ import annotations

import logging

LOG = logging.getLogger("poolbridge")
LOG.addHandler(logging.NullHandler())
