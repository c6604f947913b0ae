"""`perdure up`: what it starts, what it says meanwhile, and how it stops what it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from persistence import migrate
from persistence.database import Database
from workers import stack
from workers.cli.own_worker import OwnWorker
from workers.settings import Settings, sqlalchemy_url
from workers.stack import Servers, StackError

# A worker that ends sooner than this after it was ready, and again, would do so for ever.
_TOO_SOON_S = 10.0
_SHORT_LIVES = 3
_LOOK_EVERY_S = 0.2


class Foreground:
    """Starts things, and at its end stops them again: always, unless it is detached and nothing went wrong."""

    def __init__(self, settings: Settings, *, is_detached: bool) -> None:
        self._settings = settings
        self._is_detached = is_detached
        self._servers: Servers | None = None
        self._own: OwnWorker | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._worker_since = 0.0
        self._short_lives = 0

    def __enter__(self) -> Self:
        # A supervisor's SIGTERM is a Ctrl-C to us, also in the middle of a start.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._is_detached and error is None:
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # stopping is under way and has its own limits
        if self._own is not None and self._worker is not None:
            _tell("Stopping the worker: it hands its turns back.")
            self._own.stop()
            self._worker.wait()
        if self._servers is not None and self._servers.started:
            _tell(f"Stopping {' and '.join(self._servers.started)}.")
            stack.down(self._settings.home, only=self._servers.started)

    def start_servers(self) -> Servers:
        """Start what is missing and bring the schema up to date. Raises StackError, or what `migrate.upgrade` raises."""
        settings = self._settings
        found = stack.up(settings.home, database_url=settings.database_url, redis_url=settings.redis_url)
        self._servers = found
        migrate.upgrade(sqlalchemy_url(found.database_url))
        for name, kind, url in (
            ("Postgres", stack.POSTGRES, found.database_url),
            ("Redis", stack.VALKEY, found.redis_url),
        ):
            _tell(f"{name:<9}{_place(url)} ({'started' if kind in found.started else 'was running'})")
        return found

    def start_worker(self, own: OwnWorker) -> None:
        """Start the worker of this home, where none lives, and return when it takes turns. Raises StackError."""
        self._own = own
        started = own.start(is_detached=self._is_detached)
        if started is None:
            _tell(f"Worker   process {own.find()} (was running)")
            return
        self._worker, self._worker_since = started, time.monotonic()
        assert self._servers is not None, "servers come first"
        database = Database(sqlalchemy_url(self._servers.database_url), connections=1, name="perdure up")
        try:
            own.wait_until_ready(database, started)
        finally:
            database.close()
        self._worker_since = time.monotonic()
        where = f"; its log is {own.log}" if self._is_detached else ""
        _tell(f"Worker   process {started.pid} (started){where}")

    def stay(self) -> None:
        """Look after the worker until Ctrl-C or SIGTERM, or until somebody stops it. Raises StackError when it cannot live."""
        _tell('Everything runs; Ctrl-C stops what was started here. Elsewhere, try: perdure run "What time is it?"')
        try:
            while self._look_after_worker():
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            return

    def _look_after_worker(self) -> bool:
        """Start the worker again if it has died; False when it was stopped on purpose."""
        if self._own is None or self._worker is None or self._worker.poll() is None:
            return True
        ended, self._worker = self._worker, None
        if not self._own.is_wanted(ended):
            _tell("The worker was stopped.")
            return False
        is_short = time.monotonic() - self._worker_since < _TOO_SOON_S
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives == _SHORT_LIVES:
            raise StackError(
                f"The worker has ended {_SHORT_LIVES} times soon after its start, at last with exit code "
                f"{ended.returncode}: its words above say why"
            )
        _tell(f"The worker has ended (exit code {ended.returncode}); another one is started and takes its turns back.")
        try:
            self.start_worker(self._own)
        except StackError as error:
            _tell(f"{error}.")  # another short life, should it have ended
        return True


def _place(url: str) -> str:
    """Host and port of an address, without its password."""
    parts = urlsplit(url)
    return f"{parts.hostname or parts.path}:{parts.port}" if parts.port else str(parts.hostname or parts.path)


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
