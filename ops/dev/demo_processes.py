"""The demo's other processes: a worker that can be lost and replaced, and a server with a model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestration.errors import PerdureError
from persistence import views
from persistence.database import Database
from persistence.events import StoredEvent
from workers.cli.progress import Iteration, Progress
from workers.cli.screen import Screen
from workers.cli.speech import Told
from workers.servers import ServersMissing

REPOSITORY = Path(__file__).resolve().parents[2]
_KILL_AFTER_ITERATION = 3
_READY_S = 60.0
# A worker hands its turns back, and llama.cpp ends its reply.
_END_S = 60.0


@contextmanager
def served(module: str, *words: str) -> Generator[dict[str, str]]:
    """A server of ours as a process, for as long as the block runs; what its first line says: its addresses.

    Raises ServersMissing when it does not start; it has told why on stderr.
    """
    command = [sys.executable, "-m", module, *words]
    # In a session of its own: a Ctrl-C here is the demo's to pass on.
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise ServersMissing(f"{module} has not started: what it said above is the reason")
        yield json.loads(line)
    finally:
        process.stdout.close()
        _end(process)


class Worker:
    """`perdure worker` as a process of its own, ready when it has been made."""

    def __init__(self, database_url: str, home: Path) -> None:
        self._database = Database(database_url, connections=1, name="perdure demo")
        self._log = home / "worker.log"
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._database.close()
        _end(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def replace(self) -> None:
        """SIGKILL, without a warning; then another one."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workers.cli.main", "worker", "--name", "demo"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, cwd=REPOSITORY, stderr=log, stdout=log, start_new_session=True)
        try:
            self._wait_until_ready(process)
        except BaseException:  # a Ctrl-C, for one: nobody else knows of the process yet
            _end(process)
            raise
        return process

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _READY_S
        while time.monotonic() < end and process.poll() is None:
            if any(each.pid == process.pid for each in views.workers(self._database)):
                return
            time.sleep(0.05)
        raise PerdureError(f"The worker has not become ready: {self._log.read_text('utf-8', 'replace')[-2000:]}")


class Killing:
    """A screen that loses the worker once, in the middle of what it shows."""

    def __init__(self, shown: Screen, worker: Worker) -> None:
        self._shown = shown
        self._worker = worker
        self._progress = Progress()
        self._is_due = True

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, where)

    @property
    def wants_words(self) -> bool:
        return self._shown.wants_words

    def show(self, told: Told) -> None:
        self._shown.show(told)
        if not isinstance(told, StoredEvent):
            return
        final = self._progress.take(told)
        if self._is_due and any(isinstance(each, Iteration) and each.n == _KILL_AFTER_ITERATION for each in final):
            self._is_due = False
            self.say(f"SIGKILL to the worker, process {self._worker.pid}")
            self._worker.replace()
            self.say(f"another worker is there, process {self._worker.pid}")

    def say(self, sentence: str) -> None:
        self._shown.say(sentence)


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
