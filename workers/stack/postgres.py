"""PostgreSQL on 127.0.0.1, with data below the home. It is started detached and found again by its files.

There is no Unix socket: its path may hold 107 bytes only, and a server that is reached in one way has one thing to guard.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil

from workers.stack import accounts, binaries, processes, state
from workers.stack.accounts import USE_OWN_SERVERS, Account
from workers.stack.errors import StackError
from workers.stack.state import Access

NAME = "postgres"
_ROLE = "perdure"
_DATABASE = "perdure"
_READY_S = 60.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # A process of ours uses at most 14; the rest is for people, tests and tools.
    "max_connections": "200",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


# The folder belongs to an account that root need not trust, so no link of its making is followed.
_PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def ensure(home: Path, lock: int) -> tuple[Access, bool]:
    """Find the server of `home`, or start it; with whether it was started. Call with the home's lock held.

    A server whose starter was killed is taken over as it is; data of one that was killed itself is recovered by Postgres.
    """
    access = state.read(home).get(NAME)
    found = find(home)
    if found is not None and access is not None and _becomes_ready(home, found):
        return access, False
    account = accounts.choose()
    folder, data = _folders(home)
    if access is None and (found is not None or data.exists()):
        raise StackError(
            f"{home / 'servers.json'}, which held the password of the data in {data}, is gone: "
            f"restore it, or remove {folder} to begin with an empty database."
        )
    programs = _prepare(home, account)
    if access is None:
        access = Access.new(processes.free_port(None))
        state.write(home, NAME, access)
    if not data.exists():
        _create(programs, data, access, account, lock)
    return _start(home, programs, access, account, lock), True


def find(home: Path) -> psutil.Process | None:
    """The living postmaster of `home`: the one we started, or one that somebody started with pg_ctl."""
    folder, data = _folders(home)
    for pid_file in (folder / "pid", data / "postmaster.pid"):
        process = processes.living(pid_file, data)
        if process is not None:
            return process
    return None


def stop(home: Path) -> bool:
    """Stop the server of `home`, if it runs: sessions are ended, nothing committed is lost. Call with the lock held."""
    process = find(home)
    if process is None:
        return False
    processes.stop(process, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
    return True


def url(access: Access) -> str:
    return f"postgresql+psycopg://{_ROLE}:{access.password}@127.0.0.1:{access.port}/{_DATABASE}"


def log(home: Path) -> Path:
    return _folders(home)[0] / "log"


def _folders(home: Path) -> tuple[Path, Path]:
    folder = home / NAME
    return folder, folder / "data"


def _prepare(home: Path, account: Account) -> Path:
    """Make the server's folder and find programs that fit its data; the programs' folder."""
    folder, data = _folders(home)
    if not account.can_enter(home):
        raise StackError(
            f"The account {account.name!r}, under which PostgreSQL runs, cannot reach {home}: "
            "set PERDURE_HOME to a folder that all may pass through, such as /var/lib/perdure."
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    account.own(folder)
    try:
        major = int((data / "PG_VERSION").read_text("ascii")) if data.exists() else None
    except (OSError, ValueError) as error:
        raise StackError(f"{data} is not a folder of PostgreSQL data: remove it to begin with an empty one.") from error
    programs, _ = binaries.postgres(account, home / "binaries", major=major)
    return programs


def _create(programs: Path, data: Path, access: Access, account: Account, lock: int) -> None:
    """Make the data folder beside its place and move it there when it is whole, so that a kill leaves nothing half-made."""
    new, password = data.with_name("data.new"), data.with_name("password")
    if new.exists():
        shutil.rmtree(new)
    with os.fdopen(os.open(password, _PRIVATE, 0o600), "w") as file:
        file.write(access.password)
    account.own(password)
    how = ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions"]
    _call([programs / "initdb", "--pgdata", new, "--username", _ROLE, "--pwfile", password, *how], account, lock)
    password.unlink()
    _call(
        [programs / "postgres", "--single", "-D", new, "postgres"], account, lock, f'CREATE DATABASE "{_DATABASE}";\n'
    )
    new.rename(data)


def _call(command: list[str | Path], account: Account, lock: int, text: str = "") -> None:
    """Run a program to its end. It inherits the lock: if we are killed, nobody enters before it has ended, too."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        input=text,
        capture_output=True,
        text=True,
        pass_fds=(lock,),
        **account.switch,
    )
    if done.returncode != 0:
        said = " | ".join(done.stderr.strip().splitlines()[-5:])
        raise StackError(f"A new database cannot be made ({said}): mend that, or {USE_OWN_SERVERS}.")


def _start(home: Path, programs: Path, access: Access, account: Account, lock: int) -> Access:
    folder, data = _folders(home)
    _clear_foreign_pid(data)
    end = time.monotonic() + _READY_S
    while True:
        access = access.at(processes.free_port(access.port))
        state.write(home, NAME, access)
        settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": access.port}.items()]
        command = [programs / "postgres", "-D", data, *settings]
        processes.launch(command, log=log(home), pid_file=folder / "pid", account=account, lock=lock)
        process = find(home)
        if process is not None and _becomes_ready(home, process):
            return access
        # After a SIGKILL of the postmaster its backends need a moment to notice; a port can be lost to somebody else.
        said = processes.tail(log(home), lines=20)
        if not re.search("still in use|Address already in use", said) or time.monotonic() > end:
            raise StackError(f"PostgreSQL did not start: {processes.tail(log(home))}. Its log is {log(home)}.")
        time.sleep(0.1)


def _becomes_ready(home: Path, process: psutil.Process) -> bool:
    """Wait until the postmaster takes connections, which it writes into the eighth line of its file; False if it died."""
    pid_file = _folders(home)[1] / "postmaster.pid"

    def is_ready() -> bool:
        try:
            lines = pid_file.read_text("utf-8").splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready"

    if not processes.wait_until(lambda: is_ready() or find(home) is None, seconds=_READY_S):
        raise StackError(
            f"PostgreSQL still takes no connections after {_READY_S:.0f} s: {processes.tail(log(home))}. "
            f"Its log is {log(home)}; call again when it has recovered."
        )
    return find(home) is not None


def _clear_foreign_pid(data: Path) -> None:
    """Remove a postmaster.pid whose number another program has by now, as happens in every restarted container.

    Postgres itself would refuse to start. Nothing of the dead server may be alive, since the file is also its guard.
    """
    pid_file = data / "postmaster.pid"
    try:
        number = int(pid_file.read_text("utf-8").split("\n", 1)[0])
    except (OSError, ValueError):
        return
    if not psutil.pid_exists(number):
        return
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(data):
                return
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    pid_file.unlink()
