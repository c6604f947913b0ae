"""One pool of connections to Postgres, statements in autocommit, and the few words that callers need for its errors.

Statements are SQL text with psycopg's `%(name)s` parameters, run by psycopg itself on a connection of SQLAlchemy's pool:
measured 3 to 10 times the ORM, and a third of the CPU of the same text through SQLAlchemy's own connection. No connection
is held between two statements, so none is held while a model or a tool works.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import DictRow, dict_row
from sqlalchemy import event
from sqlalchemy.exc import InvalidatePoolError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from persistence.errors import DatabaseUnavailable, DatabaseUnfit

Params = Mapping[str, Any]
Row = Mapping[str, Any]
_Connection: TypeAlias = "psycopg.Connection[DictRow]"
T = TypeVar("T")

MINIMUM_VERSION = 14
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

        def connect() -> _Connection:
            return psycopg.Connection[DictRow].connect(
                url.replace("+psycopg", "", 1),
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=2,
                connect_timeout=5,
                application_name=name,
                options=options,
                keepalives_idle=10,
                keepalives_interval=3,
                keepalives_count=3,
                tcp_user_timeout=15_000,
            )

        # The pool alone: an engine brings a dialect, which takes 0.2 s of CPU to load and which nobody here speaks.
        self._pool = QueuePool(
            cast("Any", connect),
            pool_size=connections,
            max_overflow=0,
            timeout=30,
            use_lifo=True,
            # One check-out is one statement: nothing to roll back, and a reset would be a second round trip.
            reset_on_return=None,
        )
        event.listen(self._pool, "checkout", _require_open)

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        with self._connection() as connection:
            return _run(connection, sql, params)

    @contextmanager
    def transaction(self) -> Generator[Transaction, None, None]:
        """Several statements that commit together, for what happens once a turn, never in its loop."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def check(self) -> None:
        """Raises DatabaseUnavailable or DatabaseUnfit, each with a sentence that says what to do."""
        version = int(self.one("SELECT current_setting('server_version_num')::int AS n")["n"]) // 10_000
        if version < MINIMUM_VERSION:
            raise DatabaseUnfit(
                f"Postgres {version} is too old: Perdure needs {MINIMUM_VERSION} or newer; point PERDURE_DATABASE_URL to one"
            )

    def close(self) -> None:
        self._pool.dispose()

    @contextmanager
    def _connection(self) -> Generator[_Connection, None, None]:
        try:
            pooled = self._pool.connect()
            connection = cast("_Connection", pooled.driver_connection)
            try:
                yield connection
            finally:
                _give_back(pooled, connection)
        except psycopg.Error as error:
            if is_transient(error):
                raise DatabaseUnavailable(f"Postgres cannot be used now: {_first_line(error)}") from error
            raise
        except PoolTimeout as error:
            raise DatabaseUnavailable("no connection to Postgres became free in 30 s") from error
        except InvalidRequestError as error:
            raise DatabaseUnavailable("Postgres ends every connection as soon as it is made") from error


class Transaction:
    """The statements between BEGIN and COMMIT."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        return _run(self._connection, sql, params)

    def one_or_none(self, sql: str, params: Params | None = None) -> Row | None:
        found = self.rows(sql, params)
        return found[0] if found else None


def _run(connection: _Connection, sql: str, params: Params | None) -> Sequence[Row]:
    # An empty mapping, not None: what is written for parameters has its percent signs doubled.
    cursor = connection.execute(cast("Any", sql), params or {})
    result = cursor.pgresult
    return cursor.fetchall() if result is not None and result.status == ExecStatus.TUPLES_OK else ()


def _require_open(connection: _Connection, _record: object, _pooled: object) -> None:
    """Have the pool connect anew where the server has ended a connection that lay idle: it was restarted, most likely.

    All it says to an idle connection is its end (or a notice, and then the connection is replaced for nothing).
    """
    if connection.closed:
        raise InvalidatePoolError
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise InvalidatePoolError


def _give_back(pooled: PoolProxiedConnection, connection: _Connection) -> None:
    """Only a connection that waits for a statement is used again: not a broken one, not one left in a transaction."""
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        pooled.invalidate()
    pooled.close()


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
