"""Processes of the product as tests handle them: started with their own environment, watched by their logs, ended by id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]


def eventually(look: Callable[[], T | None], what: str, *, within_s: float = 20.0, every_s: float = 0.02) -> T:
    """The first true value of `look`. Fails with `what` when none came in time."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)
    return found


def slowdown() -> float:
    """How many times longer than alone a computation takes here just now; 1 on a machine that has nothing else to do.

    A limit in seconds is a promise about the product; what other programs take of the machine is not its fault.
    """
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.05:
        sum(range(1000))
    return max(1.0, (time.monotonic() - began) / 0.05)


def perdure(*words: str) -> list[str]:
    """The command line of `perdure WORDS`, run with the interpreter of the tests."""
    return [sys.executable, "-m", "workers.cli.main", *words]


class Process:
    """A process of ours. What it says on stdout and stderr goes to `log`; it is killed at the latest by `end`."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.log = log
        self.started = time.monotonic()
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=env,
                cwd=cwd,
                start_new_session=True,  # a Ctrl-C at pytest is not for them: pytest ends them itself
            )
        self.is_frozen = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event, oldest first."""
        return [line for line in self.log_lines() if line.get("event") == event]

    def log_lines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for text in self.said.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a line that is still being written, or no log line at all
            if isinstance(line, dict):
                found.append(line)
        return found

    def wait_for_log(self, event: str, *, within_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        """The first log line of `event` with these fields."""

        def look() -> list[dict[str, Any]]:
            assert self.is_alive or self.is_frozen or self._find(event, fields), f"{self.name} has ended:\n{self.said}"
            return self._find(event, fields)

        return eventually(look, f"{event} in the log of {self.name}", within_s=within_s)[0]

    def kill(self) -> None:
        """SIGKILL, and nothing of it is left when this returns (its children may live on)."""
        self._popen.kill()
        self._popen.wait()

    def freeze(self) -> None:
        """SIGSTOP, in effect when this returns."""
        self._popen.send_signal(signal.SIGSTOP)
        self.is_frozen = True
        eventually(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED, f"{self.name} is stopped")

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def terminate(self) -> None:
        """SIGTERM; see `wait`."""
        self._popen.terminate()

    def wait(self, *, within_s: float) -> int:
        """Its exit code; fails when it does not end."""
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {within_s:g} s:\n{self.tail()}") from None

    def end(self) -> None:
        """Kill it and all that descends from it."""
        family = [psutil.Process(self.pid), *self.children()] if self.is_alive else []
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._popen.wait()

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def ports(self) -> set[int]:
        """Its own ends of its connections."""
        return {c.laddr.port for c in psutil.Process(self.pid).net_connections("tcp") if c.laddr}

    def tail(self, lines: int = 60) -> str:
        """The end of what it said, for a failed test's report."""
        return "\n".join(self.said.splitlines()[-lines:])

    def _find(self, event: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [line for line in self.logged(event) if all(line.get(k) == v for k, v in fields.items())]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of this process without anything that Perdure or a provider's SDK reads, and `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "OPENAI_", "ANTHROPIC_"))}
    # Compiling every library anew would double the start of each process.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {"PYTHONPATH": str(ROOT)} | more
