"""The worker that `perdure up` starts: found again by its file in the home, stopped by `perdure down`.

home/worker/  pid   the process number, then its drain time in seconds; who stops the worker on purpose removes it first
              log   what a detached worker has to say; the one before is kept as log.1
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import psutil

from persistence import views
from persistence.database import Database
from persistence.errors import DatabaseUnavailable
from workers.settings import Settings
from workers.stack import StackError, processes, state

_READY_S = 60.0
# Beyond its drain time, a worker needs some for its last statements.
_LAST_STATEMENTS_S = 15.0


class OwnWorker:
    """At most one worker of a home. Safe to use from several processes at once."""

    def __init__(self, settings: Settings) -> None:
        self._drain_s = settings.drain_s
        self._home = settings.home.resolve()
        self._folder = self._home / "worker"
        self._pid_file = self._folder / "pid"
        # Part of its command line, so that a process that was given its number meanwhile is never taken for it.
        self._name = f"up-{hashlib.sha256(str(self._home).encode()).hexdigest()[:8]}"

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def find(self) -> int | None:
        """Its process number, if it lives."""
        found = self._living()
        return None if found is None else found.pid

    def start(self, *, is_detached: bool) -> subprocess.Popen[bytes] | None:
        """Start it, or None where it lives already. Detached, it writes to its log, else to our stderr."""
        with state.locked(self._home):
            if self._living() is not None:
                return None
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not is_detached:
                return self._launch(None)
            if self.log.exists():
                self.log.replace(self.log.with_name("log.1"))
            with self.log.open("wb") as log:
                return self._launch(log)

    def wait_until_ready(self, database: Database, started: subprocess.Popen[bytes]) -> None:
        """Return when it takes turns. Raises StackError, with its last words where they are kept, when it does not."""
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            code = started.poll()
            if code is not None:
                last_words = f": {processes.tail(self.log, 1)}" if self.log.exists() else ""
                raise StackError(f"The worker has ended at its start, with exit code {code}{last_words}")
            if self._is_seen(database, started.pid):
                return
            time.sleep(0.1)
        raise StackError(
            f"The worker has not become ready within {_READY_S:.0f} s: look at {self.log}, then try again."
        )

    def is_wanted(self, started: subprocess.Popen[bytes]) -> bool:
        """Whether nobody has stopped this very worker on purpose."""
        return self._noted()[:1] == [str(started.pid)]

    def stop(self) -> bool:
        """Let it hand its turns back and end; whether it lived. Raises StackError."""
        found, noted = self._living(), self._noted()
        self._pid_file.unlink(missing_ok=True)
        if found is None:
            return False
        # Its own drain time, which may be another than ours.
        patience_s = float(noted[1]) + _LAST_STATEMENTS_S
        processes.stop(found, signal.SIGTERM, signal.SIGKILL, seconds=patience_s)
        return True

    def _noted(self) -> list[str]:
        try:
            return self._pid_file.read_text("ascii").split()
        except FileNotFoundError:
            return []

    def _living(self) -> psutil.Process | None:
        return processes.living(self._pid_file, Path(self._name))

    def _launch(self, log: IO[bytes] | None) -> subprocess.Popen[bytes]:
        # -P: a folder of the user's that is called like one of our packages must not stand in for it.
        command = [sys.executable, "-P", "-m", "workers.cli.main", "worker", "--name", self._name]
        # In a session of its own: a Ctrl-C in our terminal is ours alone to pass on.
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._pid_file.write_text(f"{started.pid}\n{self._drain_s}\n", "ascii")
        return started

    @staticmethod
    def _is_seen(database: Database, pid: int) -> bool:
        try:
            return any(worker.pid == pid for worker in views.workers(database))
        except DatabaseUnavailable:
            return False
