"""Real servers for the tests, one Postgres and one Valkey for a whole call of pytest, and databases made from a template.

The controller (pytest itself, or pytest-xdist's main process) only makes a home; the first test that needs a server
starts it there, whichever process that test is in. PERDURE_DATABASE_URL and PERDURE_REDIS_URL are used where they are set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from persistence import migrate
from workers import stack
from workers.settings import libpq_url, sqlalchemy_url

HOME = "PERDURE_TEST_HOME"
CALL = "PERDURE_TEST_CALL"
# Any number, the same in all processes of one call.
_TEMPLATE_LOCK = 860_214


@contextmanager
def home_of_one_call() -> Generator[None]:
    """What the controller holds while the tests run. Everything that they started is gone after it, however it ends."""
    with stack.throwaway() as home:
        os.environ[HOME] = str(home)
        os.environ[CALL] = uuid4().hex[:8]
        try:
            yield
        finally:
            if os.environ.get("PERDURE_DATABASE_URL"):  # not ours to throw away as a whole
                _drop_all(servers().database_url)


def servers() -> stack.Servers:
    """The servers of this call; started now, if no test needed them before."""
    database_url = os.environ.get("PERDURE_DATABASE_URL") or None
    redis_url = os.environ.get("PERDURE_REDIS_URL") or None
    home = Path(os.environ[HOME])
    found = stack.up(home, database_url=database_url, redis_url=redis_url)
    return stack.Servers(sqlalchemy_url(found.database_url), found.redis_url, found.started)


@contextmanager
def fresh_database(server_url: str, *, migrated: bool = True) -> Generator[str]:
    """The address of a new database with the newest schema, or an empty one; it is dropped at the end."""
    with psycopg.connect(libpq_url(server_url), autocommit=True) as connection:
        template = _template(connection, server_url) if migrated else "template0"
        name = f"perdure_test_{os.environ[CALL]}_{uuid4().hex[:8]}"
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        try:
            yield _with_database(server_url, name)
        finally:
            _drop(connection, name)


def redis_database(redis_url: str, worker: str) -> str:
    """The same server with a number of its own for each process of pytest-xdist ("gw3", or "master" alone)."""
    digits = re.sub(r"\D", "", worker)
    number = int(digits) + 1 if digits else 0
    return urlunsplit(urlsplit(redis_url)._replace(path=f"/{number}"))


def _template(connection: psycopg.Connection, server_url: str) -> str:
    """The name of a database on which all migrations ran, made by the first process that comes here."""
    name = f"perdure_test_{os.environ[CALL]}_template"
    connection.execute("SELECT pg_advisory_lock(%s)", (_TEMPLATE_LOCK,))
    try:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            unfinished = f"{name}_unfinished"
            _drop(connection, unfinished)
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(unfinished)))
            migrate.upgrade(_with_database(server_url, unfinished))
            connection.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(unfinished), sql.Identifier(name))
            )
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (_TEMPLATE_LOCK,))
    return name


def _drop(connection: psycopg.Connection, name: str) -> None:
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _drop_all(server_url: str) -> None:
    with psycopg.connect(libpq_url(server_url), autocommit=True) as connection:
        pattern = f"perdure_test_{os.environ[CALL]}_%"
        for (name,) in connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE %s", (pattern,)
        ).fetchall():
            _drop(connection, name)


def _with_database(server_url: str, name: str) -> str:
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
