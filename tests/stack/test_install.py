"""The shell scripts of the two README commands, where something that they need is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = ("cat", "cksum", "dirname", "ls", "rm", "sh")


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with what every system has, and no Python and no uv."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        program = shutil.which(name)
        assert program is not None
        (folder / name).symlink_to(program)
    return folder


def install(path: Path | str, venv: Path, *groups: str, script: str = "install") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(path), "HOME": "", "PERDURE_VENV": str(venv)}
    words = ["/bin/sh", str(REPOSITORY / "ops" / script), *groups]
    return subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("script", ["install", "demo", "test"])
def test_without_python_and_uv_one_sentence_says_what_to_install(script: str, bare_path: Path, tmp_path: Path) -> None:
    done = install(bare_path, tmp_path / "venv", script=script)

    assert done.returncode == 69
    assert done.stderr.strip() == (
        "Perdure needs Python 3.11 or newer, and none is on the PATH. Install one, or uv, and call this again."
    )
    assert not (tmp_path / "venv").exists()


def test_a_python_that_is_too_old_is_not_taken(bare_path: Path, tmp_path: Path) -> None:
    old = bare_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # its answer to "are you 3.11?"
    old.chmod(0o755)

    assert "needs Python 3.11 or newer" in install(bare_path, tmp_path / "venv").stderr


def test_a_folder_that_is_no_virtual_environment_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")

    done = install(os.environ["PATH"], tmp_path)

    assert done.returncode == 69
    assert "PERDURE_VENV" in done.stderr
    assert precious.exists()


def test_the_locks_name_no_package_index() -> None:
    locks = [REPOSITORY / "requirements.lock", *(REPOSITORY / "ops" / "locks").glob("*.lock")]

    assert len(locks) >= 5
    for lock in locks:
        assert "://" not in lock.read_text(encoding="utf-8"), lock.name
