"""Who leads the maintenance: the holder of one advisory lock, on a connection of its own.

The rounds run on that very connection, and it ends by itself when it was idle for 5 s: a frozen leader loses the lead,
and a leader without its lock cannot run a statement. All services are correct with two leaders all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row

from persistence.database import Params, Row, Statements, is_transient
from persistence.errors import DatabaseUnavailable

_LOCK = 73738731
_OPTIONS = "-c idle_session_timeout=5s -c statement_timeout=10s -c lock_timeout=5s -c timezone=UTC"


class Lead(Statements):
    """The lead, as long as its connection lives. `rows` raises DatabaseUnavailable when it is lost."""

    def __init__(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        self._connection = connection

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        try:
            cursor = self._connection.execute(cast("Any", sql), dict(params or {}))
            return cursor.fetchall() if cursor.description else ()
        except psycopg.Error as error:
            if is_transient(error) or self._connection.closed:
                raise DatabaseUnavailable(f"the lead is lost: {type(error).__name__}") from error
            raise

    def close(self) -> None:
        self._connection.close()


def try_to_lead(url: str) -> Lead | None:
    """The lead, or None while somebody else has it. Raises DatabaseUnavailable. `url` is libpq's."""
    try:
        connection = psycopg.Connection[dict[str, Any]].connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=5,
            options=_OPTIONS,
            application_name="perdure leader",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=2,
            tcp_user_timeout=8000,
        )
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"Postgres cannot be reached: {type(error).__name__}") from error
    lead = Lead(connection)
    try:
        if lead.one("SELECT pg_try_advisory_lock(%(lock)s) AS mine", {"lock": _LOCK})["mine"]:
            return lead
    except BaseException:
        lead.close()
        raise
    lead.close()
    return None
