"""Finds the version of poolbridge. The Python package, its wheels and `poolsvc` have the same version.

The version comes from the git tag, for example v0.2.0. If the current commit has no tag, the version also contains the
current commit and the number of commits after the last tag. If the repository has no tag, the number is that of all
commits. A source package has its version in the file PKG-INFO.

`python release/version.py` prints the version; pyproject.toml and the Makefile take the version from this program.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# While the repository has no tag, the version of a build begins with this text.
FIRST = "0.2.0"


def version(root: Path = ROOT) -> str:
    """Return the version of the source in a folder, in the format of PEP 440."""
    said = root / "PKG-INFO"
    if said.is_file():
        found = re.search(r"^Version: (\S+)$", said.read_text(), re.MULTILINE)
        if found:
            return found[1]
    if not (root / ".git").exists():  # a folder without a repository may lie in another repository
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
    """Convert a result of `git describe --long`: v0.2.0-0-gabc to 0.2.0, v0.2.0-3-gabc to 0.2.1.dev3+gabc."""
    tag, count, commit = re.fullmatch(r"v(.+)-(\d+)-(g[0-9a-f]+(?:-dirty)?)", described).groups()  # type: ignore[union-attr]
    if count == "0" and not commit.endswith("-dirty"):
        return tag
    # Add 1 to the last number, because the current source comes after the released version.
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
