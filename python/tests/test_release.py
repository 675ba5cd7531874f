"""Tests the version of a build from a tag, from commits after a tag and from a source package, and wheels' metadata."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import poolbridge

RELEASE = Path(__file__).parents[2] / "release"

pytestmark = pytest.mark.skipif(not RELEASE.is_dir(), reason="not in a checkout")


def load(name):
    return SimpleNamespace(**runpy.run_path(str(RELEASE / f"{name}.py")))


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed: it tells the version")

    def git(*arguments):
        identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "-m", "first")
    return tmp_path, git


def test_at_a_tag_the_version_is_the_tags(repository):
    root, git = repository
    git("tag", "v0.3.0")
    assert load("version").version(root) == "0.3.0"


def test_after_a_tag_the_version_is_of_what_comes_next(repository):
    root, git = repository
    git("tag", "v0.3.0")
    git("commit", "--quiet", "--allow-empty", "-m", "second")
    assert load("version").version(root).startswith("0.3.1.dev1+g")


def test_a_tag_with_changes_is_not_that_version(repository):
    root, git = repository
    git("tag", "v0.3.0")
    (root / "file").write_text("two")
    said = load("version").version(root)
    assert said.startswith("0.3.1.dev0+g")
    assert said.endswith(".dirty")


def test_before_the_first_tag_the_version_is_the_first(repository):
    root, _ = repository
    module = load("version")
    assert module.version(root).startswith(f"{module.FIRST}.dev1+g")


def test_a_source_package_says_its_version_itself(tmp_path):
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: poolbridge\nVersion: 0.4.2\n\nVersion: none\n")
    assert load("version").version(tmp_path) == "0.4.2"


def test_a_folder_without_git_has_a_version(tmp_path):
    module = load("version")
    assert module.version(tmp_path) == f"{module.FIRST}.dev0"


def test_the_package_says_the_version_that_was_installed():
    from importlib import metadata

    assert poolbridge.__version__ == metadata.version("poolbridge")
    with pytest.raises(AttributeError, match="nothing"):
        poolbridge.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_wheel_for_another_processor_than_its_name_says_is_wrong(tmp_path, monkeypatch, capsys):
    wheels = load("wheels")
    arm = b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little")
    for machine, status in (("aarch64", 0), ("x86_64", 1)):
        wheel = tmp_path / f"poolbridge-1-cp311-abi3-manylinux_2_17_{machine}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("poolbridge/_native.abi3.so", arm)
            archive.writestr("poolbridge-1.data/scripts/poolsvc", arm)
            for file in wheels.MANUAL:
                archive.writestr(f"poolbridge-1.data/data/share/{file}", "text")
        monkeypatch.setattr("sys.argv", ["wheels.py", str(wheel)])
        assert wheels.main() == status
    assert "WRONG" in capsys.readouterr().out


def test_a_wheel_without_its_man_pages_is_wrong(tmp_path, monkeypatch, capsys):
    wheels = load("wheels")
    intel = b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little")
    wheel = tmp_path / "poolbridge-1-cp311-abi3-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("poolbridge/_native.abi3.so", intel)
        archive.writestr("poolbridge-1.data/scripts/poolsvc", intel)
    monkeypatch.setattr("sys.argv", ["wheels.py", str(wheel)])
    assert wheels.main() == 1
    assert "lacks man/man1/poolsvc.1" in capsys.readouterr().out


def notes(version):
    return subprocess.run([RELEASE / "notes", version], capture_output=True, text=True, check=False)


def test_the_notes_of_a_release_are_its_part_of_the_changelog():
    changelog = (RELEASE.parent / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\d\S+) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    assert newest
    said = notes(newest[1])
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("- ")
    assert "\n## " not in said.stdout


def test_a_version_that_the_changelog_does_not_have_is_not_released():
    said = notes("99.0.0")
    assert said.returncode == 1
    assert "has no heading '## 99.0.0 - YEAR-MONTH-DAY'" in said.stderr
    assert not said.stdout
