"""The open connections of one process, and what each has learnt of the statements that it runs again and again.

SQLAlchemy's pool did this before: with its events, weak references and record keeping, and a new cursor for each statement, it
made a statement a third dearer in CPU. One check-out here is one statement (or one transaction): there is nothing to reset.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import TupleRow

Params = Mapping[str, Any]
Row = Mapping[str, Any]
Connection: TypeAlias = "psycopg.Connection[TupleRow]"

# Of how many statements a connection remembers how their parameters are written; there are fewer in a worker's loop.
_REMEMBERED = 64


class NoneFree(Exception):
    """No connection became free in time."""


@dataclass(slots=True)
class _Known:
    """A statement that ran before: its cursor knows how parameters are written, and `names` are those of its columns."""

    cursor: psycopg.Cursor[TupleRow]
    names: tuple[str, ...] = ()


class Pooled:
    """One connection, for one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, _Known] = {}
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def run(self, sql: str, params: Params | None) -> Sequence[Row]:
        known = self._known.get(sql) or self._learn(sql)
        cursor = known.cursor
        try:
            _execute(cursor, sql, params)
        except errors.FeatureNotSupported:
            if not (self.is_idle and known.names):
                raise
            # A newer release has added a column meanwhile, and what was prepared fits no more. The statement did nothing.
            self._connection.execute("DEALLOCATE ALL")
            self._known.clear()
            return self.run(sql, params)
        result = cursor.pgresult
        if result is None or result.status != ExecStatus.TUPLES_OK:
            return ()
        if len(known.names) != result.nfields:
            known.names = tuple(column.name for column in cursor.description or ())
        rows = [dict(zip(known.names, values, strict=True)) for values in cursor.fetchall()]
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

    def _learn(self, sql: str) -> _Known:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        known = self._known[sql] = _Known(self._connection.cursor())
        return known


def _execute(cursor: psycopg.Cursor[TupleRow], sql: str, params: Params | None) -> None:
    # An empty mapping, not None: what is written for parameters has its percent signs doubled.
    cursor.execute(cast("Any", sql), params or {})


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
