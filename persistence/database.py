"""One pool of connections to Postgres, statements in autocommit, and the few words that callers need for its errors.

Statements are SQL text with psycopg's `%(name)s` parameters, run by psycopg itself: measured 3 to 10 times the ORM, and a
third of the CPU of the same text through SQLAlchemy's connection. No connection is held between two statements, so none is
held while a model or a tool works.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg

from persistence.errors import DatabaseUnavailable, DatabaseUnfit
from persistence.pool import Connection, NoneFree, Params, Pool, Pooled, Row

T = TypeVar("T")

MINIMUM_VERSION = 14
_WAIT_S = 30.0
_OPTIONS = "-c statement_timeout=30s -c lock_timeout=10s -c idle_in_transaction_session_timeout=30s -c timezone=UTC"
# Answers that say "not now": disk full, read-only, shutting down, a deadlock, a serialization failure.
_TRY_AGAIN = ("08", "25006", "40", "53", "55P03", "57", "58")


class Statements(ABC):
    """Something that runs one statement at a time: a pool, or the leader's one connection."""

    @abstractmethod
    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        """Run one statement and commit it; the rows it returns, as mappings.

        Raises DatabaseUnavailable when Postgres is away or asks to try again: the outcome is then unknown.
        """

    def one_or_none(self, sql: str, params: Params | None = None) -> Row | None:
        found = self.rows(sql, params)
        return found[0] if found else None

    def one(self, sql: str, params: Params | None = None) -> Row:
        return self.rows(sql, params)[0]


class Database(Statements):
    """A pool for one process. Thread-safe; at most `connections` are open at once.

    `is_patient_about_disk` is False for what a crash may undo (a renewal): its commits do not wait for the disk.
    """

    def __init__(
        self, url: str, *, connections: int = 12, name: str = "perdure", is_patient_about_disk: bool = True
    ) -> None:
        self.url = url
        options = _OPTIONS + ("" if is_patient_about_disk else " -c synchronous_commit=off")

        def connect() -> Connection:
            return psycopg.connect(
                url.replace("+psycopg", "", 1),
                autocommit=True,
                prepare_threshold=2,
                connect_timeout=5,
                application_name=name,
                options=options,
                keepalives_idle=10,
                keepalives_interval=3,
                keepalives_count=3,
                tcp_user_timeout=15_000,
            )

        self._pool = Pool(connect, size=connections, wait_s=_WAIT_S)

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        pooled = self._take()
        try:
            return pooled.run(sql, params)
        except psycopg.Error as error:
            _raise_if_transient(error)
            raise
        finally:
            self._pool.give(pooled)

    @contextmanager
    def transaction(self) -> Generator[Transaction, None, None]:
        """Several statements that commit together, for what happens once a turn, never in its loop."""
        pooled = self._take()
        try:
            pooled.run("BEGIN", None)
            try:
                yield Transaction(pooled)
            except BaseException:
                with suppress(
                    psycopg.Error
                ):  # the connection is lost: it is not used again, and why it ends matters more
                    pooled.run("ROLLBACK", None)
                raise
            pooled.run("COMMIT", None)
        except psycopg.Error as error:
            _raise_if_transient(error)
            raise
        finally:
            self._pool.give(pooled)

    def check(self) -> None:
        """Raises DatabaseUnavailable or DatabaseUnfit, each with a sentence that says what to do."""
        version = int(self.one("SELECT current_setting('server_version_num')::int AS n")["n"]) // 10_000
        if version < MINIMUM_VERSION:
            raise DatabaseUnfit(
                f"Postgres {version} is too old: Perdure needs {MINIMUM_VERSION} or newer; point PERDURE_DATABASE_URL to one"
            )

    def close(self) -> None:
        self._pool.close()

    def _take(self) -> Pooled:
        try:
            return self._pool.take()
        except psycopg.Error as error:
            _raise_if_transient(error)
            raise
        except NoneFree as error:
            raise DatabaseUnavailable(f"no connection to Postgres became free in {_WAIT_S:g} s") from error


class Transaction:
    """The statements between BEGIN and COMMIT."""

    def __init__(self, pooled: Pooled) -> None:
        self._pooled = pooled

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        return self._pooled.run(sql, params)

    def one_or_none(self, sql: str, params: Params | None = None) -> Row | None:
        found = self.rows(sql, params)
        return found[0] if found else None


def _raise_if_transient(error: psycopg.Error) -> None:
    """Raises DatabaseUnavailable where waiting may cure it."""
    if is_transient(error):
        raise DatabaseUnavailable(f"Postgres cannot be used now: {_first_line(error)}") from error


def is_transient(error: BaseException | None) -> bool:
    """Whether waiting may cure it: the connection broke, or Postgres said so."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_TRY_AGAIN)


def patiently(attempt: Callable[[], T], *, give_up: Callable[[], bool], pause_s: float = 0.2) -> T:
    """Call `attempt` until Postgres takes it. `give_up` ends the patience: the last error is raised."""
    while True:
        try:
            return attempt()
        except DatabaseUnavailable:
            if give_up():
                raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2.0)


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
