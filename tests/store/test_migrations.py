"""The schema, built both ways, and taken down again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import create_engine

from persistence import migrate
from persistence.database import Database
from persistence.errors import DatabaseUnavailable, DatabaseUnfit
from persistence.schema import metadata
from persistence.submission import DEFAULT_TENANT
from tests.support.stack import fresh_database
from workers.stack import Servers

_COLUMNS = """
SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
  pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum), c.reloptions
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'alembic_version'
ORDER BY 1, 2"""

_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version' ORDER BY 1, 2"""

_INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY 1"

_LEFT = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'alembic_version%%'
UNION ALL SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typname NOT LIKE '%%alembic_version'
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"""


def described(url: str) -> dict[str, Sequence[tuple[object, ...]]]:
    database = Database(url)
    try:
        return {
            name: [tuple(str(v) for v in r.values()) for r in database.rows(sql)]
            for name, sql in {"columns": _COLUMNS, "constraints": _CONSTRAINTS, "indexes": _INDEXES}.items()
        }
    finally:
        database.close()


def left_in(url: str) -> list[str]:
    database = Database(url)
    try:
        return [r["relname"] for r in database.rows(_LEFT)]
    finally:
        database.close()


def test_migrations_build_the_schema_that_the_code_describes(servers: Servers, fresh_database_url: str) -> None:
    with fresh_database(servers.database_url, migrated=False) as plain_url:
        engine = create_engine(plain_url)
        metadata.create_all(engine)
        engine.dispose()
        from_code = described(plain_url)

    from_migrations = described(fresh_database_url)

    assert len(from_code["columns"]) > 100
    assert from_migrations == from_code


def test_a_schema_taken_down_leaves_nothing_and_can_be_built_again(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    first = described(empty_database_url)

    migrate.downgrade(empty_database_url, "base")
    left = left_in(empty_database_url)
    migrate.upgrade(empty_database_url)

    assert left == []
    assert described(empty_database_url) == first


def test_a_second_migration_has_nothing_to_do(fresh_database_url: str) -> None:
    before = described(fresh_database_url)

    migrate.upgrade(fresh_database_url)

    assert described(fresh_database_url) == before


def test_a_new_database_has_the_default_tenant(fresh_database_url: str) -> None:
    database = Database(fresh_database_url)

    found = database.rows("SELECT id, name FROM tenants")
    database.close()

    assert [tuple(r.values()) for r in found] == [(DEFAULT_TENANT, "default")]


def test_a_database_without_the_schema_is_refused_with_what_to_do(empty_database_url: str) -> None:
    with pytest.raises(DatabaseUnfit, match="perdure migrate"):
        migrate.check_schema(empty_database_url)


def test_a_schema_of_another_version_is_refused_with_what_to_do(fresh_database_url: str) -> None:
    migrate.check_schema(fresh_database_url)
    database = Database(fresh_database_url)
    database.rows("UPDATE alembic_version SET version_num = '9999'")
    database.close()

    with pytest.raises(DatabaseUnfit, match=r"schema 9999.*perdure migrate"):
        migrate.check_schema(fresh_database_url)


def test_a_server_that_is_not_there_is_named_in_one_sentence() -> None:
    nowhere = "postgresql+psycopg://perdure@127.0.0.1:1/perdure"

    for attempt in (migrate.upgrade, migrate.check_schema):
        with pytest.raises(DatabaseUnavailable, match="Postgres cannot be reached") as caught:
            attempt(nowhere)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [("0001", "0002"), ("0002", "0003"), ("0003", "0004"), ("0004", "0005"), ("0005", "0006")],
)
def test_each_migration_has_a_way_back_to_the_one_before_it(empty_database_url: str, before: str, after: str) -> None:
    migrate.upgrade(empty_database_url, before)
    first = described(empty_database_url)
    migrate.upgrade(empty_database_url, after)
    assert described(empty_database_url) != first

    migrate.downgrade(empty_database_url, before)

    assert described(empty_database_url) == first
