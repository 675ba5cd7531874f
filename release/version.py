"""The version of poolbridge: one for the Python package, its wheels and `poolsvc`.

It is that of the git tag, such as v0.2.0. After a tag, and before the first, it says how many commits later it is, and
of which. A source package has no git, and says its version itself.

`python release/version.py` prints it; pyproject.toml and the Makefile ask it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What comes next where there is no tag yet.
FIRST = "0.2.0"


def version(root: Path = ROOT) -> str:
    """Give the version of the source in a folder, as PEP 440 writes it."""
    said = root / "PKG-INFO"
    if said.is_file():
        found = re.search(r"^Version: (\S+)$", said.read_text(), re.MULTILINE)
        if found:
            return found[1]
    if not (root / ".git").exists():  # another repository may be around a folder without one
        return f"{FIRST}.dev0"
    described = _git(root, "describe", "--tags", "--long", "--dirty", "--match", "v[0-9]*")
    if described:
        return of_description(described)
    commit = _git(root, "describe", "--always", "--dirty", "--abbrev=12")
    count = _git(root, "rev-list", "--count", "HEAD")
    if not commit or not count:
        return f"{FIRST}.dev0"
    return f"{FIRST}.dev{count}+g{commit.replace('-', '.')}"


def of_description(described: str) -> str:
    """Give the version that `git describe --long` means: of v0.2.0-0-gabc 0.2.0, of v0.2.0-3-gabc 0.2.1.dev3+gabc."""
    tag, count, commit = re.fullmatch(r"v(.+)-(\d+)-(g[0-9a-f]+(?:-dirty)?)", described).groups()  # type: ignore[union-attr]
    if count == "0" and not commit.endswith("-dirty"):
        return tag
    # The last number, one more: what is developed comes after what was released.
    following = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), tag)
    return f"{following}.dev{count}+{commit.replace('-', '.')}"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(version())
