"""Server processes that outlive whoever started them: launch, recognise, stop.

A process is ours only if its id is in our file *and* its command line names our folder, so a number that was given to
another process meanwhile is never signalled.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import SystemRandom

import psutil

from workers.stack.accounts import Account
from workers.stack.errors import StackError

# The shell is gone as soon as the server's id is on disk, so the server belongs to init and never becomes our zombie.
# Until then its stdin, our lock, keeps everybody else out, even if we are killed here: no server is ever unknown.
_LAUNCH = 'log=$1 pid_file=$2; shift 2; umask 077; "$@" </dev/null >>"$log" 2>&1 & echo $! >"$pid_file"'
_EXEC_S = 1.0
# Below the range from which systems give ports to outgoing connections, so that a restart finds its port free.
_PORTS = range(20_000, 32_000)


def launch(command: Sequence[str | Path], *, log: Path, pid_file: Path, account: Account, lock: int) -> None:
    """Start a server in a session of its own, with none of our environment and none of our files but `lock`.

    Its log begins anew; the one before is kept as `log.1`.
    """
    if log.exists():
        log.replace(log.with_name("log.1"))
    words = ["/bin/sh", "-c", _LAUNCH, "sh", str(log), str(pid_file), *map(str, command)]
    subprocess.run(
        words,
        cwd="/",
        env={"PATH": os.environ.get("PATH") or os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        stdin=lock,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
        **account.switch,
    )


def living(pid_file: Path, marker: Path) -> psutil.Process | None:
    """The process whose id is the first line of `pid_file`, if it lives and `marker` is a word of its command line."""
    try:
        process = psutil.Process(int(pid_file.read_text("ascii").split("\n", 1)[0]))
        is_ours = str(marker) in _command_line(process) and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return process if is_ours else None


def _command_line(process: psutil.Process) -> list[str]:
    """A process has none for a moment while it becomes another program, as a server does that was just launched."""
    end = time.monotonic() + _EXEC_S
    while not (words := process.cmdline()) and _is_running(process) and time.monotonic() < end:
        time.sleep(0.001)
    return words


def stop(process: psutil.Process, first: signal.Signals, *more: signal.Signals, seconds: float = 30.0) -> None:
    """Send the signals one after another, each after `seconds` of waiting for the one before; return when it is gone."""
    for number in (first, *more):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return
        except psutil.AccessDenied as error:
            raise StackError(
                f"The server with the process number {process.pid} belongs to {process.username()}: "
                "stop it as that user, or as root."
            ) from error
        if wait_until(lambda: not _is_running(process), seconds=seconds):
            return
    raise StackError(f"The server with the process number {process.pid} does not stop: look at its log, then kill it.")


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Look every 10 ms; False when the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def free_port(wish: int | None) -> int:
    """`wish`, where it is free, or another port of 127.0.0.1."""
    random = SystemRandom()
    for port in [*([wish] if wish else []), *(random.choice(_PORTS) for _ in range(200))]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise StackError(f"No port of 127.0.0.1 between {_PORTS.start} and {_PORTS.stop} is free: stop something there.")


def tail(log: Path, lines: int = 5) -> str:
    """The end of a log, in one line, for a sentence about it."""
    try:
        text = log.read_text("utf-8", errors="replace")
    except OSError:
        return "(no log)"
    return " | ".join(line.strip() for line in text.splitlines()[-lines:]) or "(an empty log)"


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
