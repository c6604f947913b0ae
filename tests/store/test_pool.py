"""How many connections a process opens, which of them it uses, and what they remember."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from persistence.pool import NoneFree, Pool

NAME = "the pool under test"


@pytest.fixture
def pool(database_url: str) -> Generator[Pool]:
    url = database_url.replace("+psycopg", "")

    def connect() -> Any:
        return psycopg.connect(url, autocommit=True, prepare_threshold=1, application_name=NAME)

    made = Pool(connect, size=2, wait_s=30)
    yield made
    made.close()


def backends(pool: Pool) -> int:
    pooled = pool.take()
    try:
        found = pooled.run(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = %(name)s", {"name": NAME}
        )
    finally:
        pool.give(pooled)
    return found[0]["n"]


def test_statements_one_after_another_use_one_connection(pool: Pool) -> None:
    assert [backends(pool) for _ in range(5)] == [1] * 5


def test_threads_share_what_there_is_and_open_no_more(pool: Pool) -> None:
    with ThreadPoolExecutor(8) as threads:
        counted = list(threads.map(lambda _: backends(pool), range(40)))

    assert max(counted) <= 2


def test_who_gets_no_connection_in_time_is_told_and_takes_none_away(pool: Pool) -> None:
    pool.wait_s = 0.05
    taken = [pool.take(), pool.take()]
    for _ in range(3):
        with pytest.raises(NoneFree):
            pool.take()
    for pooled in taken:
        pool.give(pooled)

    pool.wait_s = 30
    assert backends(pool) == 2


def test_a_connection_that_failed_while_it_was_made_takes_no_place() -> None:
    def fail() -> Any:
        raise psycopg.OperationalError("no")

    pool = Pool(fail, size=1, wait_s=0.2)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError):
            pool.take()


def test_a_connection_that_is_given_back_in_a_transaction_is_not_used_again(pool: Pool) -> None:
    pooled = pool.take()
    pooled.run("BEGIN", None)
    pool.give(pooled)

    other = pool.take()
    assert other is not pooled
    assert other.is_idle
    pool.give(other)


def test_a_connection_that_comes_back_after_the_close_is_closed(pool: Pool) -> None:
    pooled = pool.take()
    pool.close()
    pool.give(pooled)

    assert pooled.was_ended


def test_a_statement_that_is_run_again_takes_parameters_of_other_types(pool: Pool) -> None:
    pooled = pool.take()
    values = (1, "one", 2**40, None, 1.5, "two", timedelta(seconds=3), 2)
    told = [pooled.run("SELECT %(it)s::text AS it", {"it": value})[0]["it"] for value in values for _ in range(3)]
    pool.give(pooled)

    assert told[::3] == ["1", "one", str(2**40), None, "1.5", "two", "00:00:03", "2"]


def test_a_column_that_a_newer_release_adds_meanwhile_disturbs_no_statement(database_url: str, pool: Pool) -> None:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as newer:
        newer.execute("CREATE TABLE grown (a int)")
        newer.execute("INSERT INTO grown VALUES (1)")
        pooled = pool.take()
        for _ in range(4):
            assert pooled.run("SELECT * FROM grown", None) == [{"a": 1}]
        newer.execute("ALTER TABLE grown ADD b int")

        assert [pooled.run("SELECT * FROM grown", None) for _ in range(4)] == [[{"a": 1, "b": None}]] * 4

        newer.execute("ALTER TABLE grown RENAME a TO z")
        assert [pooled.run("SELECT * FROM grown", None) for _ in range(4)] == [[{"z": 1, "b": None}]] * 4
        pool.give(pooled)
        newer.execute("DROP TABLE grown")
