"""The open connections of one process, and what each has learnt of the statements that it runs again and again.

SQLAlchemy's pool did this before: with its events, weak references and record keeping, and a new cursor for each statement, it
made a statement a third dearer in CPU. One check-out here is one statement (or one transaction): there is nothing to reset.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import DictRow

Params = Mapping[str, Any]
Row = Mapping[str, Any]
Connection: TypeAlias = "psycopg.Connection[DictRow]"

# Of how many statements a connection remembers how their parameters are written; there are fewer in a worker's loop.
_REMEMBERED = 64


class NoneFree(Exception):
    """No connection became free in time."""


class Pooled:
    """One connection, for one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursors: dict[str, psycopg.Cursor[DictRow]] = {}
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def run(self, sql: str, params: Params | None) -> Sequence[Row]:
        cursor = self._cursors.get(sql)
        if cursor is None:
            cursor = self._remember(sql)
        # An empty mapping, not None: what is written for parameters has its percent signs doubled.
        cursor.execute(cast("Any", sql), params or {})
        result = cursor.pgresult
        if result is None or result.status != ExecStatus.TUPLES_OK:
            return ()
        rows = cursor.fetchall()
        result.clear()  # a cursor would hold it until its next statement, and a history may be large
        return rows

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a statement: it is neither broken nor in a transaction."""
        return self._connection.pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def was_ended(self) -> bool:
        """Whether the server has ended it while it lay idle: it was restarted, most likely.

        All it says to an idle connection is its end (or a notice, and then the connection is replaced for nothing).
        """
        return self._connection.closed or bool(self._poll.poll(0))

    def close(self) -> None:
        self._connection.close()

    def _remember(self, sql: str) -> psycopg.Cursor[DictRow]:
        if len(self._cursors) >= _REMEMBERED:
            self._cursors.clear()
        cursor = self._cursors[sql] = self._connection.cursor()
        return cursor


class Pool:
    """At most `size` connections, made when they are needed; the one that was used last is the next. Thread-safe.

    Who finds none free waits for `wait_s`.
    """

    def __init__(self, connect: Callable[[], Connection], *, size: int, wait_s: float) -> None:
        self._connect = connect
        self.wait_s = wait_s
        self._free = threading.BoundedSemaphore(size)
        self._idle: deque[Pooled] = deque()
        self._is_closed = False

    def take(self) -> Pooled:
        """A connection that the caller alone uses until it gives it back. Raises NoneFree, and psycopg's errors."""
        if not self._free.acquire(timeout=self.wait_s):
            raise NoneFree
        try:
            while self._idle:
                try:
                    pooled = self._idle.pop()
                except IndexError:  # another thread was faster
                    break
                if not pooled.was_ended:
                    return pooled
                pooled.close()
            return Pooled(self._connect())
        except BaseException:
            self._free.release()
            raise

    def give(self, pooled: Pooled) -> None:
        """Give a connection back, whatever became of it."""
        if pooled.is_idle and not self._is_closed:
            self._idle.append(pooled)
        else:
            pooled.close()
        self._free.release()

    def close(self) -> None:
        """Close what lies idle now; the rest is closed when it is given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
