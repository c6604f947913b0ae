"""Several worker processes under one: started again when one dies, ended together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from workers import telemetry

log = logging.getLogger(__name__)

# A child holds the reading end of a pipe whose writing end only its parent has: its end of file is the parent's death.
_LIFELINE = "PERDURE_LIFELINE_FD"
_RESTART_AFTER_S = 1.0


def supervise(processes: int, *, concurrency: int | None, queues: tuple[str, ...], name: str | None) -> int:
    """Run `processes` workers until SIGTERM or SIGINT, and wait for all of them; the highest exit code."""
    telemetry.start()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    reading, writing = os.pipe()
    commands = [_command(n, concurrency, queues, name) for n in range(1, processes + 1)]
    children = [_start(command, reading) for command in commands]
    while not stopping.wait(0.2):
        for n, child in enumerate(children):
            if child.poll() is not None:
                log.warning("worker.died", extra={"pid": child.pid, "code": child.returncode})
                if stopping.wait(_RESTART_AFTER_S):
                    break
                children[n] = _start(commands[n], reading)
    for child in children:
        child.terminate()
    codes = [child.wait() for child in children]
    os.close(writing)
    return max((abs(code) for code in codes), default=0)


def end_with_parent(end: Callable[[], None]) -> None:
    """Call `end` when the process that supervises this one is gone; nothing if there is none."""
    lifeline = os.environ.get(_LIFELINE)
    if lifeline is None:
        return

    def watch() -> None:
        os.read(int(lifeline), 1)
        end()
        time.sleep(0.5)
        end()  # once more, should the first have come before anybody listened

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _start(command: list[str], reading: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, _LIFELINE: str(reading)}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(reading,), env=environment)


def _command(n: int, concurrency: int | None, queues: tuple[str, ...], name: str | None) -> list[str]:
    command = [sys.executable, "-P", "-m", "workers.cli.main", "worker", "--queues", ",".join(queues)]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    if name is not None:
        command += ["--name", f"{name}-{n}"]
    return command
