"""Valkey (Redis' protocol) on 127.0.0.1, with its append-only file below the home."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import psutil

from workers.stack import accounts, binaries, processes, state
from workers.stack.accounts import Account
from workers.stack.errors import StackError
from workers.stack.state import Access

NAME = "valkey"
_READY_S = 60.0
_PORTS_TRIED = 5
# In a file and not on the command line, where everybody could read the password.
_SETTINGS = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {folder}
# A SIGKILL loses nothing, a power cut at most a second; Postgres holds what must not be lost.
appendonly yes
appendfsync everysec
save ""
# A broker that forgets messages when memory is short would be worse than one that says so.
maxmemory-policy noeviction
databases 64
# The command line stays as it is, since we know our own server by it.
set-proc-title no
"""


# The folder belongs to an account that root need not trust, so no link of its making is followed.
_PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def ensure(home: Path, lock: int) -> tuple[Access, bool]:
    """Find the server of `home`, or start it; with whether it was started. Call with the home's lock held."""
    access = state.read(home).get(NAME)
    if access is not None and find(home) is not None and _becomes_ready(home, access):
        return access, False
    stop(home)  # one that runs with a password that is lost
    account = accounts.choose()
    program = binaries.valkey(account, home / "binaries")
    folder = home / NAME
    if not account.can_enter(home):
        raise StackError(
            f"The account {account.name!r}, under which Valkey runs, cannot reach {home}: "
            "set PERDURE_HOME to a folder that all may pass through, such as /var/lib/perdure."
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    account.own(folder)
    command = [program, _settings(home)]
    access = access or Access.new(processes.free_port(None))
    for _ in range(_PORTS_TRIED):
        access = access.at(processes.free_port(access.port))
        state.write(home, NAME, access)
        _write_settings(home, access, account)
        processes.launch(command, log=log(home), pid_file=folder / "pid", account=account, lock=lock)
        if _becomes_ready(home, access):
            return access, True
        if "Address already in use" not in processes.tail(log(home), lines=20):
            break
    raise StackError(f"Valkey did not start: {processes.tail(log(home))}. Its log is {log(home)}.")


def find(home: Path) -> psutil.Process | None:
    """The living server of `home`."""
    return processes.living(home / NAME / "pid", _settings(home))


def stop(home: Path) -> bool:
    """Stop the server of `home`, if it runs; its data is on disk then. Call with the lock held."""
    process = find(home)
    if process is None:
        return False
    processes.stop(process, signal.SIGTERM, signal.SIGKILL)
    return True


def url(access: Access) -> str:
    return f"redis://:{access.password}@127.0.0.1:{access.port}/0"


def log(home: Path) -> Path:
    return home / NAME / "log"


def _settings(home: Path) -> Path:
    return home / NAME / "valkey.conf"


def _write_settings(home: Path, access: Access, account: Account) -> None:
    path = _settings(home)
    with os.fdopen(os.open(path, _PRIVATE, 0o600), "w", encoding="utf-8") as file:
        file.write(
            _SETTINGS.format(
                port=access.port, password=access.password, folder=json.dumps(str(home / NAME), ensure_ascii=False)
            )
        )
    account.own(path)


def _becomes_ready(home: Path, access: Access) -> bool:
    """Wait until the server answers; False if it died, or somebody else has its port."""
    if not processes.wait_until(lambda: _answers(access) or find(home) is None, seconds=_READY_S):
        raise StackError(
            f"Valkey still does not answer after {_READY_S:.0f} s: {processes.tail(log(home))}. "
            f"Its log is {log(home)}; call again when it has loaded its data."
        )
    return _answers(access)


def _answers(access: Access) -> bool:
    """Whether the data is loaded and the password is ours. Spoken by hand: importing redis takes half a second."""
    try:
        with socket.create_connection(("127.0.0.1", access.port), timeout=5) as connection:
            connection.sendall(f"AUTH {access.password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2:
                part = connection.recv(256)
                if not part:
                    return False
                answer += part
            return answer == b"+OK\r\n+PONG\r\n"
    except OSError:
        return False
