"""Says of wheels what they have besides Python, and fails if that is not for the processor that their names say."""

from __future__ import annotations

import struct
import sys
import zipfile
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}  # by ELF's e_machine


def contents(wheel: Path) -> dict[str, str]:
    """Give the processor that each program and library in a wheel is for."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                head = file.read(20)
            if head.startswith(b"\x7fELF"):
                found[name] = MACHINES.get(struct.unpack("<H", head[18:20])[0], "unknown")
    return found


def main() -> int:
    failed = False
    for wheel in map(Path, sys.argv[1:]):
        found = contents(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.1f} MiB")
        for name, machine in found.items():
            print(f"    {name}, {machine}")
        kinds = {name.rpartition("/")[2] for name in found}
        wrong = [name for name, machine in found.items() if not wheel.stem.endswith(machine)]
        if wrong or kinds != {"poolsvc", "_native.abi3.so"}:
            print(f"    WRONG: expected poolsvc and _native.abi3.so, for the processor that the name says; {wrong}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
