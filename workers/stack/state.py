"""What is kept of the servers in their home: their ports and passwords, and the lock that lets one starter in at a time.

home/                  0711 for root (the servers' account must pass through), 0700 else
  lock                 held while servers are started or stopped
  servers.json         0600: {"postgres": {"port", "password"}, "valkey": {"port", "password"}}
  postgres/  valkey/   0700, owned by the account that the server runs under: data, log, pid
  binaries/            copies, only where that account cannot read the installed ones
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from workers.stack.errors import StackError


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is reached on 127.0.0.1. The password is not in the repr."""

    port: int
    password: str

    def __repr__(self) -> str:
        return f"Access(port={self.port})"

    def at(self, port: int) -> Access:
        return replace(self, port=port)

    @classmethod
    def new(cls, port: int) -> Access:
        return cls(port, secrets.token_urlsafe(24))


@contextmanager
def locked(home: Path) -> Generator[int]:
    """Create `home` if need be and hold its lock; the lock's file descriptor."""
    try:
        if not home.is_dir():  # the modes of a folder that was there are not ours to change
            home.mkdir(parents=True, exist_ok=True)
            home.chmod(0o711 if os.geteuid() == 0 else 0o700)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StackError(
            f"The folder {home} for the servers' data cannot be used ({error.strerror}): "
            "set PERDURE_HOME to a folder that you may write to."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def read(home: Path) -> dict[str, Access]:
    """What `write` left there; empty where nothing was ever started."""
    path = home / "servers.json"
    try:
        return {name: Access(**entry) for name, entry in json.loads(path.read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StackError(f"{path} cannot be read ({error.strerror}): call as the user that started it.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise StackError(f"{path} is damaged: restore it, or remove {home} to begin with empty servers.") from error


def write(home: Path, name: str, access: Access) -> None:
    """Keep `access` durably before the server is made with it: a password that is lost would lock its data away."""
    entries = {key: asdict(value) for key, value in (read(home) | {name: access}).items()}
    path = home / "servers.json"
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(entries, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
