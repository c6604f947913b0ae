"""Who a process is: its boot, pid namespace, pid and start time, so that a dead owner can be told from a live one."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, for ever: no later one has the same four parts. Only an equal boot and namespace is "this host"."""

    boot: str
    pid_namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"

    @classmethod
    def parse(cls, text: str) -> Identity | None:
        """The identity that `str` wrote, or None for an owner that was named otherwise (a test, a program)."""
        parts = text.split("/")
        if len(parts) != 4 or not parts[2].isdigit():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3])

    @property
    def is_of_this_host(self) -> bool:
        return (self.boot, self.pid_namespace) == (_boot(), _pid_namespace())

    @property
    def is_alive(self) -> bool:
        """Whether that very process exists. Only asked of processes of this host."""
        try:
            process = psutil.Process(self.pid)
            return _started(process) == self.started and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def own() -> Identity:
    return of(os.getpid())


def of(pid: int) -> Identity:
    """Of a process of this host that exists."""
    return Identity(_boot(), _pid_namespace(), pid, _started(psutil.Process(pid)))


def host() -> str:
    return socket.gethostname()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return f"{host()}-{psutil.boot_time():.0f}"


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def _started(process: psutil.Process) -> str:
    """The start time as the kernel has it: in ticks since the boot where /proc tells, which no clock change moves."""
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return f"{process.create_time():.2f}"
