"""Bring a database to this version's schema, or back."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from persistence.database import MINIMUM_VERSION
from persistence.errors import DatabaseUnavailable, DatabaseUnfit

if TYPE_CHECKING:
    from alembic.config import Config

# Any two `perdure migrate` run one after the other; the number is "perdure" in a phone keypad's digits.
_LOCK = 7373873


def upgrade(database_url: str, revision: str = "head") -> None:
    """Raises DatabaseUnavailable, or DatabaseUnfit when the server is too old."""
    from alembic import command

    _run(database_url, lambda config: command.upgrade(config, revision))


def downgrade(database_url: str, revision: str) -> None:
    from alembic import command

    _run(database_url, lambda config: command.downgrade(config, revision))


def check_schema(database_url: str) -> None:
    """Raises DatabaseUnfit, with what to do, unless the schema is the one that this version was written for.

    Every process asks at its start, so this does without Alembic, whose import alone takes a third of a second.
    """
    engine = create_engine(database_url, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            is_there = connection.execute(text("SELECT to_regclass('alembic_version') IS NOT NULL")).scalar_one()
            version = text("SELECT version_num FROM alembic_version")
            found = connection.execute(version).scalar_one_or_none() if is_there else None
    except OperationalError as error:
        raise DatabaseUnavailable(f"Postgres cannot be reached: {_reason(error)}") from error
    finally:
        engine.dispose()
    if found is None:
        raise DatabaseUnfit("the database has no Perdure schema yet: call `perdure migrate`")
    head = newest_revision()
    if found != head:
        raise DatabaseUnfit(
            f"the database has schema {found}, this version of Perdure needs {head}: call `perdure migrate`"
        )


def newest_revision() -> str:
    """The schema that this version was written for: a migration's file is named after its revision, which counts up."""
    files = resources.files("persistence.migrations.versions").iterdir()
    return max(file.name.partition("_")[0] for file in files if file.name[0].isdigit())


def statements(script: str) -> list[str]:
    """A migration's SQL, one statement each: a prepared statement cannot hold two. No literal may hold a semicolon."""
    return [s.strip() for s in script.split(";") if s.strip()]


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "persistence:migrations")
    return config


def _run(database_url: str, migration: Callable[[Config], None]) -> None:
    engine = create_engine(database_url, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            _refuse_old(connection)
            connection.execute(text("SELECT pg_advisory_lock(:n)"), {"n": _LOCK})
            connection.commit()
            config = _config()
            config.attributes["connection"] = connection
            migration(config)
            connection.commit()
    except OperationalError as error:
        raise DatabaseUnavailable(f"Postgres cannot be reached: {_reason(error)}") from error
    finally:
        engine.dispose()


def _refuse_old(connection: Connection) -> None:
    version = int(connection.execute(text("SHOW server_version_num")).scalar_one()) // 10_000
    if version < MINIMUM_VERSION:
        raise DatabaseUnfit(
            f"Postgres {version} is too old: Perdure needs {MINIMUM_VERSION} or newer; point PERDURE_DATABASE_URL to one"
        )


def _reason(error: DBAPIError) -> str:
    cause = error.orig if isinstance(error.orig, psycopg.Error) else error
    return (str(cause).strip() or "no reason given").splitlines()[0]
