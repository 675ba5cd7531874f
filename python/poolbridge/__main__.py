"""``python -m poolbridge`` runs the ``poolsvc`` that `find_program` finds."""

import os
import sys

from poolbridge._client.service_process import find_program
from poolbridge.errors import (
    ServiceProgramError,
)

if __name__ == "__main__":
    try:
        _program = find_program()
    except ServiceProgramError as _error:
        sys.exit(f"poolbridge: {_error}")
    os.execv(_program, ["poolsvc", *sys.argv[1:]])  # noqa: S606 - our own program
