"""What other tests stand on: servers that run, a database with the schema, and nothing of it left behind."""

from __future__ import annotations

import psycopg
import redis

from workers.settings import libpq_url


def test_each_process_has_a_database_with_the_schema(database_url: str) -> None:
    with psycopg.connect(libpq_url(database_url)) as connection:
        found = connection.execute("SELECT to_regclass('turns'), current_database()").fetchone()

    assert found is not None
    assert found[0] == "turns"
    assert found[1].startswith("perdure_test_")


def test_a_test_of_the_migrations_gets_an_empty_database(empty_database_url: str) -> None:
    with psycopg.connect(libpq_url(empty_database_url)) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()

    assert found == (0,)


def test_each_process_has_its_own_numbered_database_of_valkey(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)

    assert client.client_info()["db"] == int(redis_url.rpartition("/")[2])
